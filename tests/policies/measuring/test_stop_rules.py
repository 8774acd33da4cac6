"""AdaTune's evaluator and the deterministic one, by hand and as choices of a method."""

from __future__ import annotations

import math

import pytest

from fleet_tune.base.domain import StopRule
from fleet_tune.base.errors import UserError
from policies.measuring.adaptive_stopping import confirmation, decide, following, precise
from policies.measuring.duel import run_rule
from policies.measuring.stop_rules import ADAPTIVE, DETERMINISTIC, RACED, STOP_RULES
from policies.search.methods import METHOD_NAMES, method_named


def batches(run_secs: list[float], rule: StopRule, incumbent_secs: float = math.inf) -> tuple[int, str]:
    """Return the number of micro-batches of a kernel that takes these seconds in each, and why its measurement ends."""
    for count in range(1, len(run_secs) + 1):
        reason = decide(run_secs[:count], rule, incumbent_secs)
        if reason is not None:
            return count, reason
    raise AssertionError("it does not end")


def test_the_adaptive_evaluator_is_adatunes() -> None:
    assert (ADAPTIVE.micro_batch_runs, ADAPTIVE.max_batches * ADAPTIVE.micro_batch_runs) == (50, 500)
    # Time 1, 2.2: throughput 1 and 0.909, mean 0.9545, deviation 0.0455: 4.8% of it.
    assert batches([1.0, 1.2], ADAPTIVE) == (2, "converged")
    # Time 1, 2.6: throughput 1 and 0.769: 13.0%. Then 3.6 (0.833): deviation 0.0976 of 0.8675, 11.2%.
    # Then 4.6 (0.870): deviation 0.0845 of 0.868, 9.7%.
    assert batches([1.0, 1.6, 1.0, 1.0], ADAPTIVE) == (4, "converged")
    # Seconds that keep on growing: it ends with the 500 runs.
    assert batches([2.0**at for at in range(10)], ADAPTIVE) == (10, "maximum")
    # A slow candidate is not given up for the incumbent's sake.
    assert batches([9.0, 9.0], ADAPTIVE, 1.0) == (2, "converged")


def test_the_deterministic_evaluator_always_takes_its_runs() -> None:
    assert DETERMINISTIC.micro_batch_runs * DETERMINISTIC.max_batches == 500
    assert batches([1.0] * 10, DETERMINISTIC, 0.1)[0] == 10
    assert following(DETERMINISTIC, 1e-6).timeout_secs == DETERMINISTIC.timeout_secs
    assert confirmation(DETERMINISTIC, 1.0) is None
    assert confirmation(ADAPTIVE, 1.0) is None


def test_second_measurements_and_duels_go_by_time_whatever_the_rule() -> None:
    for rule in STOP_RULES.values():
        assert precise(rule).micro_batch_runs == run_rule(rule).micro_batch_runs == 0


def test_a_method_has_the_evaluator_of_its_paper_or_another_by_name() -> None:
    own = {"autotvm": DETERMINISTIC, "adatune": ADAPTIVE}
    assert {name: method_named(name).stop_rule for name in METHOD_NAMES} == {
        name: own.get(name, RACED) for name in METHOD_NAMES
    }
    changed = method_named("fleet:adaptive")
    assert (changed.name, changed.stop_rule) == ("fleet:adaptive", ADAPTIVE)
    assert changed.starts_from == method_named("fleet").starts_from != ""  # what it learns from is as it was
    both = method_named("autotvm:pacm:raced")
    assert both.training is not None
    assert (both.stop_rule, both.training.model.name, both.name) == (RACED, "pacm", "autotvm:pacm:raced")
    assert method_named("random:deterministic").stop_rule == DETERMINISTIC
    with pytest.raises(UserError, match="2 stop rules"):
        method_named("fleet:raced:adaptive")
