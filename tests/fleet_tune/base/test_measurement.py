"""What a measurement says of its cost, and how sure that is; by hand."""

from __future__ import annotations

import math

import pytest

from fleet_tune.base.domain import Measurement, Outcome


def test_a_cost_is_the_median_at_the_speed_at_which_seconds_are_counted() -> None:
    measured = Measurement(Outcome.OK, (1.0, 2.0, 3.0), speed=0.5)
    assert (measured.raw_secs, measured.cost_secs) == (2.0, 1.0)


def test_its_error_is_of_the_micro_batches_and_of_the_speed() -> None:
    # Median absolute deviation 0.1 of 1.0: a spread of 14.826 %, an error of 14.826 / sqrt(3) = 8.560 %.
    measured = Measurement(Outcome.OK, (0.9, 1.0, 1.1))
    assert measured.error == pytest.approx(0.08560, abs=1e-5)
    assert measured.rank_secs == pytest.approx(1.08560, abs=1e-5)
    # sqrt(8.560^2 + 3^2) = 9.070 %.
    assert Measurement(Outcome.OK, (0.9, 1.0, 1.1), speed_error=0.03).error == pytest.approx(0.09070, abs=1e-5)
    # One micro-batch says nothing of its spread: 5 %.
    assert Measurement(Outcome.OK, (2.0,)).error == 0.05


def test_a_time_under_a_quota_is_as_uncertain_as_the_device_stood_still() -> None:
    throttled = Measurement(Outcome.OK, (1.0, 1.0), throttled=0.99)
    assert (throttled.error, throttled.cost_secs) == (0.99, 1.0)
    assert throttled.weight < 0.02
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="throttled"):
            Measurement(Outcome.OK, (1.0,), throttled=share)


def test_half_of_a_cost_counts_at_an_error_of_ten_percent() -> None:
    assert Measurement(Outcome.OK, (1.0, 1.0), speed_error=0.1).weight == 0.5
    assert Measurement(Outcome.OK, (1.0, 1.0)).weight == 1.0


def test_a_failure_costs_without_limit_and_is_certain() -> None:
    failed = Measurement(Outcome.RUN_ERROR)
    assert (failed.cost_secs, failed.rank_secs, failed.weight) == (math.inf, math.inf, 1.0)
    assert math.isnan(failed.error)


@pytest.mark.parametrize(
    ("speed", "error"), [(0.0, 0.0), (math.inf, 0.0), (math.nan, 0.0), (1.0, -0.1), (1.0, math.nan)]
)
def test_a_speed_is_positive_and_its_error_not_negative(speed: float, error: float) -> None:
    with pytest.raises(ValueError, match="speed"):
        Measurement(Outcome.OK, (1.0,), speed=speed, speed_error=error)
