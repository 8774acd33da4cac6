from __future__ import annotations

import math

import pytest

from policies.measuring.duel import FLOOR
from policies.measuring.in_network import fastest_in_network, is_worth_it, judged_in_network, still_holds


def chosen(secs: list[list[float]]) -> int:
    found = fastest_in_network(secs)
    return 0 if found is None else found[0]


def test_without_another_version_the_incumbent_stays() -> None:
    assert chosen([[1.0, 1.0]]) == 0


@pytest.mark.parametrize(("below", "number"), [(1.01, 1), (0.99, 0)])
def test_another_version_has_to_be_faster_beyond_doubt(below: float, number: int) -> None:
    # Four rounds that agree: the error is the floor's, FLOOR / 2, and t is 4.541.
    faster = math.exp(-below * 4.541 * FLOOR / 2)
    assert chosen([[1.0, 2.0, 1.0, 4.0], [faster, 2 * faster, faster, 4 * faster]]) == number


def test_the_verdict_says_by_how_much() -> None:
    # The logarithms are -0.2 and -0.1, three times each: a mean of -0.15, a deviation of 0.05 * sqrt(6 / 5).
    verdict = judged_in_network([math.exp(-0.2)] * 3 + [math.exp(-0.1)] * 3, [1.0] * 6)
    assert verdict.ratio == pytest.approx(math.exp(-0.15))
    assert verdict.error == pytest.approx(0.05 / math.sqrt(5))
    assert (verdict.pairs, verdict.faster) == (6, True)  # 3.365 * 0.0224 = 0.075 < 0.15


def test_a_version_that_is_faster_in_one_round_only_is_not_chosen() -> None:
    # Ratios of 0.5, 1, 1, 1: a mean of -0.173 with an error of 0.173.
    assert chosen([[1.0] * 4, [0.5, 1.0, 1.0, 1.0]]) == 0


def test_of_two_that_are_faster_the_fastest_is_chosen() -> None:
    assert chosen([[1.0] * 4, [0.9] * 4, [0.8] * 4, [0.85] * 4]) == 2


def test_what_slows_all_versions_of_a_round_says_nothing() -> None:
    assert chosen([[1.0, 3.0, 1.0], [0.9, 2.7, 0.9]]) == 1


@pytest.mark.parametrize("rounds", [1, 9])
def test_too_few_rounds_and_too_many_are_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match="rounds"):
        judged_in_network([1.0] * rounds, [1.0] * rounds)


def test_a_network_has_to_be_faster_by_a_hundredth() -> None:
    assert is_worth_it(0.99, 1.0)
    assert not is_worth_it(0.991, 1.0)


def test_a_choice_holds_while_the_best_alone_is_one_that_was_timed() -> None:
    assert still_holds("b", ("b", "a"), "a")
    assert still_holds("b", ("b", "a"), "b")
    assert not still_holds("b", ("b", "a"), "c")
    assert not still_holds("b", (), "b")
