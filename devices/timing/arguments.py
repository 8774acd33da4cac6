"""What a kernel is run on, and whether its output agrees with the oracle's: numpy arrays, no TVM."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from devices.protocol import TensorSpec

Array = NDArray[np.generic]

# Largest difference from the oracle, relative to the oracle's largest absolute value. Reordered sums of float32
# differ by about 1e-6 per term's rounding; Winograd's transforms by up to 1e-4; a wrong index by about 1.
TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


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


def disagreement(oracle: Sequence[Array], outputs: Sequence[Array]) -> str:
    """Why ``outputs`` are not the oracle's, in one line; empty if they agree.

    Floats agree if NaN and infinities stand in the same places, and elsewhere
    ``|output - oracle| <= tolerance * max |oracle|`` (a maximum below 1e-6 counts as that). Integers and booleans
    agree if they are equal.
    """
    for position, (expected, got) in enumerate(zip(oracle, outputs, strict=True)):
        prefix = f"output {position}: " if len(oracle) > 1 else ""
        if expected.shape != got.shape or expected.dtype != got.dtype:
            return f"{prefix}{got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"
        name = str(expected.dtype)
        if not is_float(name):
            wrong = int(np.count_nonzero(expected != got))
            if wrong:
                return f"{prefix}{wrong} of {expected.size} values differ"
            continue
        wide, other = expected.astype(np.float64), got.astype(np.float64)
        finite = np.isfinite(wide)
        special = ~finite & ~((wide == other) | (np.isnan(wide) & np.isnan(other)))
        wrong = int(np.count_nonzero((finite & ~np.isfinite(other)) | special))
        if wrong:
            return f"{prefix}{wrong} of {expected.size} values are NaN or infinite in one output and not in the other"
        if not finite.any():
            continue
        scale = float(np.abs(wide[finite]).max())
        error = float(np.abs(other[finite] - wide[finite]).max())
        if error > TOLERANCES[name] * max(scale, 1e-6):
            return f"{prefix}largest difference {error:.3g}, largest oracle value {scale:.3g}"
    return ""


def all_finite(arrays: Sequence[Array]) -> bool:
    """Whether no float array holds NaN or an infinity."""
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in arrays if is_float(str(a.dtype)))


def is_float(dtype: str) -> bool:
    return dtype in TOLERANCES


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
