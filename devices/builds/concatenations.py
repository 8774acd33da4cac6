"""Concatenations in place: each kernel writes its part of the whole tensor, and nothing is copied.

    a = conv(x); b = conv(y); c = concatenate(a, b)    ->    c = empty(); conv(x, part of c); conv(y, part of c)

A kernel keeps its schedule. Its argument becomes the whole tensor, and ``match_buffer`` of TensorIR binds the kernel's
old buffer to its part. Kernels that read a part access it in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar, Range
from tvm.s_tir import MatchBufferRegion, SBlock, SBlockRealize, Schedule
from tvm.tirx import BufferRegion, PrimFunc, Var, const, decl_buffer
from tvm_ffi import structural_map, structural_walk

from devices.timing.in_network import PART_SUFFIX

AXIS = "fleet_tune.concatenates_along"
"""Attribute of a kernel that only concatenates its inputs: the axis."""
IN_PLACE = "fleet_tune.in_place"
"""Attribute of such a kernel that marks its inputs to be written in place. If that is done, nothing calls the kernel
any more."""
_LANES = 16


@dataclass(frozen=True)
class _Part:
    """A part of a tensor."""

    whole: Any
    """Variable to which the whole tensor is bound."""
    axis: int
    begin: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return tuple(int(extent) for extent in self.whole.ty.shape.values)


def write_in_place(module: Any) -> Any:
    """Return ``module`` without the concatenations that are marked :data:`IN_PLACE`.

    ``module``: a module after Relax's CallTIRRewrite, whose ``main`` calls kernels on tensors that it has allocated. A
    marked concatenation stays, as a kernel that copies, if a schedule passes the memory of one of its inputs to an
    instruction, and in other cases where an input cannot become a part (see :func:`_parts`).
    """
    marked = [variable for variable, function in module.functions.items() if IN_PLACE in (function.attrs or {})]
    if not marked:
        return module
    module = tvm.IRModule(dict(module.functions.items()), module.attrs)
    for variable in marked:
        module.update_func(variable, _in_parallel(module[variable]))
    main = module["main"]
    all_bindings = [binding for block in main.body.blocks for binding in block.bindings]
    names = _Names(all_bindings)
    parts, concatenations = _parts(module, main.body.body, all_bindings, names)
    if not parts:
        return module
    wholes = {part.whole for part in parts.values()}
    allocations = {binding.var: binding for binding in all_bindings if binding.var in wholes}
    kernels = _Kernels(module)
    bindings = []
    for binding in all_bindings:
        value = binding.value
        if (
            names.of(binding.var) in parts
            or binding.var in wholes
            or any(value.same_as(each) for each in concatenations)
        ):
            continue
        if _is_kernel_call(module, value):
            arguments = [names.of(each) for each in value.args]
            own = {at: parts[each] for at, each in enumerate(arguments) if each in parts}
            bindings += [allocations.pop(part.whole) for part in own.values() if part.whole in allocations]
            binding = relax.VarBinding(binding.var, kernels.call(value, own))
        bindings.append(binding)
    body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return kernels.module_of(changed, concatenations)


def _in_parallel(kernel: PrimFunc) -> PrimFunc:
    """Return a concatenating kernel, scheduled: its rows run in parallel, and its last axis is vectorised."""
    schedule = Schedule(tvm.IRModule({"main": kernel}), debug_mask="none")
    [*rows, last] = schedule.get_loops(schedule.get_sblock("T_concat"))
    if rows:
        schedule.parallel(schedule.fuse(*rows))
    schedule.vectorize(schedule.split(last, [None, _LANES])[1])
    return schedule.mod["main"]


class _Names:
    """Aliases: of all variables that a tensor is bound to, the first one stands for the tensor."""

    def __init__(self, bindings: Sequence[Any]) -> None:
        self._first: dict[Any, Any] = {}
        for binding in bindings:
            if isinstance(binding.value, relax.Var):
                self._first[binding.var] = self.of(binding.value)

    def of(self, expression: Any) -> Any:
        """Return the first variable that the tensor of a variable was bound to. Any other expression is returned
        unchanged."""
        return self._first.get(expression, expression) if isinstance(expression, relax.Var) else expression


def _parts(module: Any, result: Any, bindings: Sequence[Any], names: _Names) -> tuple[dict[Any, _Part], list[Call]]:
    """Return the parts that tensors become, by the variable of each tensor, and the calls of the concatenations that
    are done in place."""
    allocated = {each.var for each in bindings if _operator(each.value) == "relax.builtin.alloc_tensor"}
    of_kernels = allocated - _read_otherwise(module, result, bindings, names)
    parts: dict[Any, _Part] = {}
    concatenations = []
    of_kernels -= _addressed(module, bindings, names)
    for binding in bindings:
        call = binding.value
        if not _is_kernel_call(module, call) or IN_PLACE not in module[call.op].attrs:
            continue
        axis, [*inputs, whole] = int(module[call.op].attrs[AXIS]), map(names.of, call.args)
        wholes = {part.whole for part in parts.values()}
        usable = of_kernels - parts.keys() - wholes - {whole}
        if whole not in allocated - parts.keys() or len({*inputs} & usable) < len(inputs):
            continue
        begin = 0
        for each in inputs:
            parts[each] = _Part(whole, axis, begin)
            begin += int(each.ty.shape.values[axis])
        concatenations.append(call)
    return parts, concatenations


def _read_otherwise(module: Any, result: Any, bindings: Sequence[Any], names: _Names) -> set[Any]:
    """Return the variables of tensors that are read by anything but a kernel."""
    found: set[Any] = set()

    def add(expression: Any) -> None:
        if isinstance(expression, relax.Var):
            found.add(names.of(expression))

    relax.analysis.post_order_visit(result, add)
    for binding in bindings:
        if not _is_kernel_call(module, binding.value) and not isinstance(binding.value, relax.Var):
            relax.analysis.post_order_visit(binding.value, add)
    return found


def _addressed(module: Any, bindings: Sequence[Any], names: _Names) -> set[Any]:
    """Return the variables of tensors that a kernel passes to an instruction as contiguous memory. They cannot become
    parts, which have other strides."""
    found: set[Any] = set()
    for binding in bindings:
        if _is_kernel_call(module, binding.value):
            kernel, given = module[binding.value.op], map(names.of, binding.value.args)
            matched = _matched(kernel)
            found.update(
                tensor
                for param, tensor in zip(kernel.params, given, strict=True)
                if any(param.same_as(each) for each in matched)
            )
    return found


def _matched(kernel: PrimFunc) -> list[Any]:
    """Return the buffers that blocks of a kernel access under another name (``match_buffer``)."""
    found: list[Any] = []
    structural_walk(
        kernel.body, (SBlock, lambda block: found.extend(each.source.source for each in block.match_buffers))
    )
    return found


def _is_kernel_call(module: Any, value: Any) -> bool:
    if not (isinstance(value, Call) and isinstance(value.op, GlobalVar)):
        return False
    kernel = module[value.op]
    return isinstance(kernel, PrimFunc) and isinstance(kernel.body, SBlockRealize)


def _operator(value: Any) -> str:
    named = isinstance(value, Call) and isinstance(value.op, tvm.ir.Op)
    return str(value.op.name) if named else ""


class _Kernels:
    """The kernels of a module, and their variants that work on parts."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._made: dict[Any, tuple[GlobalVar, PrimFunc]] = {}

    def call(self, call: Call, parts: Mapping[int, _Part]) -> Call:
        """Return a call in which the arguments at the positions of ``parts`` are replaced by whole tensors."""
        if not parts:
            return call
        key = (call.op, *((at, part.axis, part.begin, part.shape) for at, part in parts.items()))
        if key not in self._made:
            variable = GlobalVar(f"{call.op.name_hint}{PART_SUFFIX}{len(self._made)}")
            types = [parts[at].whole.ty if at in parts else each for at, each in enumerate(call.op.ty.params)]
            relax.expr._update_type(variable, relax.FuncType(types, call.op.ty.ret))
            self._made[key] = variable, _on_parts(self._module[call.op], parts)
        arguments = [parts[at].whole if at in parts else each for at, each in enumerate(call.args)]
        return Call(self._made[key][0], arguments, call.attrs, call.ty_args)

    def module_of(self, main: Any, concatenations: Sequence[Call]) -> Any:
        """Return the module with a new ``main``. Kernels that it no longer calls are dropped, if they were replaced by
        variants or called by ``concatenations``."""
        called: set[str] = set()
        relax.analysis.post_order_visit(
            main, lambda each: called.add(each.name_hint) if isinstance(each, GlobalVar) else None
        )
        own = {key[0].name_hint for key in self._made} | {call.op.name_hint for call in concatenations}
        functions = {
            variable: function
            for variable, function in self._module.functions.items()
            if variable.name_hint not in own - called
        }
        functions.update(self._made.values())
        changed = tvm.IRModule(functions, self._module.attrs)
        changed.update_func(changed.get_global_var("main"), main)
        return changed


