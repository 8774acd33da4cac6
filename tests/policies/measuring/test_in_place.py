from __future__ import annotations

import math

import pytest

from policies.measuring.duel import FLOOR
from policies.measuring.in_place import fastest_in_place


def test_without_another_version_the_incumbent_stays() -> None:
    assert fastest_in_place([[1.0, 1.0]]) == 0


@pytest.mark.parametrize(("below", "chosen"), [(1.01, 1), (0.99, 0)])
def test_another_version_has_to_be_faster_by_two_errors(below: float, chosen: int) -> None:
    # Four rounds that agree: the error is the floor's, FLOOR / 2, so that a share of FLOOR decides.
    faster = math.exp(-below * FLOOR)
    assert fastest_in_place([[1.0, 2.0, 1.0, 4.0], [faster, 2 * faster, faster, 4 * faster]]) == chosen


def test_a_version_that_is_faster_in_one_round_only_is_not_chosen() -> None:
    # Ratios of 0.5, 1, 1, 1: a mean of -0.173 with an error of 0.173.
    assert fastest_in_place([[1.0] * 4, [0.5, 1.0, 1.0, 1.0]]) == 0


def test_of_two_that_are_faster_the_fastest_is_chosen() -> None:
    assert fastest_in_place([[1.0] * 3, [0.9] * 3, [0.8] * 3, [0.85] * 3]) == 2


def test_what_slows_all_versions_of_a_round_says_nothing() -> None:
    assert fastest_in_place([[1.0, 3.0, 1.0], [0.9, 2.7, 0.9]]) == 1
