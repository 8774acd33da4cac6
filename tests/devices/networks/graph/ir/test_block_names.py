"""Kernels are named by what they compute: a record of one network fits the equal kernel of another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devices.builds.executables import blocks
from devices.networks.frontend import load_network
from devices.networks.graph.ir.block_names import rename_blocks, stable_name
from devices.networks.tasks.lowering import import_network
from devices.sketches.spaces import parse_module
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))


class Deep(nn.Module):
    """``depth`` layers, then a maximum of each row and what is around it."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return torch.softmax(x, -1) * x.amax(-1, keepdim=True), nn.functional.layer_norm(x, (32,))


def names_by_workload(depth: int) -> dict[str, list[str]]:
    lowered = import_network(load_network((Deep(depth).eval(), (torch.randn(4, 16, 32),))), CPU)
    return {
        task.workload.hash: [block.name_hint for block in blocks(parse_module(task.workload.module)["main"].body)]
        for task in lowered.tasks
    }


def test_equal_kernels_of_different_networks_have_equal_names() -> None:
    shallow, deep = names_by_workload(1), names_by_workload(3)
    assert len(shallow) >= 4
    assert shallow == deep
    assert ["root", "red"] in shallow.values()


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("lv63_red", "red"),
        ("input_ids_red_2", "red"),
        ("lv12_conv", "conv"),
        ("T_add_1", "T_add"),
        ("conv2d_NCHWc", "conv2d_NCHWc"),
        ("T_softmax_maxelem", "T_softmax_maxelem"),
        ("conv2d", "conv2d"),
    ],
)
def test_a_name_without_what_it_has_of_a_network(name: str, stable: str) -> None:
    assert stable_name(name) == stable


def test_equal_names_are_numbered_and_named_kernels_stay_as_they_are() -> None:
    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, -1) * torch.softmax(x * 2, -1)

    lowered = import_network(load_network((Sums().eval(), (torch.randn(4, 8),))), CPU)
    for task in lowered.tasks:
        function = parse_module(task.workload.module)["main"]
        names = [block.name_hint for block in blocks(function.body)]
        assert len(set(names)) == len(names)
        assert rename_blocks(function).same_as(function)
