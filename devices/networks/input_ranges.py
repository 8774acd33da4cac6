"""Inputs for networks that come without any, within the ranges that the graph allows.

Each input is traced through operators that pass its values on (casts, reshapes, negation, additions of constants) to
operators that allow only some values. Indices lie within the indexed axis, logarithms and roots get positive numbers,
divisors stay away from zero, and operands of inverse sines stay in the domain. Other floats are standard normal,
integers are 0 or 1, and booleans are random, but True first along the last axis: the softmax of a row that a mask hides
entirely is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax, tirx

from devices.timing.arguments import is_float, numpy_dtype

Array = npt.NDArray[Any]

_SAME_VALUES = frozenset(
    f"relax.{name}"
    for name in (
        "astype", "reshape", "expand_dims", "squeeze", "permute_dims", "flatten", "broadcast_to", "strided_slice",
        "repeat", "tile", "flip", "stop_lift_params", "nn.dropout", "layout_transform", "dynamic_strided_slice",
    )
)  # fmt: skip
_POSITIVE = frozenset(f"relax.{name}" for name in ("log", "log2", "log10", "sqrt", "rsqrt"))
_DIVIDING = frozenset(f"relax.{name}" for name in ("divide", "floor_divide", "mod", "floor_mod"))
_DOMAINS = {
    "relax.asin": (-0.9, 0.9),
    "relax.acos": (-0.9, 0.9),
    "relax.atanh": (-0.9, 0.9),
    "relax.acosh": (1.1, math.inf),
}
MADE_UP = "made up, in the ranges that the graph allows"
_SMALLEST, _SMALLEST_DIVISOR = 0.1, 0.5
_CONSTANT_LIMIT = 1 << 22


@dataclass
class ValueRange:
    """Values that an input may have, both ends included."""

    low: float = -math.inf
    high: float = math.inf
    index: bool = False
    """True for an index, which takes any of these values."""

    def narrow(self, low: float, high: float) -> None:
        """Narrow the range, unless nothing would be left of it: if two demands exclude each other, the first one
        holds."""
        low, high = max(self.low, low), min(self.high, high)
        if low <= high:
            self.low, self.high = low, high


@dataclass(frozen=True)
class _Trace:
    """A value ``sign * input + shift``, with shifts from ``shift_low`` to ``shift_high``."""

    source: int
    """Position of the input."""
    sign: int = 1
    shift_low: float = 0.0
    shift_high: float = 0.0


def input_ranges(module: Any) -> list[ValueRange]:
    """Return the range of each input of ``main``."""
    main = module["main"]
    ranges = [ValueRange() for _ in main.params]
    traces = {hash(parameter): _Trace(at) for at, parameter in enumerate(main.params)}
    for block in main.body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            if isinstance(call, ir.Var) and hash(call) in traces:
                traces[hash(binding.var)] = traces[hash(call)]
            if not isinstance(call, ir.Call) or not isinstance(call.op, ir.Op):
                continue
            for operand, low, high, index in _demands(call):
                trace = traces.get(hash(operand))
                if trace is not None:
                    _narrow(ranges[trace.source], trace, low, high, index)
            followed = _followed(call, traces)
            if followed is not None:
                traces[hash(binding.var)] = followed
    return ranges


def example_inputs(module: Any, positive: bool = False, draw: int = 0) -> tuple[Array, ...]:
    """Return inputs of ``main`` within their ranges, the same in every process.

    Args:
        module: the network.
        positive: make floats positive where both signs are allowed.
        draw: number of the draw. Each number gives other inputs.
    """
    arrays = []
    for at, (parameter, within) in enumerate(zip(module["main"].params, input_ranges(module), strict=True)):
        shape = tuple(int(extent) for extent in parameter.ty.shape.values)
        arrays.append(_array(shape, str(parameter.ty.dtype), (draw, at), within, positive))
    return tuple(arrays)


def _array(shape: tuple[int, ...], dtype: str, seed: tuple[int, int], within: ValueRange, positive: bool) -> Array:
    rng = np.random.default_rng(seed)
    if is_float(dtype):
        low, high = within.low, within.high
        if positive and low == -math.inf:
            low = min(_SMALLEST_DIVISOR, high)
        if low == -math.inf and high == math.inf:
            return np.asarray(rng.standard_normal(shape).astype(numpy_dtype(dtype)))
        low, high = (high - 1, high) if low == -math.inf else (low, min(high, low + 1))
        return np.asarray((low + (high - low) * rng.random(shape)).astype(numpy_dtype(dtype)))
    if dtype == "bool":
        mask = np.asarray(rng.integers(0, 2, shape), bool)
        if shape:
            mask[..., :1] = True
        return mask
    least = max(0, math.ceil(within.low)) if within.low > -math.inf else 0
    if within.index or within.high < least + 1:
        most = max(least, math.floor(within.high)) if within.high < math.inf else least + 1
    else:
        most = least + 1
    return np.asarray(rng.integers(least, most + 1, shape).astype(numpy_dtype(dtype)))


def _narrow(range_: ValueRange, trace: _Trace, low: float, high: float, index: bool) -> None:
    """Narrow an input so that ``sign * input + shift`` is between ``low`` and ``high``."""
    low, high = low - trace.shift_low, high - trace.shift_high
    range_.narrow(*((low, high) if trace.sign > 0 else (-high, -low)))
    range_.index = range_.index or index


def _demands(call: Any) -> Iterator[tuple[Any, float, float, bool]]:
    """Yield each restricted operand of a call, its least and its largest value, and whether it is an index."""
    name, operands = call.op.name, list(call.args)
    if name in _POSITIVE:
        yield operands[0], _SMALLEST, math.inf, False
    elif name in _DIVIDING:
        yield operands[1], _SMALLEST_DIVISOR, math.inf, False
    elif name in _DOMAINS:
        yield operands[0], *_DOMAINS[name], False
    elif name == "relax.power":
        exponent = _constant(operands[1])
        if exponent is None or (exponent != np.round(exponent)).any() or (exponent < 0).any():
            yield operands[0], _SMALLEST, math.inf, False
    elif name in ("relax.take", "relax.gather_elements", "relax.scatter_elements"):
        extents = _extents(operands[0])
        axis = getattr(call.attrs, "axis", None)
        if extents:
            bound = math.prod(extents) if axis is None else extents[int(axis)]
            yield operands[1], 0, bound - 1, True
    elif name in ("relax.gather_nd", "relax.scatter_nd") and _extents(operands[0]):
        yield operands[1], 0, min(_extents(operands[0])) - 1, True
    elif name == "relax.index_tensor" and isinstance(operands[1], relax.Tuple):
        for operand, extent in zip(operands[1].fields, _extents(operands[0]), strict=False):
            yield operand, 0, extent - 1, True
    elif name == "relax.one_hot":
        yield operands[0], 0, int(call.attrs.depth) - 1, True


def _followed(call: Any, traces: dict[int, _Trace]) -> _Trace | None:
    """Return the trace of a call's result. None if the result does not follow an input."""
    name, operands = call.op.name, list(call.args)
    of = [traces.get(hash(operand)) for operand in operands]
    if name in _SAME_VALUES:
        return of[0]
    if name == "relax.negative" and of[0] is not None:
        return _Trace(of[0].source, -of[0].sign, -of[0].shift_high, -of[0].shift_low)
    if name == "relax.where":
        # Frontends wrap negative indices like this: where(i < 0, i + extent, i).
        return of[2] if of[2] is not None else of[1]
    if name in ("relax.add", "relax.subtract"):
        for trace, other, sign in ((of[0], operands[1], 1), (of[1], operands[0], 1 if name == "relax.add" else -1)):
            constant = _constant(other)
            if trace is None or constant is None or not constant.size:
                continue
            shifts = constant if name == "relax.add" or trace is of[1] else -constant
            low, high = (trace.shift_low, trace.shift_high) if sign > 0 else (-trace.shift_high, -trace.shift_low)
            return _Trace(trace.source, sign * trace.sign, low + float(shifts.min()), high + float(shifts.max()))
    return None


def _constant(expression: Any) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    if not isinstance(expression, ir.GenericConst) or math.prod(_extents(expression)) > _CONSTANT_LIMIT:
        return None
    return np.asarray(expression.value.numpy().astype(np.float64))


def _extents(expression: Any) -> list[int]:
    """Return the shape of a tensor. Empty if it is not known."""
    values = getattr(getattr(expression.ty, "shape", None), "values", None)
    if values is None or not all(isinstance(extent, int | tirx.IntImm) for extent in values):
        return []
    return [int(extent) for extent in values]
