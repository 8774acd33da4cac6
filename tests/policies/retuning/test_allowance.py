"""What of the devices' time may be used: in every window of 24 hours, whatever its beginning."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retuning.allowance import WINDOW_SECS, Hours, UsedTime, free_at, left_secs, still_counting, used_secs
from tests.helpers.properties import examples

NOW = 1e9


def test_what_was_used_counts_for_24_hours() -> None:
    used = [UsedTime("cpu", NOW - WINDOW_SECS - 100, NOW - WINDOW_SECS + 50, 2), UsedTime("gpu", NOW - 10, NOW, 1)]
    assert used_secs(used, "cpu", NOW) == 100.0
    assert used_secs(used, "cpu", NOW + 50) == 0.0
    assert left_secs(used, "cpu", 2, 0.1, NOW) == pytest.approx(0.1 * WINDOW_SECS * 2 - 100)
    assert still_counting(used, NOW + 60) == used[1:]


def test_time_is_free_again_when_what_was_used_is_a_day_old() -> None:
    # Of 8640 s a day 8000 were used in one go, with two devices for half of that time.
    used = [UsedTime("cpu", NOW - 5000, NOW - 1000, 2)]
    assert free_at(used, "cpu", 1, 0.1, NOW, 640.0) == NOW
    # 1000 s more need 360 device seconds to go: 180 s of it.
    assert free_at(used, "cpu", 1, 0.1, NOW, 1000.0) == pytest.approx(NOW - 5000 + 180 + WINDOW_SECS)
    assert free_at(used, "cpu", 1, 0.1, NOW, 9000.0) == math.inf
    assert free_at(used, "gpu", 1, 0.1, NOW, 8000.0) == NOW


def test_hours_pass_midnight() -> None:
    hours = Hours(79200.0, 21600.0)  # 22:00 to 06:00
    assert hours.left_secs(79200.0) == 8 * 3600
    assert hours.left_secs(3600.0) == 5 * 3600
    assert hours.left_secs(21600.0) == 0
    assert hours.opens_in_secs(21600.0) == 16 * 3600
    assert hours.opens_in_secs(3600.0) == 0


@examples(60)
@given(st.lists(st.tuples(st.floats(1, 5000), st.floats(0, 20000)), min_size=1, max_size=40), st.floats(0.05, 0.5))
def test_the_share_is_kept_in_every_window_by_who_begins_what_fits(
    wants: list[tuple[float, float]], share: float
) -> None:
    used: list[UsedTime] = []
    now = NOW
    for secs, pause in wants:
        now += pause
        at = free_at(used, "cpu", 1, share, now, secs)
        if at == math.inf:
            assert secs > share * WINDOW_SECS
            continue
        assert at >= now
        used.append(UsedTime("cpu", at, at + secs, 1))
        now = at + secs
    for each in used:
        assert used_secs([u for u in used if u.ended <= each.ended], "cpu", each.ended) <= share * WINDOW_SECS + 1e-3
