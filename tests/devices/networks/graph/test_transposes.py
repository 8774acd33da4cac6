"""Transposes behind element-wise operators: residual sums in the layout of the convolutions around them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.helpers.lowered_networks import agrees, imported, names


class _Block(nn.Module):
    """A block of ConvNeXt: its norm and its products are channels last, its residual sum and its scale are not."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(nn.functional.gelu(self.wide(y)))
        return x + self.scale * y.permute(0, 3, 1, 2)


class _Blocks(nn.Module):
    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 4, stride=4)
        self.blocks = nn.Sequential(*(_Block(channels) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        return out


def test_residual_sums_are_part_of_the_products_before_them() -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Blocks(), torch.randn(1, 3, 56, 56))
    assert lowered.left_out == ()
    found = names(lowered)
    assert not any("transpose" in name for name in found)
    assert "matmul_add_multiply_add" in found
    agrees(lowered, network)


class _Mixed(nn.Module):
    """Sums of what is transposed in two ways, or in one way and not at all."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.relu(x.permute(0, 3, 1, 2)) + y.permute(0, 3, 1, 2)
        return one, x.permute(0, 3, 1, 2) * y.permute(0, 3, 2, 1), z + y.permute(0, 3, 1, 2)


def test_values_in_other_orders_keep_theirs() -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Mixed(), torch.randn(1, 6, 6, 8), torch.randn(1, 6, 6, 8), torch.randn(1, 8, 6, 6))
    assert lowered.left_out == ()
    agrees(lowered, network)


class _Broadcast(nn.Module):
    """An operand with fewer axes, which is no constant, and a result that is read in both orders."""

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sigmoid(x.permute(0, 3, 1, 2) * torch.arange(8.0)[:, None, None]) * scale
        return y, y.permute(0, 2, 3, 1).sum(-1)


def test_operands_of_fewer_axes_are_right() -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Broadcast(), torch.randn(1, 5, 7, 8), torch.randn(8, 5, 7))
    assert lowered.left_out == ()
    agrees(lowered, network)
