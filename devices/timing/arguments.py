"""Arguments that kernels run on: numpy arrays, no TVM."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from devices.protocol import TensorSpec

Array = NDArray[np.generic]

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Types whose values are compared within a tolerance."""


def make_inputs(task_id: str, args: Sequence[TensorSpec], outputs: Sequence[int], positive: bool) -> list[Array]:
    """Return what :func:`each_input` yields."""
    return list(each_input(task_id, args, outputs, positive))


def each_input(task_id: str, args: Sequence[TensorSpec], outputs: Sequence[int], positive: bool) -> Iterator[Array]:
    """Yield arrays for all arguments of a kernel: the same for the same task in every process; outputs are zero.

    Floats are uniform in [-1, 1), or in [0.1, 1.1) where ``positive`` (for kernels that divide, or take roots or
    logarithms). Integers are small and not negative, so that they are valid indices: they are below every extent above
    1 of the task's arguments.
    """
    extents = [extent for spec in args for extent in spec.shape if extent > 1]
    high = min([8, *extents])
    for index, spec in enumerate(args):
        dtype = numpy_dtype(spec.dtype)
        if index in outputs:
            yield np.zeros(spec.shape, dtype)
            continue
        rng = generator(f"{task_id}|{index}")
        numbers = spec.numbers
        if is_float(numbers.dtype):
            low = 0.1 if positive else -1.0
            span = 1.0 if positive else 2.0
            values = rng.random(numbers.shape, np.float32)
            values *= span  # in place: weights of a large layer take most of their time to find new memory
            values += low
            floats = values.astype(numpy_dtype(numbers.dtype), copy=False)
            yield floats.view(dtype)[..., 0] if spec.holds else floats
        elif spec.dtype == "bool":
            yield rng.integers(0, 2, spec.shape).astype(dtype)
        else:
            yield rng.integers(0, high, spec.shape).astype(dtype)


def generator(key: str) -> np.random.Generator:
    """Return a generator that is seeded with ``key``, the same in every process."""
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))


def poison(spec: TensorSpec, expected: Array | None = None, infinite: bool = False) -> Array:
    """Return the contents that an output has before a checked run. Every value differs from ``expected``, so that a
    value that the kernel does not write is noticed.

    Integers are alternately the largest and the smallest of their type. Floats are NaN or, if ``infinite``, alternately
    the two infinities: a maximum that is not initialised has one of them as its result.
    """
    dtype: np.dtype[Any] = numpy_dtype(spec.dtype)
    if spec.dtype == "bool":
        return np.zeros(spec.shape, dtype) if expected is None else np.logical_not(expected)
    if is_float(spec.dtype):
        first, second = (np.inf, -np.inf) if infinite else (np.nan, np.nan)
        instead = dtype.type(1)
    else:
        first, second = np.iinfo(dtype).max, np.iinfo(dtype).min
        instead = dtype.type(0x5A)
    filled = np.empty(int(np.prod(spec.shape, dtype=np.int64)), dtype)
    filled[0::2], filled[1::2] = first, second
    filled = filled.reshape(spec.shape)
    if expected is None:
        return filled
    return np.where((filled == expected) | ((filled != filled) & (expected != expected)), instead, filled)


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
