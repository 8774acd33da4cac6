"""Small networks of one operator each, of every kind that has a sketch rule of its own on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor, ...]]


class Function(nn.Module):
    """A function of tensors as a module without weights."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _of(module: nn.Module, *shapes: Sequence[int]) -> Callable[[], Example]:
    return lambda: (module.eval(), tuple(torch.rand(*shape) for shape in shapes))


def _function(function: Callable[..., Tensor], *shapes: Sequence[int]) -> Callable[[], Example]:
    return _of(Function(function), *shapes)


IMAGE, ROWS = (1, 16, 14, 14), (32, 64)
OPERATORS: dict[str, Callable[[], Example]] = {
    "linear": _of(nn.Linear(64, 48), (32, 64)),
    "linear_of_few_rows": _of(nn.Linear(96, 80), (3, 96)),
    "linear_of_odd_extents": _of(nn.Linear(27, 19), (21, 27)),
    "product": _function(torch.matmul, (32, 48), (48, 64)),
    "product_in_batches": _function(torch.matmul, (3, 16, 32), (3, 32, 16)),
    "product_with_a_transposed_operand": _function(lambda x, y: x @ y.transpose(-1, -2), (3, 16, 32), (3, 16, 32)),
    "product_with_what_follows": _of(nn.Sequential(nn.Linear(32, 64), nn.GELU()), (32, 32)),
    "convolution": _of(nn.Conv2d(16, 32, 3, padding=1), IMAGE),
    "convolution_of_one_point": _of(nn.Conv2d(16, 32, 1), IMAGE),
    "strided_convolution": _of(nn.Conv2d(16, 32, 3, stride=2, padding=1), IMAGE),
    "strided_convolution_of_one_point": _of(nn.Conv2d(16, 32, 1, stride=2), IMAGE),
    "dilated_convolution": _of(nn.Conv2d(16, 16, 3, padding=2, dilation=2), IMAGE),
    "grouped_convolution": _of(nn.Conv2d(16, 32, 3, padding=1, groups=2), IMAGE),
    "depthwise_convolution": _of(nn.Conv2d(16, 16, 3, padding=1, groups=16), IMAGE),
    "transposed_convolution": _of(nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), IMAGE),
    "convolution_of_few_channels": _of(nn.Conv2d(3, 16, 7, stride=2, padding=3), (1, 3, 30, 30)),
    "convolution_of_a_line": _of(nn.Conv1d(16, 32, 3, padding=1), (1, 16, 40)),
    "convolution_of_a_volume": _of(nn.Conv3d(4, 8, 3, padding=1), (1, 4, 6, 8, 8)),
    "residual_convolution": _function(
        lambda x, y: torch.relu(functional.conv2d(x, torch.ones(16, 16, 3, 3) / 144, padding=1) + y), IMAGE, IMAGE
    ),
    "softmax": _function(lambda x: torch.softmax(x, -1), (48, 96)),
    "long_softmax": _function(lambda x: torch.softmax(x, -1), (4, 700)),
    "layer_norm": _of(nn.LayerNorm(96), (24, 96)),
    "rms_norm": _of(nn.RMSNorm(96), (24, 96)),
    "group_norm": _of(nn.GroupNorm(4, 16), IMAGE),
    "batch_of_means": _function(lambda x: x.mean((2, 3)), IMAGE),
    "sum_of_rows": _function(lambda x: x.sum(-1), ROWS),
    "sum_of_columns": _function(lambda x: x.sum(0), ROWS),
    "largest_place": _function(lambda x: x.argmax(-1), ROWS),
    "max_pooling": _of(nn.MaxPool2d(3, 2, 1), IMAGE),
    "average_pooling": _of(nn.AvgPool2d(2), IMAGE),
    "transpose": _function(lambda x: x.permute(0, 2, 3, 1).contiguous(), IMAGE),
    "concatenation": _function(lambda x, y: torch.cat([x, torch.tanh(y)], 1), IMAGE, IMAGE),
    "elementwise": _function(lambda x, y: torch.sigmoid(x) * y + x, IMAGE, IMAGE),
    "attention": _function(functional.scaled_dot_product_attention, (1, 2, 32, 16), (1, 2, 32, 16), (1, 2, 32, 16)),
}
"""By name, each makes a module and its inputs."""
