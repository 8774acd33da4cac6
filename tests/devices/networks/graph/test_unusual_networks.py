"""Legal networks that a rewrite of the graph could take for others: the numbers are torch's, no step is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _result_as_values(q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
    x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    return F.scaled_dot_product_attention(p, p, x.transpose(1, 2).reshape(q.shape) * 1.0)


def _result_as_keys(q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
    x = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    return torch.softmax(p @ x.transpose(-1, -2), -1) @ v


def _moved_result(q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
    x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 2, 32, 16)
    return F.scaled_dot_product_attention(p, k, x)


HEADS = tuple(_randn(1, 2, 32, 16) for _ in range(4))

NETWORKS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "an attention's values are another's result": (_result_as_values, HEADS),
    "an attention's keys are another's result": (_result_as_keys, HEADS),
    "an attention's values are another's result at other places": (_moved_result, HEADS),
    "centres of pixels": (lambda x: x + torch.arange(0.5, 16.5), (_randn(3, 16),)),
    "a range by fractions": (lambda x: x * torch.arange(0, 1, 0.25) + x.transpose(0, 1), (_randn(4, 4),)),
    "what rounding takes away": (lambda x: x - x.half().float(), (_randn(5, 7),)),
    "numbers that are too large for half precision": (lambda x: (x * 1e6).half().float(), (_randn(5, 7),)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_numbers_are_torchs(name: str) -> None:
    function, inputs = NETWORKS[name]
    _agrees((Of(function).eval(), inputs))


def test_weights_of_float64_stay_so() -> None:
    module = nn.ConvTranspose2d(8, 4, 3, stride=2).double().eval()
    nn.init.normal_(module.weight)
    _agrees((module, (_randn(1, 8, 5, 5).double(),)))


def test_a_scale_that_would_make_weights_of_half_precision_vanish_stays_apart() -> None:
    weights = (_randn(64, 32) * 0.02).half()
    _agrees((Of(lambda x: (x @ weights).float() * 1e-5).eval(), (_randn(8, 64).half(),)))


def test_axes_from_the_end_in_a_dynamic_batch() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), Of(lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1)))
    _agrees((module.eval(), (_randn(2, 3, 8, 8),), ({0: Dim("n", min=1, max=4)},)))


def test_a_look_up_at_places_of_two_axes_in_a_dynamic_batch() -> None:
    network = Of(lambda x, at: x[:, at.view(-1)])
    places = torch.tensor([[0, 2, 1], [4, 4, 3]])
    _agrees((network.eval(), (_randn(2, 5, 3), places), (({0: Dim("n", min=1, max=4)}, None),)))


def test_a_part_of_dynamic_length_of_a_transposed_value() -> None:
    network = Of(lambda cache, x: cache.transpose(1, 2)[:, :, : x.shape[0]] * x[:, 0])
    _agrees((network.eval(), (_randn(2, 8, 4), _randn(5, 3)), ((None, {0: Dim("n", min=1, max=8)}),)))


def _agrees(example: tuple[Any, ...]) -> None:
    network = load_network(example)
    lowered = import_network(network, CPU)
    assert lowered.left_out == ()
    check_network(lowered, network)  # raises where they disagree
