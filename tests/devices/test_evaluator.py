"""The evaluator's loop on a virtual clock: how batches are sized, and what ends them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from devices.evaluator import (
    Evaluation,
    decode_evaluation,
    decode_request,
    encode_evaluation,
    encode_request,
    evaluate,
    load_decide,
)
from fleet_tune.domain import StopRule

RULE = StopRule(micro_batch_secs=0.01, min_batches=3, max_batches=5, timeout_secs=10.0)


class Kernel:
    """Runs take ``run_secs`` of virtual time, the first one ``cold`` times as long."""

    def __init__(self, run_secs: float, cold: float = 1.0) -> None:
        self.run_secs = run_secs
        self.cold = cold
        self.now = 0.0
        self.batches: list[int] = []

    def __call__(self, runs: int) -> float:
        secs = self.run_secs * (self.cold if not self.batches else 1.0)
        self.batches.append(runs)
        self.now += runs * secs
        return secs

    def clock(self) -> float:
        return self.now


def race(run_secs: Sequence[float], rule: StopRule, incumbent_secs: float) -> str | None:
    return "raced" if run_secs[0] > rule.race_factor * incumbent_secs else None


def after_three(run_secs: Sequence[float], rule: StopRule, _incumbent_secs: float) -> str | None:
    return "converged" if len(run_secs) == rule.min_batches else None


def test_batches_last_as_long_as_the_rule_says() -> None:
    kernel = Kernel(0.001, cold=5.0)
    result = evaluate(kernel, RULE, math.inf, None, kernel.clock)
    # The cold first run of 5 ms suggests batches of two; the first batch shows that ten are needed.
    assert kernel.batches == [1, 2, 10, 10, 10, 10]
    assert result == Evaluation((0.001,) * 5, "maximum")


def test_a_run_longer_than_a_micro_batch_is_a_batch_of_its_own() -> None:
    kernel = Kernel(0.05)
    evaluate(kernel, RULE, math.inf, after_three, kernel.clock)
    assert kernel.batches == [1, 1, 1, 1]


def test_the_decision_ends_it() -> None:
    kernel = Kernel(0.001)
    assert evaluate(kernel, RULE, math.inf, after_three, kernel.clock) == Evaluation((0.001,) * 3, "converged")


def test_hopeless_candidates_are_given_up_after_their_first_run() -> None:
    kernel = Kernel(1.0)
    assert evaluate(kernel, RULE, 0.1, race, kernel.clock) == Evaluation((1.0,), "raced")
    assert kernel.batches == [1]


def test_a_slow_first_run_alone_does_not_end_a_candidate_that_may_be_good() -> None:
    kernel = Kernel(0.02, cold=1.9)
    assert evaluate(kernel, RULE, 0.015, race, kernel.clock).stopped == "maximum"


def test_a_quick_first_run_is_never_judged() -> None:
    kernel = Kernel(0.004)
    assert evaluate(kernel, RULE, 0.001, race, kernel.clock) == Evaluation((0.004,), "raced")
    assert kernel.batches == [1, 3]


def test_no_batch_begins_after_the_timeout() -> None:
    kernel = Kernel(6.0)
    assert evaluate(kernel, RULE, math.inf, None, kernel.clock) == Evaluation((6.0,), "maximum")
    assert kernel.now == 12.0


@pytest.mark.parametrize("incumbent_secs", [0.5, math.inf])
def test_requests_and_results_survive_the_wire(incumbent_secs: float) -> None:
    assert decode_request(encode_request(RULE, incumbent_secs, "cpu")) == (RULE, incumbent_secs, "cpu")
    result = Evaluation((0.1, 0.2), "raced")
    assert decode_evaluation(encode_evaluation(result)) == result


def test_the_stopping_function_is_found_by_its_name() -> None:
    assert load_decide("math:sqrt") is math.sqrt
    assert load_decide(None) is None
    with pytest.raises(AttributeError):
        load_decide("math:no_such_function")
    with pytest.raises(ImportError):
        load_decide("no_such_module:decide")
