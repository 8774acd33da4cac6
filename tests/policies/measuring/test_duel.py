"""Duels by hand, as properties, and how often two equal kernels are told apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.domain import StopRule
from policies.measuring.duel import LEAST_PAIRS, MAX_PAIRS, challenger_first, judged, run_rule

RATIOS = st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=MAX_PAIRS)


def test_a_clear_improvement_is_found_after_three_pairs() -> None:
    assert judged([-0.7]) is None
    assert judged([-0.7, -0.7]) is None
    # Deviation at its floor, 1.5 %: error 0.866 %, and 31.599 of that are 27.4 %.
    found = judged([-0.7, -0.7, -0.7])
    assert found is not None
    assert (found.faster, found.pairs) == (True, 3)
    assert found.ratio == pytest.approx(0.4966, abs=1e-4)
    assert found.error == pytest.approx(0.00866, abs=1e-5)
    assert judged([-0.274, -0.274, -0.274]) is not None
    assert judged([-0.273, -0.273, -0.273]) is None


def test_a_small_one_takes_more_of_them() -> None:
    # Six: 6.869 * 1.5 % / sqrt(6) = 4.206 %; eight: 5.408 * 1.5 % / sqrt(8) = 2.868 %.
    assert judged([-0.0421] * 5) is None
    found = judged([-0.0421] * 6)
    assert found is not None
    assert found.faster
    assert judged([-0.0286] * 8) is None
    # Twelve see 4.437 * 1.5 % / sqrt(12) = 1.921 %.
    last = judged([-0.0193] * 12)
    assert last is not None
    assert last.faster
    not_quite = judged([-0.0191] * 12)
    assert not_quite is not None
    assert not not_quite.faster


@pytest.mark.parametrize("mean", [0.5, 0.0, -0.001])
def test_what_is_no_better_is_given_up_at_once(mean: float) -> None:
    found = judged([mean] * 3)
    assert found is not None
    assert (found.faster, found.pairs) == (False, 3)
    assert found.ratio == pytest.approx(math.exp(mean))


def test_without_time_the_incumbent_stays() -> None:
    found = judged([-0.7], out_of_time=True)
    assert found is not None
    assert not found.is_decided
    assert found is not None
    assert not found.faster


@pytest.mark.parametrize("ratios", [[], [math.nan], [0.1, math.inf]])
def test_there_is_nothing_to_judge_by(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="no ratios"):
        judged(ratios)


@given(RATIOS)
def test_it_ends_and_a_slower_one_never_wins(ratios: list[float]) -> None:
    found = judged(ratios)
    if len(ratios) == MAX_PAIRS:
        assert found is not None
    if found is not None:
        assert LEAST_PAIRS <= found.pairs == len(ratios)
        assert not found.faster or found.ratio < 1


@given(RATIOS)
def test_of_two_candidates_at_most_one_is_faster(ratios: list[float]) -> None:
    one, other = judged(ratios), judged([-each for each in ratios])
    assert one is None or other is None or not (one.faster and other.faster)


def test_the_order_turns_around() -> None:
    assert [challenger_first(pair) for pair in range(4)] == [False, True, False, True]


def test_each_run_has_a_fixed_number_of_micro_batches() -> None:
    rule = run_rule(StopRule(timeout_secs=3.0))
    assert (rule.min_batches, rule.max_batches, rule.race_factor, rule.timeout_secs) == (2, 2, math.inf, 3.0)


Noise = Callable[[np.random.Generator, int], np.ndarray]
NOISES: dict[str, Noise] = {
    "quiet": lambda rng, n: rng.normal(0, 0.003, n),
    "noisy": lambda rng, n: rng.normal(0, 0.05, n),
    "heavy tails": lambda rng, n: 0.02 * rng.standard_t(2, n),
    # Where the tensors of each side lie makes 0 or 20 % of its time.
    "two placements": lambda rng, n: 0.2 * (rng.integers(0, 2, n) - rng.integers(0, 2, n)) + rng.normal(0, 0.003, n),
    # 18 ms at one moment, 25 at the next: one pair in five is torn apart.
    "two speeds": lambda rng, n: (
        math.log(25 / 18) * rng.choice([0, 0, 0, 0, 0, 0, 0, 0, 1, -1], n) + rng.normal(0, 0.01, n)
    ),
}


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_of_two_equal_kernels_one_wins_in_less_than_one_of_a_hundred(noise: Noise) -> None:
    rng = np.random.default_rng(7)
    duels, false = 1500, 0
    for drawn in noise(rng, duels * MAX_PAIRS).reshape(duels, MAX_PAIRS).tolist():
        verdicts = (judged(drawn[:pairs]) for pairs in range(LEAST_PAIRS, MAX_PAIRS + 1))
        found = next(each for each in verdicts if each is not None)
        false += found.faster
    assert false <= 0.01 * duels
