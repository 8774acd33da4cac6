"""torch's mathematical functions that TVM's importer lacks: decompositions, and casts of bits.

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from devices.networks.bit_casts import bit_cast

Convert = Callable[[fx.Node], Any]

_ATEN = torch.ops.aten
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Signed types by their bytes."""


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    return {
        _ATEN.mv.default: _product,
        _ATEN.addmv.default: _added_product,
        _ATEN.exp2.default: lambda data: torch.pow(2.0, data),
        _ATEN.hypot.default: _hypotenuse,
        _ATEN.signbit.default: _is_negative,
        _ATEN.copysign.Tensor: _with_sign_of,
        _ATEN.copysign.Scalar: _with_sign_of,
        _ATEN.fmax.default: lambda left, right: _of_numbers(torch.maximum, left, right),
        _ATEN.fmin.default: lambda left, right: _of_numbers(torch.minimum, left, right),
        _ATEN.ldexp.Tensor: lambda data, exponent: data * torch.pow(2.0, exponent),
    }


def translations(importer: Any) -> dict[str, Convert]:
    """Return translations by the operators' names, for TVM's ``importer`` of torch's programs."""

    def other_type(node: fx.Node) -> Any:
        arguments: Any = node.args
        data, dtype = arguments
        if data.meta["val"].dtype.itemsize != dtype.itemsize:
            raise ValueError("view() as a type of another width")
        return bit_cast(importer.block_builder, importer.env[data], importer._convert_data_type(dtype))

    return {"view.dtype": other_type}


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.mm(matrix, vector[:, None]).squeeze(1)


def _added_product(data: Tensor, matrix: Tensor, vector: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product: Tensor = _product(matrix, vector) * alpha
    return product if beta == 0 else data * beta + product


def _hypotenuse(left: Tensor, right: Tensor) -> Tensor:
    """Return the length of a vector of two elements, without squaring large or small numbers. It is infinite wherever
    an element is infinite."""
    left, right = torch.abs(left), torch.abs(right)
    longer, shorter = torch.maximum(left, right), torch.minimum(left, right)
    ratio = torch.where(longer == 0, 0.0, shorter / longer)
    infinite = torch.isinf(left) | torch.isinf(right)
    return torch.where(infinite, float("inf"), longer * torch.sqrt(ratio * ratio + 1))


def _is_negative(data: Tensor) -> Tensor:
    """Return the sign bit, which zeros and NaN have too."""
    if not data.is_floating_point():
        return data < 0 if data.dtype.is_signed else torch.zeros_like(data, dtype=torch.bool)
    return data.view(_INTEGERS[data.dtype.itemsize]) < 0


def _with_sign_of(data: Tensor, sign: Any) -> Tensor:
    if not data.is_floating_point():
        data = data.to(torch.get_default_dtype())
    size = torch.abs(data)
    if not isinstance(sign, Tensor):
        sign = torch.full((), sign, dtype=data.dtype, device=data.device)
    return torch.where(torch.signbit(sign), -size, size)


def _of_numbers(choose: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    """Return ``choose`` of both operands. If one is NaN, return the other."""
    chosen = torch.where(left != left, right, choose(left, right))
    return torch.where(right != right, left, chosen)
