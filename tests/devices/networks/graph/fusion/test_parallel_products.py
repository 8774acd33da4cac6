"""Products of one input with several weights as one product: the same numbers, fewer kernels, and no copies instead."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.export import Dim

from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.shapes.shapes import parse_shapes

CPU = DeviceClass("cpu", resolve_target("native", 2))


def products(module: nn.Module, *inputs: torch.Tensor, device_class: DeviceClass = CPU) -> Counter[str]:
    """How often the network calls each kernel that has a product in it, by the kernel's name and shape."""
    torch.manual_seed(0)
    network = load_network((module.eval(), inputs))
    lowered = import_network(network, device_class)
    check_network(lowered, network)
    assert lowered.left_out == ()
    assert not any(task.workload.name.startswith("strided_slice ") for task in lowered.tasks)  # no copies of their own
    return Counter({t.workload.name: t.weight for t in lowered.tasks if t.workload.name.startswith("matmul")})


class Attention(nn.Module):
    """Four heads of eight for the queries, ``shared`` for keys and values; the keys have no bias."""

    def __init__(self, shared: int = 4) -> None:
        super().__init__()
        self.shared = shared
        self.query, self.value = nn.Linear(24, 32), nn.Linear(24, 8 * shared)
        self.key = nn.Linear(24, 8 * shared, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = ((self.query, 4), (self.key, self.shared), (self.value, self.shared))
        query, key, value = (layer(x).view(1, x.shape[1], heads, 8).transpose(1, 2) for layer, heads in pairs)
        key, value = (each.repeat_interleave(4 // self.shared, 1) for each in (key, value))
        return nn.functional.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(("shared", "width"), [(4, 96), (2, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_query_key_and_value_are_one_product(shared: int, width: int, dtype: torch.dtype) -> None:
    found = products(Attention(shared).to(dtype), torch.randn(1, 6, 24).to(dtype))
    projections = [name for name in found if name.endswith(f" 6x{width}")]
    assert len(projections) == 1
    assert sum(found.values()) == 3  # beside it: with the keys, with the values


def test_over_any_number_of_tokens_they_are_one_product_too() -> None:
    torch.manual_seed(0)
    module, tokens = Attention().eval(), Dim("tokens", min=1, max=9)
    network = load_network((module, (torch.randn(1, 6, 24),), ({1: tokens},)), shapes=parse_shapes("tokens=1..9"))
    lowered = import_network(network, CPU)
    check_network(lowered, network)
    assert [task.workload.name for task in lowered.tasks if task.workload.name.startswith("matmul")] == [
        "matmul_add 8x96"
    ]


def test_one_core_has_no_threads_to_wake() -> None:
    found = products(Attention(), torch.randn(1, 6, 24), device_class=DeviceClass("one", resolve_target("native", 1)))
    assert sum(found.values()) == 5


class Gated(nn.Module):
    """What is done with each product element by element is done in its kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(24, 32), nn.Linear(24, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.gate(x)) * self.up(x)


class Returned(Gated):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return self.gate(x), self.up(x).view(1, 6, 4, 8)


@pytest.mark.parametrize("network", [Gated, Returned])
def test_products_whose_slices_would_be_copies_stay_apart(network: type[nn.Module]) -> None:
    found = products(network(), torch.randn(1, 6, 24))
    assert sum(found.values()) == 2
    assert all(name.endswith("6x32") for name in found)


def test_products_of_different_inputs_stay_apart() -> None:
    class Cross(Attention):
        def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            query = self.query(x).view(1, 6, 4, 8).transpose(1, 2)
            key, value = (layer(memory).view(1, 7, 4, 8).transpose(1, 2) for layer in (self.key, self.value))
            return nn.functional.scaled_dot_product_attention(query, key, value)

    found = products(Cross(), torch.randn(1, 6, 24), torch.randn(1, 7, 24))
    assert {name.split(" ")[1] for name in found} >= {"6x32", "7x64"}