def _on_parts(kernel: PrimFunc, parts: Mapping[int, _Part]) -> PrimFunc:
    """Return a variant of a kernel that takes whole tensors at the positions of ``parts``, and works on its part of
    each."""
    root, params, matched = kernel.body.block, list(kernel.params), []
    body = root.body
    for at, part in parts.items():
        own = params[at]
        whole = decl_buffer(list(part.whole.ty.shape.values), str(own.ty.dtype), f"{own.name}_whole")
        region = [
            Range.from_min_extent(const(part.begin if axis == part.axis else 0, "int64"), extent)
            for axis, extent in enumerate(own.ty.shape)
        ]
        # An argument begins at offset 0; the offset of a part is not known.
        within = decl_buffer(own.ty.shape, own.ty.dtype, own.name, elem_offset=Var("offset", "int64"), offset_factor=1)
        body = structural_map(body, (Var, lambda each, own=own, new=within: new if each.same_as(own) else each))
        matched.append(MatchBufferRegion(within, BufferRegion(whole, region)))
        params[at] = whole
    block = SBlock(
        root.iter_vars,
        [],  # nothing uses the regions of the root block
        [],
        root.name_hint,
        body,
        root.init,
        root.alloc_buffers,
        [*root.match_buffers, *matched],
        root.annotations,
    )
    changed = PrimFunc(params, SBlockRealize([], True, block), kernel.ret_type)
    return changed.with_attr(dict(kernel.attrs))
