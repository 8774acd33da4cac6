"""Operators of Relax on constants, computed by numpy: most of a network's constant expressions consist of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call

from devices.networks.graph.ir.tensors import Array, axes_of, ints, shape_of

MAX_BYTES = 64 << 20
"""Largest size of a constant that is made of smaller ones: reading a larger one could take longer than computing it."""


def _elementwise(function: Callable[..., Array]) -> Callable[[Call, list[Array]], Array]:
    return lambda _call, arrays: np.asarray(function(*arrays))


def _true_divide(left: Array, right: Array) -> Array:
    if not np.issubdtype(left.dtype, np.floating):
        raise NotImplementedError("integer division rounds differently in TVM")
    return np.asarray(left / right)


def _mod(left: Array, right: Array) -> Array:
    if left.dtype.kind not in "iu" or left.min(initial=0) < 0 or right.min(initial=1) < 1:
        raise NotImplementedError("the sign of a remainder depends on the rounding")
    return np.asarray(left % right)


def _take(call: Call, arrays: list[Array]) -> Array:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    # In TVM's default mode, indices may count from the end.
    return np.asarray(
        np.take(arrays[0], arrays[1], axis=axis, mode="clip" if str(call.attrs.mode) == "clip" else "wrap")
    )


def _strided_slice(call: Call, arrays: list[Array]) -> Array:
    axes, begin, end, *more = (ints(argument.fields) for argument in call.args[1:])
    steps = more[0] if more else (1,) * len(axes)
    if min(steps, default=1) < 1:
        raise NotImplementedError("the ends of a reversed slice count differently in TVM")
    index = [slice(None)] * arrays[0].ndim
    for axis, *bounds in zip(axes, begin, end, steps, strict=True):
        index[axis] = slice(*bounds)
    return np.asarray(arrays[0][tuple(index)])


def _slice_scatter(call: Call, arrays: list[Array]) -> Array:
    start, end, step = ints(call.args[2:])
    axis = int(call.attrs.axis)
    result = arrays[0].copy()
    np.moveaxis(result, axis, 0)[start:end:step] = np.moveaxis(arrays[1], axis, 0)
    return result


def _full(call: Call, arrays: list[Array]) -> Array:
    return np.full(shape_of(call) or (), arrays[0], str(call.ty.dtype))


#: Evaluation of each operator on constants: ``(call, tensor operands) -> result``.
_EVALUATE: Mapping[str, Callable[[Call, list[Array]], Array]] = {
    "relax.add": _elementwise(np.add),
    "relax.subtract": _elementwise(np.subtract),
    "relax.multiply": _elementwise(np.multiply),
    "relax.divide": _elementwise(_true_divide),
    "relax.mod": _elementwise(_mod),
    "relax.floor_mod": _elementwise(np.mod),
    "relax.maximum": _elementwise(np.maximum),
    "relax.minimum": _elementwise(np.minimum),
    "relax.negative": _elementwise(np.negative),
    "relax.sqrt": _elementwise(np.sqrt),
    "relax.rsqrt": _elementwise(lambda x: np.asarray(1 / np.sqrt(x), x.dtype)),
    "relax.exp": _elementwise(np.exp),
    "relax.isnan": _elementwise(np.isnan),
    "relax.where": _elementwise(np.where),
    "relax.equal": _elementwise(np.equal),
    "relax.not_equal": _elementwise(np.not_equal),
    "relax.less": _elementwise(np.less),
    "relax.less_equal": _elementwise(np.less_equal),
    "relax.greater": _elementwise(np.greater),
    "relax.greater_equal": _elementwise(np.greater_equal),
    "relax.logical_and": _elementwise(np.logical_and),
    "relax.logical_or": _elementwise(np.logical_or),
    "relax.logical_not": _elementwise(np.logical_not),
    "relax.bitwise_and": _elementwise(np.bitwise_and),
    "relax.bitwise_or": _elementwise(np.bitwise_or),
    "relax.bitwise_not": _elementwise(np.bitwise_not),
    "relax.permute_dims": lambda call, arrays: np.transpose(arrays[0], axes_of(call.attrs, arrays[0].ndim)),
    "relax.astype": lambda call, arrays: arrays[0].astype(str(call.attrs.dtype)),
    "relax.full": _full,
    "relax.take": _take,
    "relax.strided_slice": _strided_slice,
    "relax.slice_scatter": _slice_scatter,
}

#: Operators whose result is their operand in another shape; the shape is read from the call's type.
_RESHAPES = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"})


def evaluate(call: Call, operands: list[Array]) -> Array | None:
    """Return the value of ``call`` on constant operands. None if the value is too large, or the operator is not
    evaluated here."""
    shape, name = shape_of(call), call.op.name
    if shape is None:
        return None
    size = math.prod(shape) * int(tvm.DataType(str(call.ty.dtype)).itemsize)
    if size > max([MAX_BYTES, *(operand.nbytes for operand in operands)]):
        return None
    try:
        if name in _RESHAPES:
            result = operands[0].reshape(shape)
        elif name == "relax.broadcast_to":
            result = np.broadcast_to(operands[0], shape)
        elif name == "relax.arange":
            bounds = [argument.value for argument in call.args]
            if not all(isinstance(bound, int | tirx.IntImm) for bound in bounds):
                return None
            result = np.arange(*map(int, bounds), dtype=str(call.ty.dtype))
        elif name in _EVALUATE:
            result = _EVALUATE[name](call, operands)
        else:
            return None
    except (NotImplementedError, ValueError, TypeError, AttributeError, ArithmeticError, LookupError):
        return None  # left to :func:`devices.networks.graph.folding.constants.fold_constants`
    # A different type means that numpy and TVM disagree on the operator (type promotion): TVM computes it.
    return np.asarray(result, order="C") if str(result.dtype) == str(call.ty.dtype) and result.shape == shape else None
