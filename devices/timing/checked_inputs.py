"""Inputs of the runs whose outputs are compared, drawn as a plan says (:mod:`devices.builds.checks.check_plan`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from devices.protocol import CheckPlan, InputDraw, SpecialDraw, SpecialRows, TensorSpec
from devices.timing.arguments import Array, each_input, generator, is_float, numpy_dtype

# Integers of a narrower range are drawn uniformly: all of its values occur soon enough.
_WIDE_RANGE = 64
# Limit of the halves and whole numbers, and numbers beside the ends of small integer types.
_LARGEST_TIE = 300.0
_BESIDE = (127.5, 128.5, 254.5, 255.5, 0.49999997, 1.0)
# Exponents of two of the largest and of the smallest (subnormal) number.
_EXPONENTS = {"float64": (1023, -1074), "float32": (127, -149), "float16": (15, -24), "bfloat16": (127, -133)}
_LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}
# exp(_HUGE) is infinite, and exp(-_HUGE) is 0. The variance of values that are multiplied by _SMALL is less than the
# number that is added to a variance to keep it above zero.
_HUGE, _SMALL = 2.0**14, 2.0**-8
# Shares of numbers of all magnitudes, of ties, and of zeros and subnormal numbers.
_ALL_MAGNITUDES, _TIES, _ZEROS, _FEW_ZEROS = 0.25, 0.125, 0.125, 1 / 32


def make_checked_inputs(
    task_id: str,
    args: Sequence[TensorSpec],
    outputs: Sequence[int],
    positive: bool,
    plan: CheckPlan,
    special: bool = False,
) -> list[Array]:
    """Return what :func:`each_checked_input` yields."""
    return list(each_checked_input(task_id, args, outputs, positive, plan, special))


def each_checked_input(
    task_id: str,
    args: Sequence[TensorSpec],
    outputs: Sequence[int],
    positive: bool,
    plan: CheckPlan,
    special: bool = False,
) -> Iterator[Array]:
    """Yield arrays for all arguments of a kernel for a run whose output is compared; outputs are zero.

    The values differ from those of the timed runs, which may still be in memory. If the plan has no draws, they are
    drawn as for timing (:func:`devices.timing.arguments.each_input`). If ``positive``, floats that are summed are in
    [0.5, 1), or 2**-6 where the plan has its ``rest``; other floats are in [0.1, 1.1). If ``special``, they include the
    plan's special values, of both signs.
    """
    if not plan.draws:
        yield from each_input(f"{task_id}|check", args, outputs, positive)
        return
    draws = [each.base for each in plan.specials] if special else plan.draws
    for index, (spec, draw) in enumerate(zip(args, draws, strict=True)):
        if index in outputs:
            yield np.zeros(spec.shape, numpy_dtype(spec.dtype))
            continue
        rng = generator(f"{task_id}|{'special' if special else 'check'}|{index}")
        held = numpy_dtype(spec.dtype)
        numbers = spec.numbers
        if not is_float(numbers.dtype):
            drawn: Array = _integers(rng, numbers, draw)
        elif special:
            drawn = _special_floats(rng, numbers, draw, plan.specials[index], task_id, index)
        elif positive:
            drawn = _positive_floats(rng, numbers.shape, draw)
        else:
            drawn = _floats(rng, numbers.shape, draw)
        drawn = drawn.astype(numpy_dtype(numbers.dtype), copy=False)
        yield drawn.view(held)[..., 0] if spec.holds else drawn


def _integers(rng: np.random.Generator, spec: TensorSpec, draw: InputDraw) -> Array:
    """Return integers in the range of ``draw``: uniform ones, and in a wide range about half uniform, a quarter of all
    magnitudes, and a quarter at the ends and around 0."""
    low, last = int(draw.low), int(draw.high) - 1
    dtype = np.dtype(np.int8) if spec.dtype == "bool" else numpy_dtype(spec.dtype)
    values: Array = rng.integers(low, last, spec.shape, dtype.type, endpoint=True)
    if spec.dtype == "bool" and draw.selected:
        return _few_alike(rng, spec.shape, draw.selected)
    if last - low >= _WIDE_RANGE and draw.selected:  # hardly two alike, the largest often at an end
        values = np.where(_at_ends(spec.shape, draw.ends), values, values // 2)
    elif last - low >= _WIDE_RANGE:
        kind = rng.integers(0, 4, spec.shape, np.uint8)
        # The range of a shifted number is smaller by a power of two.
        shifted = values >> rng.integers(0, dtype.itemsize * 8, spec.shape, np.uint8).astype(dtype)
        chosen = [n for n in (low, low + 1, low + 2, -2, -1, 0, 1, 2, last - 1, last) if low <= n <= last]
        ends = np.array(chosen, dtype)[rng.integers(0, len(chosen), spec.shape, np.uint8)]
        values = np.where(kind == 0, ends, np.where((kind == 1) & (shifted >= low), shifted, values))
    if draw.selected and low < 0:
        values = _with_signs(rng, values, draw.selected)
    return values if draw.zero else np.where(values == 0, dtype.type(last), values)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], draw: InputDraw) -> NDArray[np.float32]:
    if draw.steps == 1:
        values = (rng.integers(0, 2, shape, np.int8) * 2 - 1).astype(np.float32) * np.float32(draw.high)
    elif draw.steps:
        values = rng.integers(-draw.steps, draw.steps, shape, np.int8 if draw.steps < 128 else np.int16) * np.float32(
            draw.high / draw.steps
        )
    else:
        values = rng.random(shape, np.float32) * np.float32(2 * (draw.high - draw.low))
        values -= np.float32(draw.high - draw.low)
        if draw.low:
            values += np.copysign(np.float32(draw.low), values)
    if draw.density < 1:
        return np.where(_drawn(rng, shape, draw), values, np.float32(draw.rest))
    if draw.ends:  # a maximum or minimum is then often at an end
        values[_at_ends(shape, draw.ends)] *= np.float32(2)
    if draw.selected and draw.signed:
        values = _with_signs(rng, values, draw.selected)
    return values if draw.signed else np.abs(values)


def _few_alike(rng: np.random.Generator, shape: tuple[int, ...], axes: Sequence[int]) -> Array:
    """Return booleans: along ``axes`` one is true, or one is false, or none is true. The single one is often at an
    end."""
    rows = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    kind = rng.integers(0, 4, rows, np.uint8)
    values: Array = (_one_along(rng, shape, axes) & (kind != 3)) ^ (kind == 2)
    return values


def _one_along(rng: np.random.Generator, shape: tuple[int, ...], axes: Sequence[int]) -> NDArray[np.bool_]:
    """Return true at one place along ``axes``, often at an end."""
    scores = rng.random(shape)
    scores[_at_ends(shape, axes)] *= 1 + math.prod(shape[axis] for axis in axes) / 8
    found: NDArray[np.bool_] = scores == scores.max(axis=tuple(axes), keepdims=True)
    return found


def _with_signs(rng: np.random.Generator, values: Any, axes: Sequence[int]) -> Any:
    """Return the values with changed signs: along ``axes`` none is negative in a quarter of the cases, and none is
    positive in another quarter."""
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(values.shape))
    kind = rng.integers(0, 4, shape, np.uint8)
    # ~x is -1 - x, which has the other sign for every integer.
    other = np.maximum(~values, values.min()) if values.dtype.kind == "i" else -values
    return np.where(((kind == 0) & (values < 0)) | ((kind == 1) & (values > 0)), other, values)


def _positive_floats(rng: np.random.Generator, shape: tuple[int, ...], draw: InputDraw) -> NDArray[np.float32]:
    if draw.steps == 1 and not draw.signed:  # all values are the same
        return np.full(shape, draw.high, np.float32)
    values = rng.random(shape, np.float32)
    if draw.density < 1:
        return np.where(_drawn(rng, shape, draw), values * np.float32(0.5) + np.float32(0.5), np.float32(2.0**-6))
    return values + np.float32(0.1)


def _special_floats(
    rng: np.random.Generator, spec: TensorSpec, draw: InputDraw, special: SpecialDraw, task_id: str, index: int
) -> Array:
    """Return the floats of argument ``index``."""
    values: Array = _floats(rng, spec.shape, draw).astype(numpy_dtype(spec.dtype))
    flat = values.reshape(-1)
    # In half of the places all inputs have the same kind of value, so that zero meets zero.
    kind = rng.random(flat.shape, np.float32)
    kind[::2] = generator(f"{task_id}|kinds").random(flat.shape, np.float32)[::2]
    if special.limit:
        _place(flat, kind < _ALL_MAGNITUDES, lambda count: _of_all_magnitudes(rng, count, spec.dtype, special.limit))
    kind -= np.float32(_ALL_MAGNITUDES)
    if special.ties:
        _place(flat, (kind >= 0) & (kind < _TIES), lambda count: _ties(rng, count, special))
    kind -= np.float32(_TIES)
    if special.zeros:
        share = _ZEROS if special.limit else _FEW_ZEROS
        least = math.ldexp(1.0, _EXPONENTS[spec.dtype][1])
        zeros = np.array([0.0, -0.0, least, -least])[: 4 if special.subnormal else 2]
        at_zero = (kind >= 0) & (kind < share)
        _place(flat, at_zero, lambda count: zeros[rng.integers(0, len(zeros), count)])
        at_zero[1::2] = False  # where all inputs have the same kind, their zeros have all combinations of signs
        _place(flat, at_zero, lambda count: np.where(np.arange(count) >> index & 1, -0.0, 0.0))
    if not special.signed:
        flat[...] = np.abs(flat)
    elif draw.selected:
        flat[...] = _with_signs(rng, values, draw.selected).reshape(-1)
    if special.rows is not None:
        values[...] = _with_rows(rng, values, special.rows)
    few = rng.choice(flat.size, min(flat.size, special.nan + special.infinite), replace=False)
    flat[few[: special.nan]] = np.nan
    infinities = few[special.nan :]
    flat[infinities[0::2]] = np.inf
    flat[infinities[1::2]] = -np.inf if special.signed else np.inf
    return values


def _with_rows(rng: np.random.Generator, values: Any, rows: SpecialRows) -> Any:
    kinds = rng.integers(0, 4, [1 if at in rows.axes else n for at, n in enumerate(values.shape)], np.uint8)
    if not rows.exponential:
        return np.where(kinds == 0, values * values.dtype.type(_SMALL), values)
    huge = np.where(_one_along(rng, values.shape, rows.axes) & (kinds == 0), values.dtype.type(_HUGE), values)
    return huge - np.where(kinds == 1, values.dtype.type(_HUGE), values.dtype.type(0))


def _place(flat: Array, where: NDArray[np.bool_], draw: Callable[[int], NDArray[np.float64]]) -> None:
    """Put ``draw(count)`` at the ``count`` places where ``where`` is true."""
    with np.errstate(over="ignore", under="ignore"):
        flat[where] = draw(int(np.count_nonzero(where))).astype(flat.dtype)


def _of_all_magnitudes(rng: np.random.Generator, count: int, dtype: str, limit: float) -> NDArray[np.float64]:
    """Return numbers with uniform exponents, among them some that are the largest or the smallest normal number."""
    most, least = _EXPONENTS[dtype]
    highest = most if math.isinf(limit) else math.frexp(limit)[1] - 1
    values = np.ldexp(rng.random(count) + 1.0, rng.integers(least, highest, count, endpoint=True))
    ends = np.array([_LARGEST[dtype] if math.isinf(limit) else limit, math.ldexp(1.0, 1 - most)])
    values = np.where(rng.random(count) < 1 / 8, ends[rng.integers(0, 2, count)], values)
    signed: NDArray[np.float64] = np.copysign(np.minimum(values, ends[0]), rng.random(count) - 0.5)
    return signed


def _ties(rng: np.random.Generator, count: int, special: SpecialDraw) -> NDArray[np.float64]:
    limit = special.limit
    values = np.minimum(rng.integers(0, int(2 * min(_LARGEST_TIE, limit)), count, endpoint=True) / 2, limit)
    beside = np.array(_BESIDE)[rng.integers(0, len(_BESIDE), count)]
    values = np.where((rng.random(count) < 1 / 8) & (beside <= limit), beside, values)
    if special.scales:
        scaled = values * np.array([1.0, *special.scales])[rng.integers(0, 1 + len(special.scales), count)]
        values = np.where(scaled <= limit, scaled, values)
    signed: NDArray[np.float64] = np.copysign(values, rng.random(count) - 0.5)
    return signed


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], draw: InputDraw) -> NDArray[np.bool_]:
    """Return true where a value is drawn, false where it is the plan's ``rest``."""
    chosen = rng.random(shape, np.float32)
    chosen[_at_ends(shape, draw.ends)] *= np.float32(2 * draw.density)  # half of these are below the density
    return chosen < draw.density


def _at_ends(shape: tuple[int, ...], axes: Sequence[int]) -> NDArray[np.bool_]:
    """Return true at the first and last index of ``axes``."""
    ends = np.zeros(shape, np.bool_)
    for axis in axes:
        for index in (0, -1):
            ends[(slice(None),) * axis + (index,)] = True
    return ends
