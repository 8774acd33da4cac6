"""A single ONNX operator in one form, and the arrays of which its inputs are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LATEST = 22
"""Version of the operators for which no older one is asked."""


@dataclass(frozen=True)
class Form:
    """One operator in one form."""

    operator: str
    inputs: tuple[Array | None, ...]
    """Inputs that the network gets; None for one that is left out."""
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = LATEST
    constants: tuple[Array | None, ...] = ()
    """Inputs behind those, which are constants of the network."""
    outputs: int = 1
    domain: str = ""
    means: Form | None = None
    """The same in a form that ONNX Runtime reads, of a version that it does not."""

    def __str__(self) -> str:
        shapes = "x".join(str(list(each.shape)) if each is not None else "-" for each in self.inputs)
        fixed = ", ".join(f"{each.tolist()}"[:40] if each is not None else "-" for each in self.constants)
        given = {**self.attributes, **({"constants": fixed} if fixed else {})}
        said = ", ".join(f"{name}={value}" for name, value in given.items())
        return f"{self.domain and self.domain + '.'}{self.operator}-{self.opset} {shapes} {said}"


def data(*shape: int, dtype: str = "float32") -> Array:
    """Return normal numbers, no two of which are equal."""
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype(dtype)


def positive(*shape: int) -> Array:
    return np.abs(data(*shape)) + np.float32(0.1)


def whole(*numbers: Any) -> Array:
    """Return integers, as shapes, axes and places are given."""
    return np.asarray(numbers[0] if len(numbers) == 1 and isinstance(numbers[0], list) else numbers, np.int64)


def number(value: float, dtype: str = "float32") -> Array:
    return np.asarray(value, dtype)
