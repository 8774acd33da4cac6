"""What a kernel is run on: numpy arrays, no TVM."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from devices.protocol import TensorSpec

Array = NDArray[np.generic]

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""The types whose values are compared within a tolerance."""


def make_inputs(task_id: str, args: Sequence[TensorSpec], outputs: Sequence[int], positive: bool) -> list[Array]:
    """Arrays for all arguments of a kernel: the same for the same task in every process; outputs are zero.

    Floats are uniform in [-1, 1), or in [0.1, 1.1) where ``positive`` (for kernels that divide, or take roots or
    logarithms). Integers are small and not negative, so that they are valid where they are indices: below every extent
    of the task's arguments that is above 1.
    """
    extents = [extent for spec in args for extent in spec.shape if extent > 1]
    high = min([8, *extents])
    arrays: list[Array] = []
    for index, spec in enumerate(args):
        dtype = numpy_dtype(spec.dtype)
        if index in outputs:
            arrays.append(np.zeros(spec.shape, dtype))
            continue
        seed = hashlib.blake2b(f"{task_id}|{index}".encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(seed, "little"))
        if is_float(spec.dtype):
            low = 0.1 if positive else -1.0
            span = 1.0 if positive else 2.0
            arrays.append((rng.random(spec.shape, np.float32) * span + low).astype(dtype))
        elif spec.dtype == "bool":
            arrays.append(rng.integers(0, 2, spec.shape).astype(dtype))
        else:
            arrays.append(rng.integers(0, high, spec.shape).astype(dtype))
    return arrays


def poison(spec: TensorSpec) -> Array:
    """Contents of an output before a checked run: what the kernel leaves unwritten shows as a difference."""
    if is_float(spec.dtype):
        return np.full(spec.shape, np.nan).astype(numpy_dtype(spec.dtype))
    return np.frombuffer(b"\x5a" * nbytes(spec), numpy_dtype(spec.dtype)).reshape(spec.shape)


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def nbytes(spec: TensorSpec) -> int:
    """Bytes of a tensor."""
    return int(np.prod(spec.shape, dtype=np.int64)) * numpy_dtype(spec.dtype).itemsize


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """numpy's dtype of a TVM dtype name. Raises TypeError for one that numpy has not (vectors, 4-bit integers)."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: np.dtype[np.generic] = np.dtype(name)
    return dtype
