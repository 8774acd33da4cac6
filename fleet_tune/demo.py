"""The network of ``fleet-tune demo``: a small residual network of our own for images of 64x64, with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SEED = 20
_WIDTHS = (32, 64, 128)
_CLASSES = 100


class _Block(nn.Module):
    """Two 3x3 convolutions with batch norm, the first of stride 2, and a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(torch.relu(self.first_norm(self.first(x))))
        return torch.relu(self.second_norm(out) + self.shortcut(x))


def network() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the network and its example inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        blocks = [_Block(inputs, outputs) for inputs, outputs in zip((3, *_WIDTHS), _WIDTHS, strict=False)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_WIDTHS[-1], _CLASSES)]
        return nn.Sequential(*blocks, *head).eval(), (torch.randn(1, 3, 64, 64),)
