"""The time of the untuned network when it is compared, where it would be published as it runs then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from devices.networks.frontend import load_network
from devices.networks.network import Array, Network
from devices.networks.tasks.lowering import LoweredNetwork, UntunedResult, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes
from tests.helpers.dynamic_networks import layers
from tests.helpers.lowered_here import LoweredHere

CPU = DeviceClass("cpu", resolve_target("native", 2))
GPU = DeviceClass("gpu", resolve_target({"kind": "cuda", "arch": "sm_87"}))


class Cached(nn.Module):
    """Writes a row into a cache, which it returns."""

    def forward(self, x: torch.Tensor, at: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return cache.index_copy(0, at, x)


class OnTheProcessor(LoweredHere):
    """Computes what the framework does, in a second."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    def run(self, lowered: LoweredNetwork, inputs: Sequence[Array]) -> UntunedResult:
        at = self._network if lowered.shapes is None else self._network.at({"n": len(inputs[0])})
        return UntunedResult(at.framework_outputs(), 1.0)


def fixed() -> Network:
    torch.manual_seed(0)
    return load_network((nn.Linear(24, 32), (torch.randn(4, 24),)))


def cached() -> Network:
    return load_network((Cached(), (torch.randn(1, 8), torch.tensor([2]), torch.randn(6, 8))))


def untuned_secs(network: Network, device_class: DeviceClass) -> dict[str, float]:
    lowered = {device_class.name: import_network(network, device_class)}
    prepared = Prepared(network, {}, lowered, frozenset(lowered), {})
    return dict(device_classes.check(prepared, OnTheProcessor(network)).untuned_secs)


def test_it_is_kept() -> None:
    assert untuned_secs(fixed(), CPU) == {"cpu": 1.0}
    checked = device_classes.check(
        Prepared(fixed(), {}, {"cpu": import_network(fixed(), CPU)}, frozenset(), {}), LoweredHere()
    )
    assert 0 < checked.untuned_secs["cpu"] < 1, "a small network"


@pytest.mark.parametrize(
    ("network", "device_class"),
    [(fixed, GPU), (layers, CPU), (cached, CPU)],
    ids=["a GPU", "dynamic shapes, whose kernels run in parallel", "a cache, which is overwritten"],
)
def test_it_is_none_where_something_else_is_published(
    network: Callable[[], Network], device_class: DeviceClass
) -> None:
    assert not untuned_secs(network(), device_class)
