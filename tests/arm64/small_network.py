"""A network that an emulated board runs in a moment: two convolutions and a linear layer, weights from a fixed seed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def small() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network and its example input, as ``fleet-tune tune tests/arm64/small_network.py:small`` takes them."""
    generator = torch.Generator().manual_seed(5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        )
    return network.eval(), (torch.randn(1, 3, 16, 16, generator=generator),)
