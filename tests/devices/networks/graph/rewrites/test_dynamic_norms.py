"""Batch norms over a dynamic batch become part of the convolution before them."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim

from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))


def normed() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    norm = module[1]
    assert isinstance(norm.running_mean, torch.Tensor)
    assert isinstance(norm.running_var, torch.Tensor)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 1.5)
    return module.eval()


def test_a_batch_norm_is_part_of_the_convolution() -> None:
    """So the tasks are those of a network of a fixed batch, and records of either are of use to the other."""
    example = (torch.randn(4, 3, 8, 8),)
    fixed = import_network(load_network((normed(), example)), CPU)
    network = load_network((normed(), example, ({0: Dim("n", min=1, max=4)},)))
    dynamic = import_network(network, CPU)
    check_network(dynamic, network)
    assert any(task.workload.name == "conv2d_add_relu 4x8x6x6" for task in dynamic.tasks)
    assert {task.workload.hash for task in dynamic.tasks} == {task.workload.hash for task in fixed.tasks}
