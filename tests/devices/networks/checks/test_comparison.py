"""When two results of a network are equal: errors, special values, and the tolerance of its types and its depth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from devices.networks.checks.comparison import errors_of
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import (
    check_network,
    compare,
    tolerance,
)
from fleet_tune.base.errors import NetworkError
from tests.helpers.lowered_networks import imported


def test_a_network_that_disagrees_is_refused() -> None:
    lowered, _ = imported(nn.Linear(3, 2), torch.ones(1, 3))
    with pytest.raises(NetworkError, match="disagrees"):
        check_network(lowered, load_network((nn.Linear(3, 2), (torch.ones(1, 3),))))


def test_errors_are_relative_to_the_largest_value() -> None:
    assert compare((np.array([1.0, 4.5]),), (np.array([1.0, 5.0]),)) == (0.5, 0.1)
    assert compare((np.array([0.25]),), (np.array([0.0]),)) == (0.25, 0.25)
    assert compare((np.zeros(2),), (np.zeros(3),))[0] == float("inf")
    assert compare((np.array([np.nan]),), (np.array([1.0]),))[1] == float("inf")
    assert compare((np.zeros(2),), ())[0] == float("inf")
    tokens = np.array([30_000, 7, 8, 9])
    assert compare((tokens - [1, 0, 0, 0],), (tokens,)) == (1.0, 0.25)  # near is not enough for an index
    assert compare((tokens.astype(np.int8) - np.int8(1),), (tokens.astype(np.int8),)) == (1.0, 0.0)  # one step
    assert compare((np.array([True, False]),), (np.array([True, True]),)) == (1.0, 0.5)


@pytest.mark.parametrize("mask", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_a_mask_hides_no_error(mask: float) -> None:
    expected = np.array([[1.0, mask, mask], [2.0, 4.0, mask]], np.float32)
    wrong = np.array([[1.0, mask, mask], [2.0, 3.0, mask]], np.float32)
    assert compare((wrong,), (expected,)) == (1.0, 0.25)
    assert errors_of((wrong,), (expected,)).mean == pytest.approx(1 / 24)
    elsewhere = np.array([[1.0, mask, mask], [2.0, mask, mask]], np.float32)
    assert compare((elsewhere,), (expected,))[1] >= 1.0
    assert compare((np.full(3, mask),), (np.full(3, mask),)) == (0.0, 0.0)
    assert compare((np.array([9e4, 5e4]),), (np.array([1e5, 5e4]),))[1] == 0.1  # one large value is none


def test_special_values_are_equal_in_the_same_places_only() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 2.0])
    assert compare((special.copy(),), (special,)) == (0.0, 0.0)
    assert compare((special + 0.5,), (special,)) == (0.5, 0.25)
    assert compare((np.full(2, np.nan),), (np.full(2, np.nan),)) == (0.0, 0.0)
    for place in range(4):
        other = special.copy()
        other[place] = np.nan if place else 1.0
        assert compare((other,), (special,)) == (float("inf"), float("inf"))
    assert compare((np.array([np.inf]),), (np.array([-np.inf]),))[1] == float("inf")


class HalfInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.half()).float()


def test_the_tolerance_follows_type_and_depth() -> None:
    one, _ = imported(nn.Linear(8, 8), torch.ones(1, 8))
    deep, _ = imported(nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), torch.ones(1, 8))
    half, _ = imported(nn.Linear(8, 8).half(), torch.ones(1, 8).half())
    assert tolerance(one) == 2.0**-13
    assert tolerance(deep) == 2.0**-12
    assert tolerance(half) == 2.0**-9
    inside, _ = imported(HalfInside(), torch.ones(1, 8))
    assert tolerance(inside) >= 2.0**-9


class Norm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum((-2, -1)).sqrt()


def test_a_long_sum_one_after_the_other_is_allowed_its_rounding() -> None:
    torch.manual_seed(0)
    lowered, network = imported(Norm(), torch.randn(1, 1024, 1024))
    assert 2.0**-13 < check_network(lowered, network)[1] < tolerance(lowered) < 2.0**-9


class RoundedInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to(torch.bfloat16).to(torch.float32).relu())  # type: ignore[no-any-return]


def test_rounding_between_two_kernels_in_float32_is_allowed_for() -> None:
    torch.manual_seed(0)
    lowered, network = imported(RoundedInside(), torch.randn(4, 64))
    assert lowered.halves == ("bfloat16",)
    assert 2.0**-13 < check_network(lowered, network)[1] < tolerance(lowered)
