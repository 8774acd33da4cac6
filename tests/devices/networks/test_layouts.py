"""Layouts of convolutions and of what is between them: which they have, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.helpers.lowered_networks import agrees, imported, names


def test_depthwise_and_relu6_stay_in_one_layout() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 4, 1), nn.Hardswish(), nn.Conv2d(4, 4, 3), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip
    lowered, network = imported(module, torch.randn(1, 3, 12, 12))
    agrees(lowered, network)
    assert not any("transpose" in name for name in names(lowered))


@pytest.mark.parametrize(
    ("convolution", "extents", "transposes"),
    [  # operations for each byte that would change its layout: 32 are asked
        (nn.Conv2d(32, 32, 3, padding=1), (12, 12), 2),  # 72
        (nn.Conv2d(32, 32, 3, padding=1, groups=32), (12, 12), 0),  # 2
        (nn.Conv2d(64, 64, 3, padding=1, groups=4), (12, 12), 2),  # 36
        (nn.Conv2d(64, 64, 3, padding=1, groups=16), (12, 12), 0),  # 9
        (nn.Conv1d(64, 64, 3, padding=1), (40,), 2),  # 48
        (nn.Conv1d(64, 64, 7, padding=3, groups=64), (40,), 0),  # 2
        (nn.Conv3d(8, 8, 3, padding=1), (6, 6, 6), 2),  # 54
        (nn.Conv3d(8, 8, 3, padding=1, groups=8), (6, 6, 6), 0),  # 7
    ],
)
def test_the_layout_of_a_lone_convolution_changes_where_that_pays(
    convolution: nn.Module, extents: tuple[int, ...], transposes: int
) -> None:
    lowered, network = imported(convolution, torch.randn(1, convolution.in_channels, *extents))
    agrees(lowered, network)
    assert sum("transpose" in name for name in names(lowered)) == transposes


def test_only_the_convolutions_that_are_worth_it_have_channels_last() -> None:
    class StemAndMixer(nn.Module):
        """Dense convolutions, then, between products, a depthwise one over channels and positions."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
            self.before, self.after = nn.Linear(64, 64), nn.Linear(64, 8)
            self.mix = nn.Conv1d(32, 32, 3, padding=1, groups=32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            positions = self.before(self.stem(x).flatten(2)).relu()
            return self.after(self.mix(positions))  # type: ignore[no-any-return]

    lowered, network = imported(StemAndMixer(), torch.randn(1, 3, 8, 8))
    agrees(lowered, network)
    shown = [task.workload.name for task in lowered.tasks]
    assert [name for name in shown if "transpose" in name] == ["transpose_reshape 32x64"]
    assert [name for name in shown if "conv" in name] == [
        "conv2d_add_relu 8x8x32", "conv2d_add 8x8x32", "conv1d_add 32x64"
    ]  # fmt: skip


def test_inverted_residuals_with_squeeze_and_excitation_are_one_chain_of_channels_last() -> None:
    class InvertedResidual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expand, self.project = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 16, 1)
            self.depthwise = nn.Conv2d(48, 48, 5, padding=2, groups=48)
            self.squeeze, self.excite = nn.Conv2d(48, 12, 1), nn.Conv2d(12, 48, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = nn.functional.hardswish(self.depthwise(nn.functional.hardswish(self.expand(x))))
            scale = self.excite(self.squeeze(nn.functional.adaptive_avg_pool2d(inner, 1)).relu())
            return x + self.project(inner * nn.functional.hardsigmoid(scale))  # type: ignore[no-any-return]

    chain = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *(InvertedResidual() for _ in range(3)), nn.AdaptiveAvgPool2d(1))
    lowered, network = imported(chain, torch.randn(1, 3, 24, 24))
    agrees(lowered, network)
    assert not any("transpose" in name for name in names(lowered))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (
            nn.Sequential(nn.Conv1d(8, 32, 3), nn.BatchNorm1d(32), nn.GELU(), nn.MaxPool1d(2), nn.Conv1d(32, 32, 3)),
            (20,),
        ),
        (nn.Sequential(nn.Conv3d(8, 32, 3), nn.ReLU6(), nn.MaxPool3d(2), nn.Conv3d(32, 32, 3, groups=2)), (9, 9, 10)),
    ],
)
def test_channels_last_in_one_and_three_dimensions(module: nn.Module, shape: tuple[int, ...]) -> None:
    lowered, network = imported(module, torch.randn(1, 8, *shape))
    agrees(lowered, network)
    convolutions = [each.workload.name for each in lowered.tasks if "conv" in each.workload.name]
    assert len(convolutions) == 2
    assert all(name.endswith("x32") for name in convolutions)


def test_operators_between_convolutions_in_either_layout() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Softplus(), nn.Conv2d(8, 8, 1), nn.InstanceNorm2d(8), nn.GELU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(8, 8, 3, groups=2), nn.AvgPool2d(2), nn.PReLU(), nn.Conv2d(8, 16, 1),
        nn.PixelShuffle(2), nn.Conv2d(4, 4, 3, dilation=2), nn.AdaptiveAvgPool2d(2), nn.Softmax(1), nn.ZeroPad2d(1),
    )  # fmt: skip
    agrees(*imported(module, torch.randn(1, 3, 10, 10)))


def test_a_convolution_that_is_read_twice_is_not_folded() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return self.norm(y) + y.mean((2, 3), keepdim=True)  # type: ignore[no-any-return]

    lowered, network = imported(Shared(), torch.randn(1, 3, 8, 8))
    agrees(lowered, network)
    assert sum(task.weight for task in lowered.tasks if "conv2d" in task.workload.name) == 1


class Patches(nn.Module):
    """What vision transformers do behind their convolution: ``rearrange`` is applied to patches of 1x8x4x4."""

    def __init__(self, rearrange: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.rearrange, self.patch = rearrange, nn.Conv2d(3, 8, 4, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.rearrange(self.patch(x)))


@pytest.mark.parametrize(
    "rearrange",
    [
        lambda y: y.flatten(2).transpose(1, 2).unflatten(-1, (2, 4)).unsqueeze(0).transpose(0, -2).squeeze(-2)[1],
        lambda y: y.mean(-3, keepdim=True).squeeze(-3),
        lambda y: torch.stack([y, 2 * y], dim=-2),
        lambda y: y.repeat_interleave(2),
        lambda y: y.permute(0, -2, -1, 1),
    ],
)
def test_operators_behind_a_convolution_that_layouts_may_not_pass(
    rearrange: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    lowered, network = imported(Patches(rearrange), torch.randn(1, 3, 16, 16))
    agrees(lowered, network)
    assert lowered.left_out == ()
