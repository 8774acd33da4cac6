"""Attention as one kernel of a network: what belongs to it, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from tests.helpers.attention import HEADS, WIDTH, Attention, by_hand, examples
from tests.helpers.lowered_networks import agrees, imported, names
from tests.helpers.workloads import TARGETS


@pytest.mark.parametrize("form", sorted(examples()))
def test_it_is_one_kernel_with_the_copies_around_it(form: str) -> None:
    lowered, network = imported(*_flat(form))
    assert lowered.left_out == ()
    found = names(lowered)
    assert found.count("attention") == 1
    # Beside it: the product before it, and masks.
    assert all(
        each == "attention" or not any(copy in each for copy in ("softmax", "transpose", "slice")) for each in found
    )
    agrees(lowered, network)


def test_a_mask_of_zeros_is_no_argument() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention(by_hand)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.attention(x, torch.zeros(1, 1, 32, 32))
            return out

    (x,) = examples()["plain"][1]
    lowered, network = imported(Masked(), x)
    (kernel,) = (function for name, function in lowered.module.functions.items() if "attention" in name.name_hint)
    assert len(kernel.params) == 2  # the products, and the result
    agrees(lowered, network)


class _Weights(nn.Module):
    """Attention that returns its weights, or its scores, too."""

    def __init__(self, returned: str) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        scores = query @ key.transpose(-1, -2) * 0.25
        weights = torch.softmax(scores, -1)
        return weights @ value, scores if self.returned == "scores" else weights


class _Mixed(nn.Module):
    """Something that is nearly attention."""

    def __init__(self, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.mix(query, key, value)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2)


@pytest.mark.parametrize(
    "module",
    [
        _Weights("weights"),
        _Weights("scores"),
        _Mixed(lambda q, k, v: torch.softmax(_scores(q, k), -2) @ v),
        _Mixed(lambda q, k, v: torch.softmax(_scores(q, k) + _scores(k, q), -1) @ v),
        _Mixed(lambda q, k, v: v.transpose(-1, -2) @ torch.softmax(_scores(q, k), -1)),
        _Mixed(lambda q, _, v: torch.softmax(q, -1) @ v.transpose(-1, -2)),
        _Mixed(lambda q, k, v: torch.relu(_scores(q, k)) @ v),
        _Mixed(lambda q, k, v: torch.softmax(_scores(q, k), -1)[..., :5] @ v[..., :5, :]),
    ],
    ids=["weights", "scores", "axis", "two products", "from the left", "no scores", "no softmax", "a part"],
)
def test_what_is_read_elsewhere_or_differs_stays_apart(module: nn.Module) -> None:
    torch.manual_seed(2)
    lowered, network = imported(module, *(torch.randn(1, HEADS, 24, WIDTH) for _ in range(3)))
    assert "attention" not in names(lowered)
    assert lowered.left_out == ()
    agrees(lowered, network)


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_stay_apart(rows: int) -> None:
    module = _Mixed(lambda q, k, v: torch.softmax(_scores(q, k), -1) @ v)
    query, other = torch.randn(1, HEADS, rows, WIDTH), torch.randn(1, HEADS, 24, WIDTH)
    lowered, network = imported(module, query, other, other)
    assert "attention" not in names(lowered)
    agrees(lowered, network)


def test_halves_and_gpus_have_other_kernels() -> None:
    module, (x,) = examples()["plain"]
    half = import_network(load_network((module.half(), (x.half(),))), DeviceClass("cpu", resolve_target("native", 2)))
    assert "attention" not in names(half)
    module, inputs = examples()["plain"]
    gpu = import_network(load_network((module, inputs)), DeviceClass("gpu", resolve_target(TARGETS["sm_90"])))
    assert "attention" not in names(gpu)


def _flat(form: str) -> tuple[nn.Module, *tuple[Tensor, ...]]:
    module, inputs = examples()[form]
    return module, *inputs
