"""Arguments that kernels run on: numpy arrays, no TVM."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from devices.protocol import CheckPlan, InputDraw, TensorSpec

Array = NDArray[np.generic]

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Types whose values are compared within a tolerance."""


def make_inputs(task_id: str, args: Sequence[TensorSpec], outputs: Sequence[int], positive: bool) -> list[Array]:
    """Return arrays for all arguments of a kernel: the same for the same task in every process; outputs are zero.

    Floats are uniform in [-1, 1), or in [0.1, 1.1) where ``positive`` (for kernels that divide, or take roots or
    logarithms). Integers are small and not negative, so that they are valid as indices: below every extent of the
    task's arguments that is above 1.
    """
    extents = [extent for spec in args for extent in spec.shape if extent > 1]
    high = min([8, *extents])
    arrays: list[Array] = []
    for index, spec in enumerate(args):
        dtype = numpy_dtype(spec.dtype)
        if index in outputs:
            arrays.append(np.zeros(spec.shape, dtype))
            continue
        rng = _generator(f"{task_id}|{index}")
        if is_float(spec.dtype):
            low = 0.1 if positive else -1.0
            span = 1.0 if positive else 2.0
            arrays.append((rng.random(spec.shape, np.float32) * span + low).astype(dtype))
        elif spec.dtype == "bool":
            arrays.append(rng.integers(0, 2, spec.shape).astype(dtype))
        else:
            arrays.append(rng.integers(0, high, spec.shape).astype(dtype))
    return arrays


def make_checked_inputs(
    task_id: str, args: Sequence[TensorSpec], outputs: Sequence[int], positive: bool, plan: CheckPlan
) -> list[Array]:
    """Return :func:`make_inputs` for the run whose output is compared, drawn as ``plan`` says.

    The values differ from those of the timed runs, of which memory may be full. Without a plan they are drawn as for
    timing. Where ``positive``, floats that are summed are in [0.5, 1), and next to nothing where the plan has its
    ``rest``; the others are in [0.1, 1.1).
    """
    if not plan.draws:
        return make_inputs(f"{task_id}|check", args, outputs, positive)
    arrays = []
    for index, (spec, draw) in enumerate(zip(args, plan.draws, strict=True)):
        if index in outputs:
            arrays.append(np.zeros(spec.shape, numpy_dtype(spec.dtype)))
            continue
        rng = _generator(f"{task_id}|check|{index}")
        if not is_float(spec.dtype):
            drawn: Array = rng.integers(int(draw.low), int(draw.high), spec.shape)
        elif positive:
            drawn = _positive_floats(rng, spec.shape, draw)
        else:
            drawn = _floats(rng, spec.shape, draw)
        arrays.append(drawn.astype(numpy_dtype(spec.dtype)))
    return arrays


def _floats(rng: np.random.Generator, shape: tuple[int, ...], draw: InputDraw) -> NDArray[np.float32]:
    if draw.steps == 1:
        values = (rng.integers(0, 2, shape, np.int8) * 2 - 1).astype(np.float32) * np.float32(draw.high)
    elif draw.steps:
        values = rng.integers(-draw.steps, draw.steps, shape, np.int8) * np.float32(draw.high / draw.steps)
    else:
        values = rng.random(shape, np.float32) * np.float32(2 * (draw.high - draw.low))
        values -= np.float32(draw.high - draw.low)
        if draw.low:
            values += np.copysign(np.float32(draw.low), values)
    if draw.density < 1:
        return np.where(_drawn(rng, shape, draw), values, np.float32(draw.rest))
    if draw.ends:  # a maximum or minimum is then often at an end
        values[_at_ends(shape, draw.ends)] *= np.float32(2)
    return values


def _positive_floats(rng: np.random.Generator, shape: tuple[int, ...], draw: InputDraw) -> NDArray[np.float32]:
    values = rng.random(shape, np.float32)
    if draw.density < 1:
        return np.where(_drawn(rng, shape, draw), values * np.float32(0.5) + np.float32(0.5), np.float32(2.0**-6))
    return values + np.float32(0.1)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], draw: InputDraw) -> NDArray[np.bool_]:
    """Return true where a value is drawn, false where it is the plan's ``rest``."""
    chosen = rng.random(shape, np.float32)
    chosen[_at_ends(shape, draw.ends)] *= np.float32(2 * draw.density)  # below the density: half of the time
    return chosen < draw.density


def _at_ends(shape: tuple[int, ...], axes: Sequence[int]) -> NDArray[np.bool_]:
    """Return true at the first and last index of ``axes``."""
    ends = np.zeros(shape, np.bool_)
    for axis in axes:
        for index in (0, -1):
            ends[(slice(None),) * axis + (index,)] = True
    return ends


def _generator(key: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))


def poison(spec: TensorSpec, expected: Array | None = None) -> Array:
    """Return contents for an output before a checked run: values that the kernel leaves unwritten differ from
    ``expected``, every single one."""
    dtype = numpy_dtype(spec.dtype)
    if is_float(spec.dtype):
        filled = np.full(spec.shape, np.nan).astype(dtype)
        return filled if expected is None else np.where(np.isnan(expected.astype(np.float64)), dtype.type(1), filled)
    if spec.dtype == "bool":
        return np.zeros(spec.shape, dtype) if expected is None else np.logical_not(expected)
    filled = np.frombuffer(b"\x5a" * nbytes(spec), dtype).reshape(spec.shape)
    other = np.frombuffer(b"\xa5" * nbytes(spec), dtype).reshape(spec.shape)
    return filled if expected is None else np.where(expected == filled, other, filled)


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def nbytes(spec: TensorSpec) -> int:
    """Return the bytes of a tensor."""
    return int(np.prod(spec.shape, dtype=np.int64)) * numpy_dtype(spec.dtype).itemsize


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return numpy's dtype of a TVM dtype name. Raises TypeError for one that numpy does not have (vectors, 4-bit
    integers)."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: np.dtype[np.generic] = np.dtype(name)
    return dtype
