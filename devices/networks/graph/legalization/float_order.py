"""Comparisons, places of extremes and sorts of floats that may be NaN.

TVM compares floats as if all of them had an order. With NaN, its sorts give arbitrary results, and its simplifier takes
``x != x`` for false. Here NaN is unequal to everything, and sorts take it for the largest number. The place of a
maximum, and of a minimum too, is the first NaN, as in PyTorch. Floats are ordered by integers that have the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import Call
from tvm.tirx import Select, const

from devices.networks.graph.ir.main_function import replace_calls

Legalize = Callable[[relax.BlockBuilder, Call], relax.Expr]

_SORTS = ("relax.sort", "relax.argsort", "relax.topk")


def order_key(x: te.Tensor, nan_is_largest: bool = True) -> te.Tensor:
    """Return integers of the same order as ``x``, in which both zeros are equal; NaN is the largest or the smallest."""
    wide = "float64" if x.dtype == "float64" else "float32"
    integer = wide.replace("float", "int")
    bound = tirx.max_value(integer) if nan_is_largest else tirx.min_value(integer)

    def key(*at: Any) -> Any:
        value = x(*at).astype(wide)
        bits = tirx.reinterpret(integer, Select(value == const(0, wide), const(0, wide), value))
        return Select(tirx.isnan(value), bound, _flipped(bits))

    return te.compute(x.shape, key, name="order_key", tag=topi.tag.INJECTIVE)


def from_order_key(keys: te.Tensor, dtype: str) -> te.Tensor:
    """Return the floats whose :func:`order_key` is ``keys``."""
    wide = str(keys.dtype).replace("int", "float")

    def value(*at: Any) -> Any:
        return tirx.reinterpret(wide, _flipped(keys(*at))).astype(dtype)

    return te.compute(keys.shape, value, name="from_order_key", tag=topi.tag.INJECTIVE)


def _flipped(bits: Any) -> Any:
    """Return the bits, with those after the sign flipped if the sign is set. Applied twice, it changes nothing."""
    dtype = str(bits.ty)
    return Select(bits < const(0, dtype), bits ^ tirx.max_value(dtype), bits)


def replace_sorts(module: Any) -> Any:
    """Return ``module`` with each sort of floats in ``main`` replaced by a sort of their keys."""
    return replace_calls(module, dict.fromkeys(_SORTS, _sort_of_keys))


def _sort_of_keys(builder: relax.BlockBuilder, call: Call) -> Any:
    """Return a sort of the keys of floats. If the call sorts something else, return the call."""
    if not _is_float(call.args[0]):
        return call
    dtype = str(call.args[0].ty.dtype)

    def floats(keys: Any) -> Any:
        return builder.emit_te(from_order_key, builder.emit(keys), dtype, primfunc_name_hint="sorted")

    keys = builder.emit_te(order_key, call.args[0], primfunc_name_hint="order_key")
    found = builder.emit(Call(call.op, [keys], call.attrs))
    kind = getattr(call.attrs, "ret_type", "values" if call.op.name == "relax.sort" else "indices")
    if kind == "indices":
        return found
    if kind == "values":
        return floats(found)
    values = floats(relax.TupleGetItem(found, 0))
    return relax.Tuple([values, builder.emit(relax.TupleGetItem(found, 1))])


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype).startswith(("float", "bfloat"))


def _place(find: Callable[..., te.Tensor], nan_is_largest: bool) -> Legalize:
    """Return the lowering of ``argmax`` or ``argmin``."""

    def legalize(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
        if not _is_float(call.args[0]):
            return call.op.get_attr("FLegalize")(builder, call)

        def place(x: te.Tensor) -> te.Tensor:
            axis = None if call.attrs.axis is None else int(call.attrs.axis)
            return find(order_key(x, nan_is_largest), axis, bool(call.attrs.keepdims))

        return builder.call_te(place, call.args[0], primfunc_name_hint=call.op.name.removeprefix("relax."))

    return legalize


def _comparison(compare: Callable[[Any, Any], Any]) -> Legalize:
    """Return the lowering of ``equal`` or ``not_equal``: for floats, and for booleans, which LLVM does not compare.
    ``compare`` takes an element of each operand."""

    def legalize(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
        is_boolean = str(call.args[0].ty.dtype) == "bool"
        if not _is_float(call.args[0]) and not is_boolean:
            return call.op.get_attr("FLegalize")(builder, call)

        def compared(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            shape = [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in call.ty.shape.values]
            wide = [topi.broadcast_to(topi.cast(x, "int8") if is_boolean else x, shape) for x in (a, b)]
            return te.compute(
                shape, lambda *at: compare(*(x(*at) for x in wide)), name="compared", tag=topi.tag.BROADCAST
            )

        return builder.call_te(compared, *call.args, primfunc_name_hint=call.op.name.removeprefix("relax."))

    return legalize


def _are_equal(a: Any, b: Any) -> Any:
    return a == b if _is_integer(a) else tirx.all(a == b, tirx.Not(_is_nan(a)))


def _differ(a: Any, b: Any) -> Any:
    return a != b if _is_integer(a) else tirx.any(a != b, _is_nan(a), _is_nan(b))


def _is_nan(value: Any) -> Any:
    return tirx.isnan(value.astype("float32") if str(value.ty) == "bfloat16" else value)


def _is_integer(value: Any) -> bool:
    return str(value.ty).startswith("int")


LEGALIZED: dict[str, Legalize] = {
    "relax.argmax": _place(topi.argmax, True),
    "relax.argmin": _place(topi.argmin, False),
    "relax.equal": _comparison(_are_equal),
    "relax.not_equal": _comparison(_differ),
}
"""Lowerings of operators, in the form of :data:`devices.networks.graph.legalization.operators.LEGALIZED`."""
