"""Networks lowered for this machine's CPU, as the tests of lowering look at them."""

from __future__ import annotations

import torch
from torch import nn

from devices.networks.frontend import Network, load_network
from devices.networks.tasks.lowering import (
    LoweredNetwork,
    check_network,
    import_network,
)
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))


def imported(module: nn.Module, *inputs: torch.Tensor) -> tuple[LoweredNetwork, Network]:
    """A module with its inputs, lowered."""
    network = load_network((module.eval(), inputs))
    return import_network(network, CPU), network


def names(lowered: LoweredNetwork) -> list[str]:
    """Names of the tasks without their shapes."""
    return [task.workload.name.split(" ")[0] for task in lowered.tasks]


def agrees(lowered: LoweredNetwork, network: Network) -> None:
    """Assert that it computes what the framework does."""
    absolute, relative = check_network(lowered, network)
    assert absolute < 1e-4
    assert relative < 1e-5
