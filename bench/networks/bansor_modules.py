"""Subgraphs and networks of Bansor's tables I and II that are not in other modules here. Batch 1, random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 13


def _made(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Example:
    """Return the module and its inputs, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return make().eval(), tuple(torch.randn(shape) for shape in shapes)


class _Tbs(nn.Module):
    """Two transposes, a batched product of their results, and a softmax: the scores of an attention layer."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:  # (1, tokens, heads, width)
        return torch.softmax(query.permute(0, 2, 1, 3) @ key.permute(0, 2, 3, 1), dim=-1)


class _Block3d(nn.Module):
    """A basic block of 3D-ResNet: two 3x3x3 convolutions, and a shortcut of the input or its projection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm3d(outputs),
            nn.ReLU(),
            nn.Conv3d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm3d(outputs),
        )
        same = stride == 1 and inputs == outputs
        projection = nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs))
        self.beside = nn.Identity() if same else projection

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.beside(x))


def _resnet3d(widths: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv3d(3, widths[0], (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
        nn.BatchNorm3d(widths[0]),
        nn.ReLU(),
    ]
    before = widths[0]
    for at, width in enumerate(widths):
        layers += [_Block3d(before, width, 1 if at == 0 else 2), _Block3d(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(before, 400))


def conv_layer() -> Example:
    """Convolution 3x3, batch norm and ReLU on 1x64x56x56: Bansor's ConvLayer."""
    return _made(
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        (1, 64, 56, 56),
    )


def tbs() -> Example:
    """Attention scores of 12 heads of width 64 over 128 tokens: Bansor's TBS."""
    return _made(_Tbs, (1, 128, 12, 64), (1, 128, 12, 64))


def resnet3d_18() -> Example:
    """3D-ResNet-18 on 16 frames of 112x112."""
    return _made(lambda: _resnet3d((64, 128, 256, 512)), (1, 3, 16, 112, 112))
