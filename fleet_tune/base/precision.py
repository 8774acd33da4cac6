"""Precisions that a network of float32 may be converted to."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_tune.base.errors import RequestError

MOST_ERROR = 0.1
"""Largest error, relative to the largest output, that a user may allow."""


class Precision(enum.StrEnum):
    """Precision of the products of a network (matrix products and convolutions)."""

    BF16 = "bf16"  # operands in bfloat16, sums in float32
    FP16 = "fp16"  # operands in float16, sums in float32
    INT8W = "int8w"  # constant weights in int8 with a scale for each output channel, everything else in float32
    AUTO = "auto"  # one of these, or float32, for each product


@dataclass(frozen=True)
class Conversion:
    """Conversion of a network of float32."""

    precision: Precision
    max_error: float | None = None
    """Largest difference from the framework, relative to the largest output, that ``AUTO`` may cause; None for the
    other precisions."""
    products: tuple[tuple[int, Precision], ...] = ()
    """The products that ``AUTO`` converts, by their place in the network. Empty until they are chosen."""

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Conversion:
        """Return the conversion of these fields, as ``dataclasses.asdict`` and JSON give them."""
        products = tuple((at, Precision(precision)) for at, precision in fields["products"])
        return cls(Precision(fields["precision"]), fields["max_error"], products)

    @property
    def options(self) -> str:
        """The value of ``--precision`` for this conversion, with the options that belong to it."""
        return str(self.precision) if self.max_error is None else f"{self.precision} --max-error {self.max_error:g}"

    @property
    def precisions(self) -> frozenset[Precision]:
        """The precisions that products are converted to."""
        if self.precision is Precision.AUTO:
            return frozenset(precision for _, precision in self.products)
        return frozenset({self.precision})

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of the products that ``AUTO`` converts, by precision."""
        chosen = [precision for _, precision in self.products]
        return {str(each): chosen.count(each) for each in Precision if each in chosen}


@dataclass(frozen=True)
class ConvertibleProduct:
    """A product of a network that is faster in another precision."""

    at: int
    """Its place among the products of the network."""
    name: str
    """Operator and extents of the result."""
    savings: tuple[tuple[Precision, float], ...]
    """Precisions that save time, each with the saving in the unit of an estimate. The best comes first."""


def check_error_limit(precision: Precision | None, max_error: float | None) -> None:
    """Raise :class:`RequestError` if ``AUTO`` has no largest error, or another precision has one."""
    if precision is Precision.AUTO and max_error is None:
        raise RequestError(
            "the precision auto needs the largest error that you accept, relative to the largest output (max_error)",
            "give a max_error too: 0.01, for example",
        )
    if precision is not Precision.AUTO and max_error is not None:
        raise RequestError(
            "a largest error (max_error) is for the precision auto: the error of other precisions is what it is",
            "give the precision auto too, or leave max_error out",
        )
