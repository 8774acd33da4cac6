"""torch's resizes with antialias, as products with the matrices of :mod:`devices.networks.resampling`.

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import fx
from tvm import relax

from devices.networks.graph.ir.dynamic_extents import numbers
from devices.networks.resampling import CUBIC_REACH, LINEAR_REACH, Filter, Floats, cubic, linear, smoothing

Convert = Callable[[fx.Node], Any]

_SHARPNESS = -0.5
"""Parameter of torch's cubic filter with antialias."""


def translations(importer: Any) -> dict[str, Convert]:
    """Return translations by the operators' names, for TVM's ``importer`` of torch's programs."""

    def emit(expression: Any) -> Any:
        return importer.block_builder.emit(expression)

    def resize(weigh: Filter, reach: int) -> Convert:
        def converted(node: fx.Node) -> Any:
            arguments: Any = node.args
            data, _, align_corners, *factors = arguments
            given, wanted = data.meta["val"], node.meta["val"]
            floats, dtype = given.dtype.is_floating_point, importer._convert_data_type(given.dtype)
            value = importer.env[data] if floats else emit(relax.op.astype(importer.env[data], "float64"))
            factors = factors[0] if factors and isinstance(factors[0], list) else factors or [None, None]
            for axis, factor in ((-1, factors[-1]), (-2, factors[0])):
                extent, size = numbers("interpolate", (given.shape[axis], wanted.shape[axis]))
                step = _step(extent, size, bool(align_corners), factor)
                matrix = smoothing(np.arange(0.5, size) * step, extent, step, weigh, reach)
                if floats:
                    value = emit(_product(value, matrix.astype(dtype), axis))
                else:
                    value = _rounded(emit(_product(value, _in_fixed_point(matrix), axis)))
            return value if floats else emit(relax.op.astype(value, dtype))

        return converted

    def _rounded(value: Any) -> Any:
        """Round bytes after each axis, halves up, as torch does."""
        half = relax.const(0.5, "float64")
        return emit(relax.op.clip(emit(relax.op.floor(emit(relax.op.add(value, half)))), 0, 255))

    table = {}
    for kind, convert in (
        ("bilinear", resize(linear, LINEAR_REACH)),
        ("bicubic", resize(cubic(_SHARPNESS), CUBIC_REACH)),
    ):
        for overload in ("default", "vec"):
            table[f"_upsample_{kind}2d_aa.{overload}"] = convert
    return table


def _step(extent: int, size: int, align_corners: bool, factor: float | None) -> float:
    if align_corners:
        return (extent - 1) / (size - 1) if size > 1 else 0.0
    return 1 / factor if factor else extent / size


def _in_fixed_point(matrix: Floats) -> Floats:
    """Return ``matrix`` in the precision that torch resizes bytes in: its largest weight has 15 bits, without the
    sign."""
    largest, bits = float(matrix.max()), 0
    while bits < 21 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    return np.trunc(matrix * (1 << bits) + np.copysign(0.5, matrix)) / (1 << bits)


def _product(value: Any, matrix: Floats, axis: int) -> Any:
    weights = relax.const(np.ascontiguousarray(matrix.T if axis == -1 else matrix), str(matrix.dtype))
    return relax.op.matmul(value, weights) if axis == -1 else relax.op.matmul(weights, value)
