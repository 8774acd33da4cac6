"""Transposes behind other operators: residual sums and shuffles in the layout of the convolutions around them."""

from __future__ import annotations

from itertools import count
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, lists, sets
from torch import Tensor, nn

from devices.networks.graph.layouts import transposes
from devices.networks.graph.layouts.transposes import _groups
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


class _Unit(nn.Module):
    """A unit of ShuffleNet: half of the channels pass, the others go through convolutions, then all are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.before, self.after = nn.Conv2d(half, half, 1), nn.Conv2d(half, half, 1)
        self.depthwise = nn.Conv2d(half, half, 3, padding=1, groups=half)

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, dim=1)
        y = torch.cat((kept, torch.relu(self.after(self.depthwise(torch.relu(self.before(changed)))))), dim=1)
        images, channels, height, width = y.shape
        return y.view(images, 2, channels // 2, height, width).transpose(1, 2).reshape(images, channels, height, width)


class _Units(nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.units = nn.Sequential(*(_Unit(channels) for _ in range(3)))
        self.last = nn.Conv2d(channels, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.units(self.stem(x))).mean((2, 3))
        return out


def test_shuffled_channels_stay_last() -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Units(), torch.randn(1, 3, 56, 56))
    assert lowered.left_out == ()
    shapes = [task.workload.name.split(" ")[1] for task in lowered.tasks if "reshape" in task.workload.name]
    assert shapes == ["28x28x32"] * len(shapes) != []
    agrees(lowered, network)


class _Tokens(nn.Module):
    """Pixels of a convolution as tokens of products, and back."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv2d(3, channels, 4, stride=4), nn.Conv2d(channels, channels, 3, padding=1)
        self.linear = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x)
        tokens = self.linear(y.flatten(2).transpose(1, 2))
        out: Tensor = self.last(tokens.transpose(1, 2).reshape(y.shape)).amax((2, 3))
        return out


def test_pixels_become_tokens_without_a_transpose() -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Tokens(), torch.randn(1, 3, 56, 56))
    assert lowered.left_out == ()
    assert not any("transpose" in name for name in names(lowered))
    agrees(lowered, network)


class _Mixture(nn.Module):
    """Heads that are merged, as behind an attention, beside a residual sum of values with channels last."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        heads = x.permute(0, 2, 1, 3).reshape(1, 16, 256)
        residual = torch.relu(y.permute(0, 3, 1, 2)) + torch.sigmoid(z.permute(0, 3, 1, 2))
        return heads * 2.0, residual.permute(0, 2, 3, 1) * 3.0


def test_merged_heads_do_not_keep_other_transposes_where_they_are() -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Mixture(), torch.randn(1, 4, 16, 64), *(torch.randn(1, 8, 8, 32) for _ in range(2)))
    assert lowered.left_out == ()
    assert sum("transpose" in name for name in names(lowered)) == 1
    agrees(lowered, network)


class _Moved(nn.Module):
    """A transposed value that reshapes split and merge in every way; then slices and concatenations."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.shapes = shapes

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.permute(0, 3, 1, 2)
        moved = [y.reshape(shape).transpose(-1, -2) for shape in self.shapes]
        return *moved, *(torch.cat((each, each * 2.0), dim=1)[:, 1:, ...] for each in moved)


def test_transposes_that_move_as_far_as_they_can_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = count(-1, -1)
    monkeypatch.setattr(transposes, "moved_bytes", lambda _main: next(fewer))  # what was moved last is always better
    torch.manual_seed(0)
    shapes = ((2, 3, 4, 5, 6), (2, 12, 30), (24, 5, 6), (2, 60, 6), (2, 4, 3, 30), (720, 1), (2, 1, 12, 5, 6, 1))
    lowered, network = imported(_Moved(shapes), torch.randn(2, 5, 6, 12))
    assert lowered.left_out == ()
    agrees(lowered, network)


@given(data())
def test_groups_of_axes_hold_the_same_elements(data: DataObject) -> None:
    factors = data.draw(lists(integers(1, 4), min_size=1, max_size=6))
    before, after = (_merged(factors, data.draw(sets(integers(1, len(factors))))) for _ in range(2))
    groups = _groups(before, after)
    for at, shape in enumerate((before, after)):
        assert [axis for group in groups for axis in group[at]] == list(range(len(shape)))
    for ours, theirs in groups:
        assert prod(before[axis] for axis in ours) == prod(after[axis] for axis in theirs)


def test_groups_are_as_small_as_possible() -> None:
    assert _groups((2, 6, 5), (2, 2, 3, 5)) == [([0], [0]), ([1], [1, 2]), ([2], [3])]
    assert _groups((1, 116, 7), (1, 2, 58, 7)) == [([0], [0]), ([1], [1, 2]), ([2], [3])]
    assert _groups((4, 6), (6, 4)) == [([0, 1], [0, 1])]
    assert _groups((6, 1), (6,)) == [([0, 1], [0])]


def _merged(factors: list[int], cuts: set[int]) -> list[int]:
    """Return the products of the factors between the cuts."""
    ends = sorted({*cuts, len(factors)})
    return [prod(factors[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
