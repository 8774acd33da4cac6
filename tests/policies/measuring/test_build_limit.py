from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from policies.measuring.build_limit import FACTOR, LEAST_SECS, UNKNOWN_SECS, BuildLimit
from tests.helpers.properties import examples


def limit_after(*build_secs: float) -> float:
    limit = BuildLimit()
    for secs in build_secs:
        limit.observe(secs)
    return limit.secs


def test_the_limit_is_ten_times_what_builds_take_and_at_least_five_seconds() -> None:
    assert limit_after() == limit_after(0.0) == UNKNOWN_SECS  # 0: unknown
    assert limit_after(0.1) == 5.0
    assert limit_after(2.0) == 20.0
    assert limit_after(1.0, 30.0, 2.0) == 20.0
    assert limit_after(1.0, 2.0) == 15.0
    assert limit_after(9.0) == 90.0  # a slow machine: more than before anything was known


@examples(60)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1))
def test_the_order_of_builds_does_not_matter(build_secs: list[float]) -> None:
    assert limit_after(*build_secs) == max(LEAST_SECS, FACTOR * statistics.median(build_secs))


def test_a_task_whose_builds_take_longer_by_now_has_a_longer_limit() -> None:
    assert limit_after(*[1.0] * 300, *[20.0] * 254) == 200.0
