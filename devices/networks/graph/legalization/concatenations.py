"""Concatenations in place: kernels write the inputs directly into the result (:mod:`devices.builds.concatenations`).
They are not tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax, topi
from tvm.ir import Call, GlobalVar
from tvm.s_tir import SBlockRealize

from devices.builds.concatenations import AXIS, IN_PLACE
from devices.networks.graph.ir.main_function import with_values
from devices.sketches.dynamic.rows import is_dynamic


def legalize_concatenation(builder: relax.BlockBuilder, call: Call) -> Any:
    """Return the kernel of a call of ``relax.concat``, with the axis as an attribute."""
    given, axis = call.args[0], call.attrs.axis
    while isinstance(given, relax.Var) and isinstance(bound := builder.lookup_binding(given), relax.Tuple | relax.Var):
        given = bound
    if axis is None or not isinstance(given, relax.Tuple):
        return call.op.get_attr("FLegalize")(builder, call)
    axis = int(axis) % len(call.ty.shape.values)
    return builder.call_te(topi.concatenate, list(given.fields), axis, primfunc_attrs={AXIS: axis})


def mark_in_place(module: Any) -> Any:
    """Return ``module``, lowered, with concatenations marked :data:`~devices.builds.concatenations.IN_PLACE` if their
    inputs are results of kernels that only kernels read. A concatenation that is fused with other operators is not
    marked."""
    marked: dict[Any, GlobalVar] = {}
    calls: dict[Any, Call] = {}
    for binding in _in_place(module):
        call, variable = binding.value, binding.value.args[0]
        if variable not in marked:
            marked[variable] = GlobalVar(f"{variable.name_hint}_in_place")
            relax.expr._update_type(marked[variable], variable.ty)
        calls[binding.var] = Call(call.op, [marked[variable], *call.args[1:]], call.attrs, call.ty_args)
    if not calls:
        return module
    kernels = {new: module[old].with_attr(IN_PLACE, 1) for old, new in marked.items()}
    changed = tvm.IRModule({**dict(module.functions.items()), **kernels}, module.attrs)
    main = module.get_global_var("main")
    changed.update_func(main, with_values(module[main], calls))
    return relax.transform.DeadCodeElimination(["main"])(changed)


def _in_place(module: Any) -> Iterator[Any]:
    """Yield the bindings of the concatenations that can be written in place."""
    bindings = _bindings(module)
    free = {
        each.var for each in bindings if _is_kernel_call(module, each.value) and _depends_on_inputs(module, each.value)
    }
    free -= _read_otherwise(module["main"].body.body, [each.value for each in bindings])
    for binding in bindings:
        call = binding.value
        if not _is_kernel_call(module, call) or AXIS not in module[call.args[0]].attrs:
            continue
        if is_dynamic(module[call.args[0]]):  # its parts have no fixed places
            continue
        inputs = list(call.args[1].fields)
        if len({*inputs} & free) == len(inputs):
            # A tensor can be a part of only one concatenation, and a result that is written in parts cannot itself be a
            # part.
            free -= {*inputs, binding.var}
            yield binding


def _bindings(module: Any) -> list[Any]:
    return [binding for block in module["main"].body.blocks for binding in block.bindings]


def _is_kernel_call(module: Any, value: Any) -> bool:
    """Return true for a call of a kernel that consists of blocks and has one result."""
    if not (isinstance(value, Call) and getattr(value.op, "name", "") == "relax.call_tir"):
        return False
    return isinstance(value.ty, relax.TensorType) and isinstance(module[value.args[0]].body, SBlockRealize)


def _depends_on_inputs(module: Any, call: Call) -> bool:
    """Return true for a kernel that computes something when the network runs. Kernels of constants alone are computed
    before, and a reshape becomes a view."""
    has_input = any(isinstance(each, relax.Var) for each in call.args[1].fields)
    return has_input and not relax.analysis.has_reshape_pattern(module[call.args[0]])


def _read_otherwise(result: Any, values: Sequence[Any]) -> set[Any]:
    """Return the variables that anything but a kernel reads."""
    found: set[Any] = set()

    def add(expression: Any) -> None:
        if isinstance(expression, relax.Var):
            found.add(expression)

    relax.analysis.post_order_visit(result, add)
    for value in values:
        if not (isinstance(value, Call) and getattr(value.op, "name", "") == "relax.call_tir"):
            relax.analysis.post_order_visit(value, add)
    return found
