"""Transposed convolutions as interleaved convolutions: the same numbers, and no products with zeros."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devices.networks.frontend import load_network
from devices.networks.graph.rewrites import transposed_convolutions
from devices.networks.tasks.lowering import LoweredNetwork, check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))


def lowered_and_checked(module: nn.Module, *inputs: torch.Tensor) -> LoweredNetwork:
    network = load_network((module.eval(), inputs))
    lowered = import_network(network, CPU)
    assert check_network(lowered, network)[1] < 1e-5
    assert lowered.left_out == ()
    return lowered


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 3, 4, 4), {"kernel_size": 4, "stride": 2, "padding": 1}),
        ((2, 3, 5, 7), {"kernel_size": 3, "stride": 2}),
        ((1, 3, 5, 4), {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}),
        ((1, 3, 4, 6), {"kernel_size": (5, 2), "stride": (3, 2), "padding": (2, 0), "output_padding": (2, 0)}),
        ((1, 3, 4, 4), {"kernel_size": 2, "stride": 3}),
        ((1, 3, 4, 4), {"kernel_size": 7, "stride": 2, "padding": 5}),
        ((1, 3, 1, 1), {"kernel_size": 4}),
        ((1, 3, 1, 5), {"kernel_size": 4, "stride": (2, 1), "padding": 1}),
        ((1, 3, 5, 5), {"kernel_size": 3, "dilation": 2}),
        ((1, 3, 5, 5), {"kernel_size": 3, "dilation": 2, "stride": 2, "padding": 1}),
        ((1, 6, 5, 4), {"kernel_size": 4, "stride": 2, "padding": 1, "groups": 3}),
        ((2, 6, 4, 5), {"kernel_size": (5, 4), "stride": (3, 2), "padding": (1, 1), "groups": 2}),
        ((1, 3, 4, 5), {"kernel_size": (6, 3), "stride": (2, 1), "padding": (2, 1)}),
        ((1, 3, 6, 6), {"kernel_size": 4, "stride": 2, "padding": 3}),
    ],
)
@pytest.mark.parametrize("worthwhile", [0, 10**9], ids=["windows", "cut"])
def test_every_geometry(
    shape: tuple[int, ...], options: dict[str, int], worthwhile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transposed_convolutions, "WORTHWHILE", worthwhile)
    torch.manual_seed(0)
    lowered_and_checked(nn.ConvTranspose2d(shape[1], 6, **options), torch.randn(shape))  # type: ignore[arg-type]


def test_one_dimension() -> None:
    torch.manual_seed(0)
    lowered_and_checked(nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), torch.randn(2, 3, 9))


def test_norms_are_folded_and_zeros_are_not_multiplied() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16)
    nn.init.uniform_(norm.running_mean)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    module = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), norm, nn.ReLU())
    lowered = lowered_and_checked(module, torch.randn(1, 32, 8, 8))
    names = [task.workload.name.split(" ")[0] for task in lowered.tasks]
    assert names[1] == "conv2d"
    assert names[2].endswith("_add_relu")
    assert "multiply" not in " ".join(names)
    # 9 x 9 positions, 4 remainders of 16 channels, 2 x 2 taps of 32 channels.
    assert lowered.tasks[1].workload.flop == 2 * 9 * 9 * 4 * 16 * 4 * 32


def test_nothing_is_cut_off_where_copies_of_the_input_cost_less() -> None:
    torch.manual_seed(0)
    lowered = lowered_and_checked(nn.ConvTranspose2d(128, 128, 4, 2, 1), torch.randn(1, 128, 4, 4))
    # 4 x 4 positions, 4 remainders of 128 channels, 2 x 2 taps of 128 channels.
    assert max(task.workload.flop for task in lowered.tasks) == 2 * 4 * 4 * 4 * 128 * 4 * 128


def test_groups_keep_their_norm() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.ConvTranspose2d(8, 6, 4, 2, 1, groups=2), nn.BatchNorm2d(6))
    nn.init.uniform_(module[1].running_var, 0.5, 2)  # type: ignore[arg-type]
    lowered_and_checked(module, torch.randn(1, 8, 5, 5))
