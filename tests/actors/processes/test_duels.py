"""Candidates that meet: order, joined micro-batches, checks, failures."""

from __future__ import annotations

import math

import pytest

from actors.processes.duels import duel, run_shoot_out
from devices.protocol import Artifact, MeasureRequest
from fleet_tune.base.domain import Candidate, Incumbent, Measurement, Outcome, StopRule


def artifact(number: int) -> Artifact:
    return Artifact("task", Candidate("task", 0, "s", (number,)), b"", (), (), (), (), "", 0.0)


def incumbent(number: int, rank_secs: float = 9.0) -> Incumbent:
    candidate = artifact(number).candidate
    assert candidate is not None
    return Incumbent(candidate.id, float(number), rank_secs)


class Device:
    """Takes ``number`` seconds for the candidate of that number, and what ``fails`` says for (number, time)."""

    def __init__(self, fails: dict[tuple[int, int], Outcome] | None = None) -> None:
        self.fails = fails or {}
        self.asked: list[tuple[int, float]] = []

    @property
    def order(self) -> list[int]:
        return [number for number, _ in self.asked]

    def measure(self, request: MeasureRequest) -> Measurement:
        assert request.artifact.candidate is not None
        assert request.placed_anew  # every run
        number = request.artifact.candidate.decisions[0]
        times = self.order.count(number)
        self.asked.append((number, request.incumbent_secs))
        outcome = self.fails.get((number, times))
        if outcome is not None:
            return Measurement(outcome, measure_secs=1.0, detail="failed")
        verified = request.incumbent_secs > 0
        return Measurement(Outcome.OK, (float(number),), measure_secs=1.0, verified=verified)


RULE = StopRule(timeout_secs=1000.0)


def test_they_run_in_turn_and_the_first_run_of_the_challenger_is_checked() -> None:
    device = Device()
    met = duel(device.measure, artifact(4), incumbent(4), artifact(2), RULE)
    assert device.asked == [(4, 0.0), (2, math.inf), (2, 0.0), (4, 0.0), (4, 0.0), (2, 0.0)]
    found = met.measured
    assert (found.run_secs, found.verified, found.stopped, found.measure_secs) == ((2.0,) * 3, True, "duel", 6.0)
    assert found.comparison is not None
    assert (found.comparison.against, found.comparison.runs, found.comparison.faster) == (
        incumbent(4).candidate_id,
        6,
        True,
    )
    assert found.comparison.ratio == pytest.approx(0.5)
    assert found.rank_secs == pytest.approx(4.5)


def test_who_is_slower_ranks_behind_the_incumbent() -> None:
    found = duel(Device().measure, artifact(2), incumbent(2), artifact(3), RULE).measured
    assert found.comparison is not None
    assert not found.comparison.faster
    assert found.rank_secs == pytest.approx(13.5)
    even = duel(Device().measure, artifact(2), incumbent(2), artifact(2), RULE).measured
    assert even.rank_secs == 9.0


def test_seconds_decide_a_duel_whose_time_is_up_before_it_is_decided() -> None:
    """A checked challenger is not checked again."""
    device = Device()
    met = duel(device.measure, artifact(4), incumbent(4), artifact(2), StopRule(timeout_secs=2.0), verified=True)
    assert device.asked == [(4, 0.0), (2, 0.0)]
    assert met.measured.verified
    assert met.measured.comparison is None
    assert (met.measured.run_secs, met.measured.stopped) == ((2.0,), "duel")


def test_the_fastest_of_a_shoot_out_without_time_for_duels_is_the_champion() -> None:
    finalists = [artifact(each) for each in (4, 2, 3, 1)]
    device = Device()
    found = run_shoot_out(device.measure, finalists, incumbent(4, rank_secs=4.0), StopRule(timeout_secs=2.0))
    assert isinstance(found, dict)
    assert sorted(found, key=lambda each: found[each].rank_secs) == [3, 1, 2]
    assert device.order == [4, 2, 2, 3, 2, 1]  # each meets the fastest so far


@pytest.mark.parametrize(("failing", "rival_failed"), [(4, True), (2, False)])
def test_a_failure_ends_it(failing: int, rival_failed: bool) -> None:
    met = duel(Device({(failing, 1): Outcome.RUN_ERROR}).measure, artifact(4), incumbent(4), artifact(2), RULE)
    assert (met.measured.outcome, met.rival_failed) == (Outcome.RUN_ERROR, rival_failed)


def test_each_finalist_meets_the_best_of_those_before_it() -> None:
    device = Device()
    found = run_shoot_out(device.measure, [artifact(each) for each in (4, 2, 3)], incumbent(4), RULE)
    assert isinstance(found, dict)
    assert sorted(found) == [1, 2]  # nothing new is known of the incumbent
    assert [each.comparison.against for each in found.values() if each.comparison] == [
        incumbent(4).candidate_id,
        incumbent(2).candidate_id,
    ]
    assert [each.rank_secs for each in found.values()] == pytest.approx([4.5, 6.75])


def test_without_an_incumbent_the_first_is_measured_by_itself() -> None:
    found = run_shoot_out(Device().measure, [artifact(2), artifact(3)], incumbent(9), RULE)
    assert isinstance(found, dict)
    assert found[0].comparison is None
    assert found[0].verified
    assert found[1].comparison is not None
    assert found[1].rank_secs > found[0].rank_secs


def test_an_incumbent_that_fails_is_recorded_and_its_challenger_takes_its_place() -> None:
    found = run_shoot_out(
        Device({(4, 1): Outcome.WRONG_OUTPUT}).measure, [artifact(4), artifact(2), artifact(3)], incumbent(4), RULE
    )
    assert isinstance(found, dict)
    assert found[0].outcome is Outcome.WRONG_OUTPUT
    assert found[1].verified
    assert found[1].comparison is None
    assert found[2].comparison is not None
    assert found[2].comparison.against == incumbent(2).candidate_id


def test_a_finalist_that_fails_is_out() -> None:
    found = run_shoot_out(
        Device({(2, 0): Outcome.WRONG_OUTPUT}).measure, [artifact(4), artifact(2), artifact(3)], incumbent(4), RULE
    )
    assert isinstance(found, dict)
    assert found[1].outcome is Outcome.WRONG_OUTPUT
    assert found[2].comparison is not None
    assert found[2].comparison.against == incumbent(4).candidate_id


@pytest.mark.parametrize("number", [4, 2])
def test_a_lost_device_ends_it(number: int) -> None:
    found = run_shoot_out(
        Device({(number, 0): Outcome.DEVICE_LOST}).measure, [artifact(4), artifact(2)], incumbent(4), RULE
    )
    assert isinstance(found, Measurement)
    assert found.outcome is Outcome.DEVICE_LOST


@pytest.mark.parametrize("number", [4, 2])
def test_a_process_that_is_killed_is_held_against_nobody(number: int) -> None:
    device = Device({(number, 0): Outcome.KILLED})
    found = run_shoot_out(device.measure, [artifact(4), artifact(2), artifact(3)], incumbent(4), RULE)
    assert isinstance(found, dict)
    assert sorted(found) == [2]  # of the two that did not meet nothing is known
    assert found[2].comparison is not None
    assert found[2].comparison.against == incumbent(4).candidate_id
