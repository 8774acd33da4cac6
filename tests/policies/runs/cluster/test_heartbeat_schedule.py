"""Signs of life of one to thousands of processes, in virtual time: how often they are asked for, and how soon one that
hangs is noticed."""

from __future__ import annotations

import itertools

import pytest

from policies.runs.cluster.heartbeat_schedule import MOST_PER_SECOND, first_heartbeat_secs, interval_secs

LEAST_SECS, ANSWER_SECS = 2.0, 6.0
SPAN_SECS = 600.0


def asked_at(number: int, crowd: int) -> list[float]:
    """Return the second at which one of so many is asked."""
    first, every = first_heartbeat_secs(number, crowd, LEAST_SECS), interval_secs(crowd, LEAST_SECS)
    return [first + every * time for time in range(int((SPAN_SECS - first) / every) + 1)]


@pytest.mark.parametrize("crowd", [1, 2, 16, 100, 101, 1000, 5000])
def test_no_second_has_more_questions_than_a_process_asks(crowd: int) -> None:
    moments = sorted(at for number in range(crowd) for at in asked_at(number, crowd))
    most = max(MOST_PER_SECOND, 1.0)
    # Of so many questions in a row the first and the last are a second apart, but for one at each end.
    for first, later in zip(moments, moments[int(most) + 1 :], strict=False):
        assert later - first >= 1.0 - 1e-6


@pytest.mark.parametrize(("crowd", "noticed_secs"), [(1, 8.0), (100, 8.0), (200, 10.0), (1000, 26.0), (5000, 106.0)])
def test_one_that_hangs_is_noticed_after_the_next_question_and_the_time_for_its_answer(
    crowd: int, noticed_secs: float
) -> None:
    worst = 0.0
    for number in {0, crowd // 3, crowd - 1}:
        moments = asked_at(number, crowd)
        for asked, again in itertools.pairwise(moments):
            hangs_at = asked + 1e-9  # right after it has answered
            worst = max(worst, again + ANSWER_SECS - hangs_at)
    assert worst == pytest.approx(noticed_secs, abs=1e-6)


def test_a_small_fleet_is_asked_as_often_as_all_others() -> None:
    assert [interval_secs(crowd, LEAST_SECS) for crowd in (0, 1, 100)] == [LEAST_SECS] * 3
    assert first_heartbeat_secs(0, 4, LEAST_SECS) == 0.0
    assert first_heartbeat_secs(3, 4, LEAST_SECS) == 1.5
