"""Resizes that smooth before they shrink (antialias), as matrices: each new element is a weighted sum along an axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Filter = Callable[[Floats], Floats]
"""Maps distances, in steps of the coarser of the two grids, to weights."""

LINEAR_REACH, CUBIC_REACH = 1, 2
"""Distances from which on the filters are zero."""


def linear(distances: Floats) -> Floats:
    return np.asarray(np.maximum(1 - np.abs(distances), 0), np.float64)


def cubic(a: float) -> Filter:
    """Return the cubic convolution of the parameter ``a`` (Keys, 1981)."""

    def weights(distances: Floats) -> Floats:
        x = np.abs(distances)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))

    return weights


def smoothing(
    centers: Floats, extent: int, step: float, weigh: Filter, reach: int, edges_repeat: bool = False
) -> Floats:
    """Return the matrix (new elements, ``extent``) of a resize of one axis.

    Args:
        centers: the middle of each new element. Element ``i`` of the axis reaches from ``i`` to ``i + 1``.
        extent: elements of the axis.
        step: elements of the axis for each new element. If it is above one, the filter is wider by this factor.
        weigh: the filter.
        reach: distance at which the filter ends.
        edges_repeat: true if the first and the last element continue outside of the axis. Otherwise the weights there
            are left out.
    """
    wider = max(step, 1.0)
    matrix = np.zeros((len(centers), extent))
    for row, center in enumerate(centers):
        places = np.arange(np.floor(center - reach * wider), np.ceil(center + reach * wider))
        weights = weigh((places + 0.5 - center) / wider)
        inside = (places >= 0) & (places < extent)
        if not edges_repeat and inside.any():
            places, weights = places[inside], weights[inside]
        np.add.at(matrix[row], np.clip(places, 0, extent - 1).astype(np.int64), weights / weights.sum())
    return matrix
