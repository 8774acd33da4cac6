"""The choice of a conversion of a network to another precision."""

from __future__ import annotations

from typing import Any

from devices.networks.graph.precisions.half_operands import with_half_operands
from devices.networks.graph.precisions.weight_only import MOST_ROWS, weight_only_products
from fleet_tune.base.errors import UnsupportedNetworkError
from fleet_tune.base.precision import Conversion, Precision

HALF_TYPES = {Precision.BF16: "bfloat16", Precision.FP16: "float16"}
"""The type of Relax of each precision of 16 bits."""
_NEXT_STEP = "leave --precision out"


def convert(conversion: Conversion, name: str, module: Any) -> Any:
    """Return ``module``, the network ``name``, converted.

    Raises :class:`UnsupportedNetworkError` if the user has named the precision, and the network has nothing to convert
    to it.
    """
    precision = conversion.precision
    if precision is Precision.AUTO:
        return _chosen(conversion, module)
    if precision is Precision.INT8W:
        converted, changed = weight_only_products(module)
        if not changed:
            raise UnsupportedNetworkError(
                f"{name} has nothing for the precision {precision}: no product of float32 with a constant matrix has "
                f"{MOST_ROWS} rows or fewer",
                f"{_NEXT_STEP}, or give a shorter batch or sequence",
            )
        return converted
    converted, changed = with_half_operands(module, HALF_TYPES[precision])
    if not changed:
        raise UnsupportedNetworkError(
            f"{name} has nothing for the precision {precision}: it has no product or convolution of float32", _NEXT_STEP
        )
    return converted


def _chosen(conversion: Conversion, module: Any) -> Any:
    """Return ``module`` with the products of a conversion, each in its precision."""
    # Weights of int8 come last: their conversion removes products from the list that positions refer to.
    for precision in sorted(conversion.precisions, key=lambda each: each is Precision.INT8W):
        places = {at for at, chosen in conversion.products if chosen is precision}
        if precision is Precision.INT8W:
            module, _ = weight_only_products(module, places)
        else:
            module, _ = with_half_operands(module, HALF_TYPES[precision], places)
    return module
