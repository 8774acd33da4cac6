"""Values over dynamic dimensions that are one number everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from tvm import relax

from devices.networks.frontend import load_network
from devices.networks.graph.folding.uniform_values import replace_uniform_values
from devices.networks.tasks.lowering import import_network
from tests.helpers.dynamic_networks import agree_at
from tests.helpers.lowered_networks import CPU, names


class Computes(nn.Module):
    def __init__(self, computes: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.computes = computes

    def forward(self, x: Tensor) -> Tensor:
        return self.computes(x)


def network(computes: Callable[[Tensor], Tensor], least: int = 1) -> Any:
    return load_network((Computes(computes), (torch.randn(3, 4),), ({0: Dim("n", min=least, max=9)},)))


def operators(module: Any) -> list[str]:
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    return [each.value.op.name.removeprefix("relax.") for each in bindings if hasattr(each.value, "op")]


def places(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])[:, None]


def hidden(seen: Tensor) -> Tensor:
    return torch.where(seen, 0.0, float("-inf"))


@pytest.mark.parametrize(
    ("computes", "is_replaced"),
    [
        (lambda x: x + hidden(places(x) >= 0), True),
        (lambda x: hidden((places(x) + 1 > 0).expand(-1, 4)) + x, True),
        (lambda x: x * torch.where(places(x) < 9, 2.0, 3.0), True),
        (lambda x: x * torch.where(places(x) - 1 > 8, 2.0, 3.0), True),
        (lambda x: x + hidden(places(x) >= 1), False),
        (lambda x: x + hidden(places(x) <= 7), False),
        # The number has fewer dimensions than the result, which takes its shape from the other operand alone.
        (lambda x: x[:1] + torch.where(places(x) >= 0, 1.0, 2.0), False),
    ],
)
def test_a_number_takes_the_place_of_a_value_that_is_one_everywhere(
    computes: Callable[[Tensor], Tensor], is_replaced: bool
) -> None:
    found = network(computes)
    before = found.relax_module
    after = relax.transform.DeadCodeElimination(["main"])(replace_uniform_values(before))
    assert "where" in operators(before)
    assert ("where" not in operators(after)) == is_replaced
    agree_at(replace(found, relax_module=after), (1, 2, 9))


class Encoder(nn.Module):
    """Attention with a mask that hides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        seen = (torch.arange(count)[None, None, :, None] >= 0).expand(1, 1, count, count)
        query, key, value = (each(x).view(1, count, 2, 32).transpose(1, 2) for each in self.products)
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)


def test_attention_has_no_mask_that_hides_nothing() -> None:
    torch.manual_seed(0)
    found = load_network((Encoder().eval(), (torch.randn(6, 64),), ({0: Dim("n", min=1, max=64)},)))
    lowered = import_network(found, CPU)
    kernels = {variable.name_hint for variable in lowered.module.functions}
    assert any(each.startswith("attention") for each in kernels)
    assert not any("where" in each or "arange" in each for each in kernels)
    assert "attention" in {each.partition("#")[0] for each in names(lowered)}
    agree_at(replace(found, relax_module=replace_uniform_values(found.relax_module)), (1, 5, 64))
