"""Two small networks of the same operators in different shapes, for short forms of benchmarks."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 20


class _Network(nn.Module):
    """Three 3x3 convolutions with ReLU on a 56x56 image, the mean over all pixels, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (3, width, width, 2 * width)
        layers: list[nn.Module] = []
        for at, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Conv2d(inputs, outputs, 3, 1 + at // 2, 1), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(x).mean((2, 3)))
        return out


def _network(width: int) -> Example:
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _Network(width).eval(), (torch.randn(1, 3, 56, 56),)


def narrow() -> Example:
    """Network of 32 channels."""
    return _network(32)


def wide() -> Example:
    """Network of 48 channels."""
    return _network(48)
