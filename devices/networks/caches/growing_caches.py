"""Growing caches: inputs that a network returns with more rows after them, such as a decoder's keys and values.

    keys = concat(keys of the tokens before, keys of the new tokens)

Copying the old rows takes as long as reading them. Instead, the compiled network writes the new rows after the old
ones, in a buffer of the largest extent: an argument of ``main`` that it returns. One number for each cache is the first
row of the buffer to write: the row after the old ones if the buffer has these already, else 0.

:mod:`devices.networks.caches.cache_buffers` keeps the buffers when the network runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, PrimFunc, SeqStmt, Stmt, Var, const
from tvm.tirx.analysis import undefined_vars

from devices.builds.concatenations import AXIS
from devices.builds.executables import kernel_calls
from devices.networks.caches.cache_buffers import GrowingCache
from devices.networks.graph.ir.dynamic_extents import is_long, largest_value
from devices.networks.graph.ir.main_function import results_of
from devices.sketches.dynamic.default_schedule import FEW
from devices.sketches.dynamic.rows import is_dynamic, tensors
from devices.sketches.dynamic.substitution import on_tensors
from fleet_tune.base.shapes.shapes import Shapes

_CALL_TIR = "relax.call_tir"
_INDEX = "int64"


@dataclass(frozen=True)
class _Found:
    """A cache in ``main``."""

    cache: GrowingCache
    result: Any
    """The Relax variable of the grown cache."""
    call: Call
    """The call of the concatenation."""

    @property
    def size(self) -> tuple[int, int]:
        """The axis of its rows, and the rows of its buffer. A kernel can only read buffers of one size."""
        return self.cache.axis, self.cache.most

    def in_buffer(self, shape: Sequence[Any]) -> list[Any]:
        """Return the shape of the cache's buffer. ``shape``: the shape of the cache."""
        return [const(self.cache.most, _INDEX) if at == self.cache.axis else each for at, each in enumerate(shape)]


def grow_in_place(module: tvm.IRModule, shapes: Shapes | None) -> tuple[tvm.IRModule, tuple[GrowingCache, ...]]:
    """Return a scheduled network whose ``main`` takes, after its inputs, the buffer of each growing cache and the first
    rows to write, (caches,) of int64. Return these caches too. If there are none, the module is unchanged.

    A cache is left alone if another kernel reads it before it has grown, or if anything but a kernel reads it
    afterwards.
    """
    found = list(_caches(module["main"], module, shapes)) if shapes is not None else []
    changed: Mapping[Any, PrimFunc] | None = None
    while found and changed is None:
        try:
            changed = _readers(module, found)
        except _UnreadableError as error:
            found = [each for each in found if not each.result.same_as(error.result)]
    if not found or changed is None:
        return module, ()
    return _rewritten(module, found, changed), tuple(each.cache for each in found)


class _UnreadableError(ValueError):
    """A cache cannot be read from its buffer."""

    def __init__(self, result: Any) -> None:
        super().__init__(f"{result.name} cannot be read from a buffer")
        self.result = result


def _caches(main: Any, module: Any, shapes: Shapes) -> Iterator[_Found]:
    bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    results = results_of(main)
    parameters = {parameter: at for at, parameter in enumerate(main.params)}
    uses = _uses(bound.values(), results)
    for at, result in enumerate(results):
        call = bound.get(result)
        if not _is_call(call) or uses[result] is None or sum(each.same_as(result) for each in results) > 1:
            continue
        kernel, given = module[call.args[0]], call.args[1].fields
        if AXIS not in (kernel.attrs or {}) or not is_dynamic(kernel) or len(tensors(kernel)) != 3:
            continue
        kept, axis = given[0], int(kernel.attrs[AXIS])
        most = largest_value(call.ty_args[0].shape.values[axis], shapes.dynamic)
        added = _added(given[1].ty.shape.values[axis], shapes)
        is_read_here_alone = uses.get(kept) == 1 and not any(kept.same_as(each) for each in results)
        if kept in parameters and is_read_here_alone and most is not None and added is not None:
            yield _Found(GrowingCache(parameters[kept], at, axis, most, added), result, call)


def _added(rows: Any, shapes: Shapes) -> int | str | None:
    """Return the number of new rows, or the dynamic dimension whose extent it is. None if it is neither."""
    if isinstance(rows, int | tirx.IntImm):
        return int(rows)
    name = str(getattr(rows, "name", ""))
    return name if name in {each.name for each in shapes.dynamic} else None


def _uses(values: Any, results: Sequence[Any]) -> dict[Any, int | None]:
    """Return how often each variable is an argument of a kernel. None for a variable that anything else reads."""
    found: dict[Any, int | None] = dict.fromkeys(results, 0)
    for value in values:
        if _is_call(value):
            for each in value.args[1].fields:
                count = found.get(each, 0)
                found[each] = None if count is None else count + 1
        elif not isinstance(value, relax.Tuple):
            relax.analysis.post_order_visit(value, lambda node: found.update({node: None}))
    return found


def _is_call(value: Any) -> TypeGuard[Call]:
    return isinstance(value, Call) and getattr(value.op, "name", "") == _CALL_TIR


def _readers(module: Any, found: Sequence[_Found]) -> dict[Any, PrimFunc]:
    """Return the kernels that read a grown cache, changed to read its buffer. Raises :class:`_UnreadableError`."""
    caches = {each.result: each for each in found}
    positions: dict[Any, dict[int, _Found]] = {}
    for call in (each for each in kernel_calls(module["main"]) if not any(each.same_as(one.call) for one in found)):
        places = {at: caches[each] for at, each in enumerate(call.args[1].fields) if each in caches}
        before = positions.setdefault(call.args[0], places)
        if {at: each.size for at, each in before.items()} != {at: each.size for at, each in places.items()}:
            raise _UnreadableError(next(iter((before or places).values())).result)
    return {variable: _on_buffers(module[variable], places) for variable, places in positions.items() if places}


