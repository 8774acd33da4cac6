"""The convolutions of AutoTVM's table 1: their sizes by hand, and their names in a dataset."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bench.datasets import labels, pick
from bench.networks.resnet18_operators import operators
from bench.networks.resnet18_table import CONVOLUTIONS, name_of
from bench.result import BenchError
from examples.networks import resnet18
from fleet_tune.base.domain import Workload
from fleet_tune.base.task_data import Dataset, TaskData

FLOPS = {  # by hand: 2 * (output size)^2 * outputs * inputs * kernel^2
    "C1": 2 * 112 * 112 * 64 * 3 * 49,
    "C2": 2 * 56 * 56 * 64 * 64 * 9,
    "C5": 2 * 28 * 28 * 128 * 64,
    "C12": 2 * 7 * 7 * 512 * 512 * 9,
}


def test_operations_by_hand() -> None:
    assert FLOPS["C1"] == 236_027_904
    assert {name: CONVOLUTIONS[name].flop for name in FLOPS} == FLOPS


def test_they_are_all_convolutions_of_resnet_18() -> None:
    network, inputs = resnet18()
    met: set[tuple[int, int, int, int, int]] = set()

    def note(layer: torch.nn.Module, given: tuple[torch.Tensor, ...], _: object) -> None:
        assert isinstance(layer, torch.nn.Conv2d)
        met.add((given[0].shape[-1], layer.in_channels, layer.out_channels, layer.kernel_size[0], layer.stride[0]))

    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        network(*inputs)
    table = {dataclasses.astuple(row) for row in CONVOLUTIONS.values()}
    assert met == table - {dataclasses.astuple(CONVOLUTIONS["C3"])}  # torchvision's network has no 1x1 of 64 to 64


def test_the_module_has_each_once() -> None:
    module, inputs = operators()
    with torch.no_grad():
        results = module(*inputs)
    shapes = [tuple(each.shape) for each in results]
    assert shapes[:4] == [(1, 112, 112, 64), (1, 56, 56, 64), (1, 56, 56, 64), (1, 28, 28, 128)]
    assert shapes[-2:] == [(1, 7, 7, 512), (1024, 1024)]
    assert len(shapes) == 13


@pytest.mark.parametrize(
    ("name", "flop", "expected"),
    [
        ("conv2d 56x56x64", FLOPS["C2"], "C2"),
        ("conv2d 56x56x64#2", FLOPS["C2"] / 9, "C3"),
        ("conv2d 28x28x128", FLOPS["C5"] * 1.01, "C5"),
        ("conv2d 7x7x512", FLOPS["C12"], "C12"),
        ("matmul 1024x1024", 2.0 * 1024**3, "Matmul-1024"),
        ("conv2d 56x56x64", FLOPS["C2"] / 2, None),
        ("conv2d_add_relu 56x56x64", FLOPS["C2"], None),
        ("matmul 12x1024x1024", 2.0 * 1024**3, None),
    ],
)
def test_a_workload_is_known_by_its_shape_and_operations(name: str, flop: float, expected: str | None) -> None:
    assert name_of(Workload("h", name, flop, "")) == expected


def test_they_are_picked_by_their_names(data: TaskData) -> None:
    def recorded(name: str, flop: float) -> TaskData:
        workload = dataclasses.replace(data.task.workload, name=name, flop=flop)
        return dataclasses.replace(data, task=dataclasses.replace(data.task, workload=workload))

    names = labels(
        Dataset(
            "m",
            (),
            (
                recorded("conv2d 7x7x512", FLOPS["C12"]),
                recorded("conv2d 112x112x64", FLOPS["C1"]),
                recorded("fused_conv2d_add_relu 28x28x256", 1e6),
            ),
        )
    )
    assert names == ("C12 conv2d 7x7x512", "C1 conv2d 112x112x64", "conv2d_add_relu 28x28x256")
    assert pick(names, ["C1"]) == (1,)
    assert pick(names, ["C1", "conv2d"]) == (1, 0)
    assert pick(names, ["conv2d_add_relu"]) == (2,)
    with pytest.raises(BenchError, match="no task of the dataset is called 'C2'"):
        pick(names, ["C2"])
