"""Single kernels to collect datasets of measured schedules from: own definitions, fixed seed, batch 1, float32.

``fleet-tune dataset collect examples/workloads.py:dataset --per-task 1000 --out DIR`` measures random schedules of
each. The module is not a network: its branches are independent, one workload each, and it returns all their results.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 21


class _ChannelsLast(nn.Module):
    """Convolution, bias and ReLU on an image that comes and goes channels-last, so that no transpose becomes a task."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


class _Kernels(nn.Module):
    """The workloads side by side; what each is: see :func:`dataset`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(768, 768)
        self.conv56 = _ChannelsLast(64, 64, 3)
        self.conv14 = _ChannelsLast(256, 256, 3)
        self.pointwise = _ChannelsLast(128, 256, 1)
        self.depthwise = _ChannelsLast(128, 128, 3, groups=128)
        self.norm = nn.LayerNorm(768)

    def forward(
        self,
        tokens: Tensor,
        query: Tensor,
        key: Tensor,
        image56: Tensor,
        image14: Tensor,
        image28: Tensor,
        wide56: Tensor,
        scores: Tensor,
        hidden: Tensor,
    ) -> tuple[Tensor, ...]:
        return (
            torch.relu(self.dense(tokens)),
            torch.matmul(query, key),
            self.conv56(image56),
            self.conv14(image14),
            self.pointwise(image28),
            self.depthwise(wide56),
            torch.softmax(scores, dim=-1),
            self.norm(hidden),
        )


def dataset() -> Example:
    """Eight workloads of convolutional networks and transformers.

    Dense 128x768 by 768x768 with bias and ReLU; batched matmul 12x128x64 by 12x64x128 of two activations; convolutions
    with bias and ReLU: 3x3 56x56x64 to 64, 3x3 14x14x256 to 256, 1x1 28x28x128 to 256, depthwise 3x3 56x56x128; softmax
    over 12x128x128; layer norm over 128x768.
    """
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        module = _Kernels()
        with torch.no_grad():
            nn.init.uniform_(module.norm.weight, 0.6, 1.2)
            nn.init.uniform_(module.norm.bias, -0.2, 0.2)
        return module.eval(), (
            torch.randn(128, 768),
            torch.randn(12, 128, 64),
            torch.randn(12, 64, 128),
            torch.randn(1, 56, 56, 64),
            torch.randn(1, 14, 14, 256),
            torch.randn(1, 28, 28, 128),
            torch.randn(1, 56, 56, 128),
            torch.randn(12, 128, 128),
            torch.randn(128, 768),
        )
