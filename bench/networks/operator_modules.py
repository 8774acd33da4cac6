"""One torch module for each operator of the operators benchmark, as functions that ``fleet-tune tune`` takes.

The first ten are the kinds of Ansor's test set (section 7.1 of its paper) with batch 1, in sizes of real networks. The
others are further common operators of networks. Weights are constants of the module, as in a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 11


@contextmanager
def _seeded() -> Iterator[None]:
    """Give the same random numbers in every process, and restore the caller's random state."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        yield


class _Function(nn.Module):
    """A function of tensors as a module without weights."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class _Capsule(nn.Module):
    """A convolution of 4x4 matrices (poses of capsules): it multiplies matrices where a plain one multiplies numbers.

    It is computed as a plain convolution. The rows of the input's matrices join the batch, their columns join the input
    channels, and the columns of the weight's matrices join the output channels.
    """

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels * 4, out_channels * 4, 3, stride=2, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (1, channels, height, width, 4, 4)
        _, channels, height, width, _, _ = x.shape
        rows = x[0].permute(3, 0, 4, 1, 2).reshape(4, channels * 4, height, width)
        out: Tensor = self.conv(rows)
        _, mixed, height, width = out.shape
        return out.reshape(4, mixed // 4, 4, height, width).permute(1, 3, 4, 0, 2).unsqueeze(0)


class _MaskedAttention(nn.Module):
    """8 heads of width 64 over ``length`` tokens. Each token attends to itself and those before it."""

    mask: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)


def conv1d() -> Example:
    """1x64x256 to 128 channels, kernel 3, stride 2."""
    with _seeded():
        return nn.Conv1d(64, 128, 3, stride=2, padding=1).eval(), (torch.randn(1, 64, 256),)


def conv2d() -> Example:
    """1x128x28x28 to 128 channels, 3x3."""
    with _seeded():
        return nn.Conv2d(128, 128, 3, padding=1).eval(), (torch.randn(1, 128, 28, 28),)


def conv3d() -> Example:
    """1x64x8x28x28 to 64 channels, 3x3x3."""
    with _seeded():
        return nn.Conv3d(64, 64, 3, padding=1).eval(), (torch.randn(1, 64, 8, 28, 28),)


def conv2d_grouped() -> Example:
    """1x128x28x28 to 128 channels in 4 groups, 3x3."""
    with _seeded():
        return nn.Conv2d(128, 128, 3, padding=1, groups=4).eval(), (torch.randn(1, 128, 28, 28),)


def conv2d_depthwise() -> Example:
    """1x128x56x56, 3x3, depthwise."""
    with _seeded():
        return nn.Conv2d(128, 128, 3, padding=1, groups=128).eval(), (torch.randn(1, 128, 56, 56),)


def conv2d_dilated() -> Example:
    """1x64x56x56 to 64 channels, 3x3, dilation 2."""
    with _seeded():
        return nn.Conv2d(64, 64, 3, padding=2, dilation=2).eval(), (torch.randn(1, 64, 56, 56),)


def conv2d_transposed() -> Example:
    """1x256x8x8 to 128 channels, 4x4, stride 2."""
    with _seeded():
        return nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1).eval(), (torch.randn(1, 256, 8, 8),)


def conv2d_capsule() -> Example:
    """1x32x16x16 capsules of 4x4 to 32 channels, 3x3, stride 2."""
    with _seeded():
        return _Capsule(32, 32).eval(), (torch.randn(1, 32, 16, 16, 4, 4),)


def matmul() -> Example:
    """512x512 times 512x512; both are inputs."""
    with _seeded():
        return _Function(torch.matmul).eval(), (torch.randn(512, 512), torch.randn(512, 512))


def matrix_norm() -> Example:
    """Frobenius norm of 1024x1024."""
    with _seeded():
        return _Function(lambda x: x.square().sum((-2, -1)).sqrt()).eval(), (torch.randn(1, 1024, 1024),)


def batch_matmul() -> Example:
    """12 products of 128x64 and 64x128; both are inputs."""
    with _seeded():
        return _Function(torch.bmm).eval(), (torch.randn(12, 128, 64), torch.randn(12, 64, 128))


def linear() -> Example:
    """128x768 to 3072."""
    with _seeded():
        return nn.Linear(768, 3072).eval(), (torch.randn(128, 768),)


def max_pool() -> Example:
    """1x64x112x112, 3x3, stride 2."""
    with _seeded():
        return nn.MaxPool2d(3, stride=2, padding=1).eval(), (torch.randn(1, 64, 112, 112),)


def average_pool() -> Example:
    """1x512x7x7 to 1x512x1x1."""
    with _seeded():
        return nn.AdaptiveAvgPool2d(1).eval(), (torch.randn(1, 512, 7, 7),)


def softmax() -> Example:
    """12x128 rows of 128."""
    with _seeded():
        return nn.Softmax(-1).eval(), (torch.randn(12, 128, 128),)


def layer_norm() -> Example:
    """128 rows of 768."""
    with _seeded():
        return nn.LayerNorm(768).eval(), (torch.randn(1, 128, 768),)


def group_norm() -> Example:
    """1x128x28x28 in 32 groups."""
    with _seeded():
        return nn.GroupNorm(32, 128).eval(), (torch.randn(1, 128, 28, 28),)


def row_sum() -> Example:
    """1024 rows of 1024."""
    with _seeded():
        return _Function(lambda x: x.sum(-1)).eval(), (torch.randn(1024, 1024),)


def column_max() -> Example:
    """1024 columns of 1024."""
    with _seeded():
        return _Function(lambda x: x.amax(0)).eval(), (torch.randn(1024, 1024),)


def gather() -> Example:
    """128 rows of 768 out of a table of 30,522."""
    with _seeded():
        return nn.Embedding(30522, 768).eval(), (torch.randint(0, 30522, (1, 128)),)


def concatenation() -> Example:
    """Four inputs of 1x64x56x56, along the channels."""
    with _seeded():
        parts = tuple(torch.randn(1, 64, 56, 56) for _ in range(4))
        return _Function(lambda *inputs: torch.cat(inputs, 1)).eval(), parts


def resize() -> Example:
    """1x64x28x28 to 56x56, bilinear."""
    with _seeded():
        return nn.Upsample(scale_factor=2.0, mode="bilinear").eval(), (torch.randn(1, 64, 28, 28),)


def attention() -> Example:
    """8 heads of width 64 over 128 tokens. Each token attends to itself and those before it."""
    with _seeded():
        return _MaskedAttention(128).eval(), tuple(torch.randn(1, 8, 128, 64) for _ in range(3))


def gru_step() -> Example:
    """One step of 256 to 256, batch 16."""
    with _seeded():
        return nn.GRUCell(256, 256).eval(), (torch.randn(16, 256), torch.randn(16, 256))


def lstm_step() -> Example:
    """One step of 256 to 256, batch 16; returns the hidden state."""
    with _seeded():
        return _HiddenState(nn.LSTMCell(256, 256)).eval(), tuple(torch.randn(16, 256) for _ in range(3))


class _HiddenState(nn.Module):
    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
        out: Tensor = self.cell(x, (hidden, state))[0]
        return out
