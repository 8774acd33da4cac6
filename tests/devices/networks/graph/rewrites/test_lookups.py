"""Look-ups in tables: one kernel, whatever the frontend put around it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))


class Rows(nn.Module):
    """Rows of a table, at places of any shape, and of which some count from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(9, 16))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.table[places]


@pytest.mark.parametrize("module", [nn.Embedding(9, 16), Rows()], ids=["embedding", "index"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_look_up_is_one_kernel(module: nn.Module, dtype: torch.dtype) -> None:
    places = torch.tensor([[0, 8, 3], [5, 5, -1 if isinstance(module, Rows) else 1]], dtype=dtype)
    network = load_network((module.eval(), (places,)))
    lowered = import_network(network, CPU)
    assert [task.workload.name for task in lowered.tasks] == ["take 2x3x16"]
    assert check_network(lowered, network)[0] == 0.0


class Flat(nn.Module):
    """Elements of a table of one axis, at places that are made flat."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(9))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return torch.take(self.table, places.reshape(-1))


def test_what_is_taken_at_places_that_are_made_flat_is_flat() -> None:
    network = load_network((Flat().eval(), (torch.tensor([[0, 8, 3], [5, 5, 1]]),)))
    assert check_network(import_network(network, CPU), network)[0] == 0.0
