"""Torch modules, each for one workload of the trial-rate benchmark, as functions that ``fleet-tune tune`` takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 7


class _MatmulRelu(nn.Module):
    """``relu(x @ w)``. Both are inputs, so no side can change the layout of a constant weight beforehand."""

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w)


class _ConvNhwc(nn.Module):
    """3x3 convolution with padding 1 on NHWC data. torch convolves NCHW, so permutations convert the shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return out


def matmul_relu() -> Example:
    """256x256 times 256x256, then ReLU: 33.6 MFLOP."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _MatmulRelu().eval(), (torch.randn(256, 256), torch.randn(256, 256))


def conv2d_nhwc() -> Example:
    """1x56x56x64 to 64 channels: 231 MFLOP."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _ConvNhwc(64).eval(), (torch.randn(1, 56, 56, 64),)
