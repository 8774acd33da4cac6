"""Histograms of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.stages import DURATION_BOUNDS, DurationCounter


def test_buckets_go_from_a_microsecond_to_a_hundred_seconds() -> None:
    assert DURATION_BOUNDS[0] == pytest.approx(1e-6)
    assert DURATION_BOUNDS[-1] == 100.0
    assert list(DURATION_BOUNDS) == sorted(set(DURATION_BOUNDS))


@given(st.lists(st.floats(0, 1e4)))
def test_every_duration_is_in_the_bucket_below_its_bound(durations: list[float]) -> None:
    counter = DurationCounter()
    for secs in durations:
        counter.add(secs)
    histogram = counter.histogram
    assert histogram.total_secs == pytest.approx(sum(durations))
    for at, bound in enumerate(DURATION_BOUNDS):
        assert sum(histogram.counts[: at + 1]) == sum(secs <= bound for secs in durations)
    assert sum(histogram.counts) == len(durations)
