"""The transform of a convolution's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from devices.sketches.nests import selected
from devices.sketches.rules.winograd.matrices import transforms

_EXACT = "float64"


def element_of_points(weight: Any, points: Any, at: Sequence[Any]) -> Any:
    """Return the element ``at`` of ``G weight G^T``.

    ``weight``: buffer (rows, columns, input channels, output channels); ``points``: buffer of the transformed weights
    (points, points, input channels, output channels).
    """
    first, second, inputs, channels = at
    size = int(weight.shape[0])
    matrix = transforms(int(points.shape[0]) - size + 1, size).weight

    def factor(point: Any, column: int) -> Any:
        return selected(point, [tirx.const(float(row[column]), _EXACT) for row in matrix])

    total = tirx.const(0.0, _EXACT)
    for row in range(size):
        for column in range(size):
            value = weight[row, column, inputs, channels].astype(_EXACT)
            total = total + value * factor(first, row) * factor(second, column)
    return total.astype(str(weight.dtype))