def _on_buffers(kernel: PrimFunc, places: Mapping[int, _Found]) -> PrimFunc:
    theirs = {}
    for at, cache in places.items():
        tensor = kernel.params[at]
        theirs[tensor] = tirx.decl_buffer(cache.in_buffer(tensor.ty.shape), str(tensor.ty.dtype), tensor.name)
    parameters = [theirs.get(each, each) for each in kernel.params]
    first = next(iter(places.values())).result
    try:
        body = on_tensors(kernel.body, theirs)
    except ValueError as error:
        raise _UnreadableError(first) from error
    changed = PrimFunc(parameters, body, kernel.ret_type, kernel.attrs)
    # An extent that only the shape of the cache gave is not known any more.
    known = [*parameters, *(extent for tensor in tensors(changed) for extent in tensor.ty.shape)]
    told = [variable for tensor in theirs for extent in tensor.ty.shape for variable in undefined_vars(extent)]
    if not all(any(variable.same_as(each) for each in known) for variable in told):
        raise _UnreadableError(first)
    return changed


def _rewritten(module: Any, found: Sequence[_Found], readers: Mapping[Any, PrimFunc]) -> tvm.IRModule:
    main = module["main"]
    first_rows = relax.Var("first_rows", relax.TensorType([len(found)], _INDEX))
    functions = {**dict(module.functions.items()), **readers}
    appending: dict[Any, GlobalVar] = {}
    buffers, values = [], {}
    for at, each in enumerate(found):
        kept = main.params[each.cache.input]
        kind = relax.TensorType(each.in_buffer(kept.ty.shape.values), str(kept.ty.dtype))
        buffers.append(relax.Var(f"{kept.name}_buffer", kind))
        variable = each.call.args[0]
        key = variable, each.size
        if key not in appending:
            kernel = _append(module[variable], each, len(found))
            appending[key] = GlobalVar(f"{variable.name_hint}_{each.cache.most}_append")
            relax.expr._update_type(appending[key], kernel.ty)
            functions[appending[key]] = kernel
        given = relax.Tuple([buffers[-1], *each.call.args[1].fields[:2], first_rows, const(at, _INDEX)])
        values[each.result] = relax.op.call_tir_inplace(appending[key], given, 0, kind)
    changed = tvm.IRModule(functions, module.attrs)
    body = _Rebinder(changed, values).visit_expr(main.body)
    parameters = [*main.params, *buffers, first_rows]
    grown = relax.Function(parameters, body, None, main.is_pure, main.attrs)
    changed.update_func(changed.get_global_var("main"), grown)
    return relax.transform.Normalize()(changed)


@mutator
class _Rebinder(PyExprMutator):  # type: ignore[misc]
    """Binds other values, of other types, to variables."""

    def __init__(self, module: Any, values: Mapping[Any, Any]) -> None:
        super().__init__(module)
        self._values = values

    def visit_var_binding_(self, binding: Any) -> None:
        if binding.var not in self._values:
            super().visit_var_binding_(binding)
            return
        self.set_var_remap(binding.var, self.builder_.emit(self.visit_expr(self._values[binding.var])))


def _append(concatenation: PrimFunc, found: _Found, caches: int) -> PrimFunc:
    """Return the kernel that writes the rows of a grown cache into its buffer, from row ``first_rows[at]`` on. It takes
    the buffer, the two parts of the cache, the first rows and ``at``."""
    kept, new, _ = tensors(concatenation)
    axis = found.cache.axis
    buffer = tirx.decl_buffer(found.in_buffer(kept.ty.shape), str(kept.ty.dtype), "buffer")
    first_rows = tirx.decl_buffer((const(caches, _INDEX),), _INDEX, "first_rows")
    at = Var("at", _INDEX)
    before, added, first = kept.ty.shape[axis], new.ty.shape[axis], first_rows[(at,)]

    def rows(source: Any, count: Any, start: Any, place: Any, kind: ForKind) -> Stmt:
        """Copy ``count`` rows of ``source`` from ``start`` on to ``place``."""
        extents = [count if each == axis else extent for each, extent in enumerate(source.ty.shape)]
        loops = [Var(f"i{each}", _INDEX) for each in range(len(extents))]

        def places(offset: Any) -> list[Any]:
            return [loop + offset if each == axis else loop for each, loop in enumerate(loops)]

        body: Stmt = BufferStore(buffer, source[tuple(places(start))], places(place))
        for each, (loop, extent) in reversed(list(enumerate(zip(loops, extents, strict=True)))):
            is_outer = each == _outermost(extents)
            body = For(loop, const(0, _INDEX), extent, kind if is_outer else ForKind.SERIAL, body)
        return body

    zero, serial, parallel = const(0, _INDEX), ForKind.SERIAL, ForKind.PARALLEL
    few = added < const(FEW, _INDEX)
    fresh = (rows(new, added, zero, before, kind) for kind in (serial, parallel))
    old = IfThenElse(first < before, rows(kept, before - first, first, first, parallel), None)
    root = SBlock([], [], [], "root", SeqStmt([old, IfThenElse(few, *fresh)]))
    kernel = PrimFunc([buffer, kept, new, first_rows, at], SBlockRealize([], True, root))
    return kernel.with_attr({"tirx.noalias": True, "tirx.is_scheduled": True})


def _outermost(extents: Sequence[Any]) -> int:
    """Return the first axis longer than one: its loop runs on several threads."""
    return next((at for at, extent in enumerate(extents) if is_long(extent)), 0)
