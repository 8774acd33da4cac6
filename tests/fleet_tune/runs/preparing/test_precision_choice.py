"""The choice of precisions: what saves the most time within an error, and the network that comes of it."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from devices.networks.checks.comparison import errors_of
from devices.networks.frontend import Network, load_network
from devices.networks.network import Array
from devices.networks.tasks.lowering import LoweredNetwork
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError, RequestError, UncheckedError
from fleet_tune.base.precision import Conversion, ConvertibleProduct, Precision, check_error_limit
from fleet_tune.runs.preparing.precision_choice import Choice, choose_precisions, most_saved
from tests.helpers.lowered_here import LoweredHere

CLASS = DeviceClass("cpu", resolve_target({"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu"}, 2))
BF16, INT8W = Precision.BF16, Precision.INT8W


def product(at: int, saved: float, *others: float) -> ConvertibleProduct:
    precisions = (BF16,) if not others else (INT8W, BF16)
    return ConvertibleProduct(at, f"matmul {at}", tuple(zip(precisions, (saved, *others), strict=True)))


class Delicate:
    """Fits unless one of these products is converted so; counts how often it was asked."""

    def __init__(self, delicate: Collection[tuple[int, Precision]]) -> None:
        self.delicate = frozenset(delicate)
        self.asked = 0

    def __call__(self, choice: Choice) -> bool:
        self.asked += 1
        return not self.delicate & choice.items()


def test_all_are_converted_in_one_run_where_all_fit() -> None:
    fits = Delicate([])
    assert most_saved([product(at, 1.0) for at in range(50)], fits, 24) == dict.fromkeys(range(50), BF16)
    assert fits.asked == 1


@given(delicate=st.sets(st.integers(0, 63), max_size=2))
def test_few_delicate_products_are_found_in_few_runs(delicate: set[int]) -> None:
    fits = Delicate([(at, BF16) for at in delicate])
    choice = most_saved([product(at, 1.0 + at) for at in range(64)], fits, 30)
    assert choice == dict.fromkeys(set(range(64)) - delicate, BF16)
    assert fits.asked <= 1 + 12 * len(delicate)


def test_the_next_best_precision_is_tried_where_the_best_one_does_not_fit() -> None:
    products = [product(0, 3.0, 1.0), product(1, 3.0, 1.0), product(2, 1.0)]
    assert most_saved(products, Delicate([(0, INT8W)]), 24) == {0: BF16, 1: INT8W, 2: BF16}


def test_what_saves_most_comes_first_where_errors_add_up() -> None:
    products = [product(0, 1.0), product(1, 5.0), product(2, 3.0)]
    assert most_saved(products, lambda choice: len(choice) <= 2, 24) == {1: BF16, 2: BF16}


def test_products_that_are_not_decided_in_time_stay() -> None:
    fits = Delicate([(0, BF16)])
    assert most_saved([product(at, 8.0 - at) for at in range(8)], fits, 1) == {}
    assert fits.asked == 1
    assert most_saved([], fits, 24) == {}


class Amplified(nn.Module):
    """A product whose rounding is amplified a thousand times, and one that it does not matter for."""

    def __init__(self) -> None:
        super().__init__()
        self.delicate, self.other = nn.Linear(32, 16, bias=False), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exact = (x @ self.delicate.weight.T.double().float()).sin()
        return self.other(x) + 30 * (self.delicate(x) * 20).sin() * exact.abs()


def network_of(module: nn.Module, x: torch.Tensor, error: float) -> Network:
    return load_network((module.eval(), (x,))).in_precision(Precision.AUTO, error)


def test_delicate_products_stay_in_float32() -> None:
    torch.manual_seed(0)
    network = network_of(Amplified(), torch.randn(40, 32), 2e-3)
    expected = network.framework_outputs()
    here = LoweredHere()
    choice = choose_precisions(network, CLASS, here, expected)
    assert choice.lowered.conversion is not None
    assert choice.lowered.conversion.counts == {"bf16": 1}
    assert errors_of(here.outputs(choice.lowered, network.example_inputs), expected).relative <= 2e-3
    assert choice.left_out
    assert {each.what for each in choice.left_out} == {"product"}
    assert all("in float32, as the error may be 0.002 (1 in bf16)" in each.reason for each in choice.left_out)


def test_an_error_that_nothing_fits_leaves_the_network_as_it_is() -> None:
    torch.manual_seed(0)
    network = network_of(nn.Linear(32, 16), torch.randn(40, 32), 1e-7)
    choice = choose_precisions(network, CLASS, LoweredHere(), network.framework_outputs())
    assert choice.lowered.conversion is not None
    assert choice.lowered.conversion.products == ()
    assert "none in another" in choice.left_out[0].reason


class Lacking(LoweredHere):
    """A machine that cannot run the network."""

    def outputs(self, lowered: LoweredNetwork, inputs: object) -> tuple[Array, ...]:  # noqa: ARG002
        raise UncheckedError("it takes too long")


def test_a_network_that_cannot_run_here_is_not_guessed_at() -> None:
    network = network_of(nn.Linear(32, 16), torch.randn(40, 32), 0.05)
    with pytest.raises(NetworkError, match="does not run here: it takes too long") as caught:
        choose_precisions(network, CLASS, Lacking(), network.framework_outputs())
    assert "name one precision" in caught.value.next_step


def test_a_largest_error_belongs_to_auto() -> None:
    check_error_limit(Precision.AUTO, 0.01)
    check_error_limit(None, None)
    with pytest.raises(RequestError, match="needs the largest error"):
        check_error_limit(Precision.AUTO, None)
    for other in (None, Precision.BF16):
        with pytest.raises(RequestError, match="is for the precision auto"):
            check_error_limit(other, 0.01)


def test_a_conversion_says_what_was_asked_and_what_was_chosen() -> None:
    assert Conversion(Precision.BF16).options == "bf16"
    assert Conversion(Precision.BF16).precisions == {Precision.BF16}
    chosen = Conversion(Precision.AUTO, 0.01, ((0, BF16), (2, INT8W), (5, BF16)))
    assert chosen.options == "auto --max-error 0.01"
    assert chosen.precisions == {BF16, INT8W}
    assert chosen.counts == {"bf16": 2, "int8w": 1}
