"""torch's ``quantized_decomposed`` operators (of pt2e quantisation) as ``relax.quantize`` and ``relax.dequantize``.

Importing this module loads torch and registers the operators: otherwise torch.export cannot load a file that has them.
pt2e's dynamic quantisation, with scales that depend on the data, is decomposed into torch's own operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax
from tvm.ir import GenericConst

with contextlib.suppress(ImportError):  # another torch version may have moved them
    import torch.ao.quantization.fx._decomposed

Convert = Callable[[fx.Node], Any]

_CHOOSE = "choose_qparams"


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return decompositions of the operators that have no translation here."""
    if not hasattr(torch.ops.quantized_decomposed, _CHOOSE):
        return {}
    return {getattr(torch.ops.quantized_decomposed, _CHOOSE).tensor: _chosen}


def _chosen(
    data: torch.Tensor,
    quant_min: int,
    quant_max: int,
    eps: float,
    dtype: torch.dtype,  # noqa: ARG001 - the operator's signature
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale and zero point whose range reaches from the least to the greatest value, and has zero
    exactly."""
    wide = data.float()
    least, greatest = wide.amin().clamp_max(0), wide.amax().clamp_min(0)
    scale = ((greatest - least) / (quant_max - quant_min)).clamp_min(eps)
    zero = (quant_min - torch.round(least / scale)).clamp(quant_min, quant_max)
    return scale.reshape(1).double(), zero.reshape(1).long()


def translations(importer: Any) -> dict[str, Convert]:
    """Return translations by the operators' names, for TVM's ``importer`` of torch's programs."""

    def emit(expression: Any) -> Any:
        return importer.block_builder.emit(expression)

    def dtype(kind: Any) -> str:
        return str(importer._convert_data_type(kind))

    def number(argument: Any, kind: str) -> Any:
        """A scale or a zero point as a tensor of ``kind``."""
        value = (
            importer.env[argument] if isinstance(argument, fx.Node) else relax.const(np.asarray(argument, kind), kind)
        )
        if str(value.ty.dtype) == kind:
            return value
        if isinstance(value, GenericConst):
            return relax.const(value.value.numpy().astype(kind), kind)
        return emit(relax.op.astype(value, kind))

    def quantize(node: fx.Node, axis: int) -> Any:
        data, scale, zero, *rest = node.args
        least, greatest, kind = rest[-3:]
        name = dtype(kind)
        result = emit(relax.op.quantize(importer.env[data], number(scale, "float32"), number(zero, name), axis, name))
        limits = np.iinfo(name)
        if (least, greatest) == (limits.min, limits.max):
            return result
        return emit(relax.op.clip(result, least, greatest))

    def dequantize(node: fx.Node, axis: int) -> Any:
        data, scale, zero = node.args[:3]
        value = importer.env[data]
        wanted = node.kwargs.get("out_dtype")
        points = number(0 if zero is None else zero, str(value.ty.dtype))
        name = "float32" if wanted is None else dtype(wanted)
        return emit(relax.op.dequantize(value, number(scale, "float32"), points, axis, name))

    table: dict[str, Convert] = {}
    for kind in ("default", "tensor"):
        table[f"quantize_per_tensor.{kind}"] = lambda node: quantize(node, 0)
        table[f"dequantize_per_tensor.{kind}"] = lambda node: dequantize(node, 0)
    table["quantize_per_channel.default"] = lambda node: quantize(node, node.args[3])  # type: ignore[arg-type]
    table["dequantize_per_channel.default"] = lambda node: dequantize(node, node.args[3])  # type: ignore[arg-type]
    return table
