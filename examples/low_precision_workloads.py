"""Single kernels in int8 and bfloat16 to collect datasets of measured schedules from, as those of ``workloads.py``.

``fleet-tune dataset collect examples/low_precision_workloads.py:quantised --per-task 100 --out DIR``, from the
project's root.
"""

from __future__ import annotations

import functools

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of the next name
from torch import Tensor, nn

from examples.workloads import Branches, ChannelsLast, Dense, Example, Matmul, example

_BYTES = torch.ops.quantized_decomposed


class _Quantised(nn.Module):
    """A layer in bytes, as torch's pt2e writes it: unsigned data, signed weights with a scale for each output channel,
    bias, ReLU, and the result rounded to steps of bytes. Images come and go channels-last."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.flatten(1).abs().amax(1) / 127
        per_channel = scales.view(-1, *[1] * (weight.ndim - 1))
        self.register_buffer("weight", torch.round(weight / per_channel).to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(len(scales), dtype=torch.int64))
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        weight = _BYTES.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        data = _dequantised(x)
        with_weight = functools.partial(torch.func.functional_call, self.layer, {"weight": weight})
        if isinstance(self.layer, nn.Linear):
            return _rounded(torch.relu(with_weight(data)))
        return _rounded(torch.relu(with_weight(data.permute(0, 3, 1, 2))).permute(0, 2, 3, 1))


class _QuantisedMatmul(nn.Module):
    """Batched product of two activations in bytes, rounded to steps of bytes."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return _rounded(torch.matmul(_dequantised(left), _dequantised(right)))


class _QuantisedSum(nn.Module):
    """Residual sum with ReLU in bytes."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return _rounded(torch.relu(_dequantised(left) + _dequantised(right)))


def _dequantised(x: Tensor) -> Tensor:
    data: Tensor = _BYTES.dequantize_per_tensor(x, 0.02, 110, 0, 255, torch.uint8)
    return data


def _rounded(x: Tensor) -> Tensor:
    rounded = _BYTES.quantize_per_tensor(x, 0.04, 3, 0, 255, torch.uint8)
    data: Tensor = _BYTES.dequantize_per_tensor(rounded, 0.04, 3, 0, 255, torch.uint8)
    return data


def quantised() -> Example:
    """Nine kernels of quantised networks, in bytes with sums in integers.

    Convolutions: 3x3, ResNet-18's (64 to 64 on 28x28); 3x3 with stride 2, a U-Net's (48 to 96 on 32x32); 1x1, the
    narrowing ones of MobileNetV2 (144 to 24 on 28x28) and ResNet-50's (256 to 64 on 28x28); depthwise, 3x3 (96 on
    28x28) and 5x5 with stride 2 (120 on 28x28). Dense, a small BERT's (96x312 by 312x1200); attention of 80 tokens
    (8x80x64 by 8x64x80); a residual sum (28x28x128).
    """
    return example(
        lambda: Branches(
            (_Quantised(nn.Conv2d(64, 64, 3, padding=1)), 1),
            (_Quantised(nn.Conv2d(48, 96, 3, stride=2, padding=1)), 1),
            (_Quantised(nn.Conv2d(144, 24, 1)), 1),
            (_Quantised(nn.Conv2d(256, 64, 1)), 1),
            (_Quantised(nn.Conv2d(96, 96, 3, padding=1, groups=96)), 1),
            (_Quantised(nn.Conv2d(120, 120, 5, stride=2, padding=2, groups=120)), 1),
            (_Quantised(nn.Linear(312, 1200)), 1),
            (_QuantisedMatmul(), 2),
            (_QuantisedSum(), 2),
        ),
        (1, 28, 28, 64),
        (1, 32, 32, 48),
        (1, 28, 28, 144),
        (1, 28, 28, 256),
        (1, 28, 28, 96),
        (1, 28, 28, 120),
        (96, 312),
        (8, 80, 64),
        (8, 64, 80),
        (1, 28, 28, 128),
        (1, 28, 28, 128),
        dtype=torch.uint8,
    )


def halves() -> Example:
    """Eight kernels in bfloat16, with the shapes of well-known networks.

    Convolutions: 3x3, ResNet-18's (64 to 64 on 28x28); 3x3 with stride 2 (48 to 96 on 32x32); 1x1, ResNet-50's (256 to
    64 on 28x28); depthwise, 3x3 (96 on 28x28). Dense, a small BERT's (96x312 by 312x1200); attention of 80 tokens
    (8x80x64 by 8x64x80) and its softmax (8x80x80); a layer norm (96x312).
    """
    return example(
        lambda: Branches(
            (ChannelsLast(64, 64, 3), 1),
            (ChannelsLast(48, 96, 3, stride=2), 1),
            (ChannelsLast(256, 64, 1), 1),
            (ChannelsLast(96, 96, 3, groups=96), 1),
            (Dense(312, 1200), 1),
            (Matmul(), 2),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(312), 1),
        ),
        (1, 28, 28, 64),
        (1, 32, 32, 48),
        (1, 28, 28, 256),
        (1, 28, 28, 96),
        (96, 312),
        (8, 80, 64),
        (8, 64, 80),
        (8, 80, 80),
        (96, 312),
        dtype=torch.bfloat16,
    )
