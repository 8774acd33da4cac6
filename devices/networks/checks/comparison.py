"""Comparison of the outputs of a compiled network with those of its framework."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.results import OutputErrors

INT8_WEIGHTS = "weights of int8"
"""Stands for float32 with weights of int8, as a type of :func:`network_tolerance`."""
# The unit roundoff of each type, the widest first.
_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, INT8_WEIGHTS: 2.0**-8}
# Roundings that an output may have. Half types are summed in float32, so that the length of sums does not matter. For
# float32 and float64 this includes sums of a hundred thousand terms, and functions (exp, erf) that two libraries
# approximate differently.
_ROUNDINGS = {"float64": 2.0**20, "float32": 2.0**11, "float16": 4.0, "bfloat16": 4.0, INT8_WEIGHTS: 4.0}
_ROUNDINGS_OF_A_TERM = 1 / 64
# Least absolute value of a mask: networks of float16 mask with -1e4.
_MASK = 1e4
_MOST = {"float64": 1e-6, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.15, INT8_WEIGHTS: 0.15}


def compare(outputs: tuple[Any, ...], expected: tuple[Any, ...]) -> tuple[float, float]:
    """Return the largest absolute error over all outputs, and the largest relative one.

    The relative error of an output is the absolute one divided by its largest absolute value, without the value that
    masks places, if there is one (:func:`_largest`). For integers and booleans
    it is the share of the values that differ (some depend on floats, such as the index of the larger of two that differ
    by rounding alone), for 8 bits by more than one step. NaN and infinities are equal if both outputs have the same one
    in the same place, and do not count otherwise. Both errors are infinite if only one output has them, or if shapes or
    types differ.
    """
    if len(outputs) != len(expected):
        return math.inf, math.inf
    absolute = relative = 0.0
    for ours, theirs in zip(outputs, expected, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return math.inf, math.inf
        if ours.size and ours.dtype.kind in "iub":
            steps = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))  # 64 bits wrap around: 0 only if equal
            allowed = 1 if ours.dtype in (np.int8, np.uint8) else 0
            absolute = max(absolute, float(steps.max()))
            relative = max(relative, float((steps > allowed).mean() + (steps < 0).mean()))
            continue
        wide, right = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(right)
        same = (wide == right) | (np.isnan(wide) & np.isnan(right))
        if not (same | finite).all() or not np.isfinite(wide[finite]).all():
            return math.inf, math.inf
        if not finite.any():
            continue
        error = float(np.abs(wide[finite] - right[finite]).max())
        scale = _largest(wide[finite], right[finite])
        absolute = max(absolute, error)
        relative = max(relative, error / scale if scale > 0 else error)
    return absolute, relative


def _largest(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """Return the largest absolute value of ``theirs`` that is no mask, or 0. Both have the shape ``(n,)``.

    Networks mask places with one huge number, such as -1e9 or the least float. Beside it every error of the other
    values would be small. The largest value is taken for a mask if it is at least :data:`_MASK`, occurs several
    times, and ``ours`` has it in the same places.
    """
    sizes = np.abs(theirs)
    largest = float(sizes.max())
    if largest >= _MASK:
        masked = theirs == theirs[int(sizes.argmax())]
        if masked.sum() > 1 and (ours[masked] == theirs[masked]).all():
            return float(sizes[~masked].max(initial=0.0))
    return largest


def errors_of(outputs: tuple[Any, ...], expected: tuple[Any, ...]) -> OutputErrors:
    """Return the errors of outputs: the two errors of :func:`compare`, and the mean error."""
    absolute, relative = compare(outputs, expected)
    return OutputErrors(absolute, relative, _mean_error(outputs, expected) if math.isfinite(relative) else math.inf)


def _mean_error(outputs: tuple[Any, ...], expected: tuple[Any, ...]) -> float:
    """Return the largest mean error of an output: its mean absolute difference, divided by the largest absolute value,
    as :func:`compare` does it. Values that are not finite, and outputs that are not floats, do
    not count."""
    largest = 0.0
    for ours, theirs in zip(outputs, expected, strict=True):
        if theirs.dtype.kind in "iub":
            continue
        wide, right = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(right)
        if finite.any():
            scale = _largest(wide[finite], right[finite])
            error = float(np.abs(wide[finite] - right[finite]).mean())
            largest = max(largest, error / scale if scale > 0 else error)
    return largest


def network_tolerance(dtypes: Iterable[str], depth: int, longest: int = 1) -> float:
    """Return the relative error (of :func:`compare`) that rounding alone may reach in a network.

    It follows the narrowest float type, and grows with the square root of the depth, as the errors of independent
    kernels do. A sequential sum in float32 can grow so large that each term loses the part below half of the sum's last
    place. For the squares of 2^20 random numbers the loss is a 2,000th; a 64th of a rounding for each term allows for
    it. The result is 1.2e-10, 1.2e-4, 2.0e-3 and 1.6e-2 for one kernel in float64, float32, float16 and bfloat16, six
    times as much for 36, and at most 1e-6, 1e-3, 0.05 and 0.15.

    Measured against PyTorch on a CPU, with random weights: a layer of 4,096 terms 1.0e-15, 1.5e-6, 2.3e-4 and 0; eight
    layers with GELU 1.6e-15, 3.0e-7, 7.0e-4 and 5.6e-3; two transformer blocks (36 kernels) 4.4e-16, 1.6e-7, 1.3e-3 and
    1.0e-2; twelve of them, ResNet-18, MobileNetV3 and DenseNet-121 (24 to 240 kernels) at most 3.0e-15, 1.1e-6, 2.0e-3
    and 1.1e-2; other networks in float32 1e-5. A wrong kernel is found by its own check, which is sharper. This check
    is for errors between kernels, and must not refuse a network because of rounding.

    Args:
        dtypes: types of the network's tensors, and :data:`INT8_WEIGHTS`.
        depth: number of kernels.
        longest: terms of its longest sum.
    """
    held = set(dtypes)
    narrowest = next((dtype for dtype in reversed(_ROUNDOFF) if dtype in held), "float32")
    roundings = _ROUNDINGS[narrowest]
    if narrowest == "float32":
        roundings = max(roundings, longest * _ROUNDINGS_OF_A_TERM)
    return min(_MOST[narrowest], roundings * _ROUNDOFF[narrowest] * math.sqrt(max(1, depth)))
