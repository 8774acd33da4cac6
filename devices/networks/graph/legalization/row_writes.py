"""Writes of rows along an inner axis without transposes, as when a decoder writes new keys into a cache of a fixed
extent.

Indices of ``relax.scatter_nd`` refer to the first axes. For other axes, frontends transpose the data before it and back
after it: three copies of a cache to change one row. Here one kernel takes the axes in any order.

    transpose(scatter_nd(transpose(data, order), indices, updates), order back)    ->    scatter_nd(data, ..., order)

The same kernel writes rows of an input that are replaced at fixed places, such as a prompt's, because it may overwrite
the input (:mod:`devices.networks.caches.static_caches`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.networks.graph.ir.calls import constant, is_call
from devices.networks.graph.ir.main_function import reads, results_of, with_main_visited
from devices.networks.graph.ir.tensors import axes_of, ints, shape_of
from devices.networks.graph.legalization.scatters import attributes_of_nd, scatter_nd


def write_inner_rows(module: Any) -> Any:
    """Return ``module`` with the transposes around ``relax.scatter_nd`` merged into its kernel."""
    slices = _slices(module["main"])
    module = with_main_visited(module, _SliceWriter(module, slices)) if slices else module
    found = _found(module["main"])
    if not found:
        return module
    changed = with_main_visited(module, _Writer(module, found))
    return relax.transform.DeadCodeElimination(["main"])(changed)


def written_rows(builder: relax.BlockBuilder, operands: Sequence[Any], reduction: str, order: Sequence[int]) -> Any:
    """Return a call of the kernel of ``relax.scatter_nd``. ``order``: the order of the data's axes, see
    :func:`devices.networks.graph.legalization.scatters.scatter_nd`."""
    attributes = attributes_of_nd(reduction, order)
    arguments = *operands, reduction, list(order)
    return builder.call_te(scatter_nd, *arguments, primfunc_name_hint="scatter_nd", primfunc_attrs=attributes)


def _slices(main: Any) -> dict[Any, Any]:
    """Return the indices of the rows that are replaced in inputs, by the variables of the resulting outputs."""
    bound: dict[Any, Any] = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    uses = Counter(variable for value in [*bound.values(), main.body.body] for variable in reads(value))
    inputs, results = set(main.params), set(results_of(main))
    found: dict[Any, Any] = {}
    for variable, call in bound.items():
        if not is_call(call, "relax.slice_scatter") or variable not in results:
            continue
        data, updates = map(shape_of, call.args[:2])
        if call.args[0] not in inputs or uses[call.args[0]] > 1 or data is None or updates is None:
            continue
        if not all(isinstance(each, tirx.IntImm) for each in call.args[2:]):
            continue
        start, end, step = ints(call.args[2:])
        axis = int(call.attrs.axis) % len(data)
        places = np.arange(data[axis])[start:end:step]
        if len(places) == updates[axis]:
            found[variable] = constant(places[:, None])
    return found


@mutator
class _SliceWriter(PyExprMutator):  # type: ignore[misc]
    """Rewrites writes of slices as writes of rows at indices."""

    def __init__(self, module: Any, places: Mapping[Any, Any]) -> None:
        super().__init__(module)
        self._places = places

    def visit_var_binding_(self, binding: Any) -> None:
        if (places := self._places.get(binding.var)) is not None:
            rank = len(binding.var.ty.shape.values)
            axis = int(binding.value.attrs.axis) % rank
            order = [axis, *(each for each in range(rank) if each != axis)]
            data, rows = (
                self.builder_.emit(relax.op.permute_dims(self.visit_expr(each), order))
                for each in binding.value.args[:2]
            )
            written = self.builder_.emit(relax.op.scatter_nd(data, places, rows, "update"))
            back = [order.index(each) for each in range(rank)]
            binding = relax.VarBinding(binding.var, relax.op.permute_dims(written, back))
        super().visit_var_binding_(binding)


@dataclass(frozen=True)
class _Write:
    """A call of ``relax.scatter_nd`` on transposed data."""

    data: Any
    """Variable of the data before the transpose, or of the result of another write."""
    order: tuple[int, ...]
    """Axes of the transpose of the data."""


def _found(main: Any) -> dict[Any, _Write]:
    """Return the writes that are followed by the inverse transpose, by the variables of their results."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    bound: dict[Any, Any] = {binding.var: binding.value for binding in bindings}
    writes: dict[Any, _Write] = {}
    for variable, call in bound.items():
        if not is_call(call, "relax.scatter_nd") or not isinstance(variable, relax.DataflowVar):
            continue
        if any(shape_of(each) is None for each in call.args):
            continue  # refused when the operator is lowered
        data = call.args[0]
        before: Any = bound.get(data)
        if data in writes:
            writes[variable] = _Write(data, writes[data].order)
        elif is_call(before, "relax.permute_dims"):
            writes[variable] = _Write(before.args[0], _axes(before))
    wanted = {
        call.args[0]
        for call in bound.values()
        if is_call(call, "relax.permute_dims")
        and call.args[0] in writes
        and _is_identity(_composed(writes[call.args[0]].order, _axes(call)))
    }
    for variable in reversed(writes):
        if variable in wanted and writes[variable].data in writes:
            wanted.add(writes[variable].data)
    return {variable: write for variable, write in writes.items() if variable in wanted}


def _axes(transpose: Call) -> tuple[int, ...]:
    return axes_of(transpose.attrs, len(transpose.ty.shape.values))


def _composed(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the axes of a transpose followed by another."""
    return [first[axis] for axis in second]


def _is_identity(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(len(axes)))


@mutator
class _Writer(PyExprMutator):  # type: ignore[misc]
    """Writes the rows into data that are not transposed. Readers of the transposed data transpose the result
    themselves."""

    def __init__(self, module: Any, found: Mapping[Any, _Write]) -> None:
        super().__init__(module)
        self._found = found
        self._written: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        write = self._found.get(binding.var)
        if write is None:
            super().visit_var_binding_(binding)
            return
        call = binding.value
        data = self._written[write.data] if write.data in self._written else self.visit_expr(write.data)
        operands = data, *map(self.visit_expr, call.args[1:])
        rows = written_rows(self.builder_, operands, str(call.attrs.reduction), write.order)
        written = self._written[binding.var] = self.builder_.emit(rows)
        self.set_var_remap(binding.var, self.builder_.emit(relax.op.permute_dims(written, list(write.order))))

    def visit_call_(self, call: Call) -> Any:
        if not is_call(call, "relax.permute_dims") or call.args[0] not in self._written:
            return super().visit_call_(call)
        written, axes = self._written[call.args[0]], _composed(self._found[call.args[0]].order, _axes(call))
        return written if _is_identity(axes) else relax.op.permute_dims(written, axes)
