"""A shoot-out in turn: order, joined micro-batches, checks, failures."""

from __future__ import annotations

import math

from actors.finalists import measured_in_turn
from devices.protocol import Artifact, MeasureRequest
from fleet_tune.domain import Candidate, Measurement, Outcome, StopRule


def artifact(number: int) -> Artifact:
    return Artifact("task", Candidate("task", 0, "s", (number,)), b"", (), (), (), (), "", 0.0)


class Device:
    """Takes ``number`` seconds for the candidate of that number, and what ``fails`` says for (number, time)."""

    def __init__(self, fails: dict[tuple[int, int], Outcome] | None = None) -> None:
        self.fails = fails or {}
        self.asked: list[tuple[int, float]] = []

    def measure(self, request: MeasureRequest) -> Measurement:
        assert request.artifact.candidate is not None
        assert request.placed_anew  # every round
        number = request.artifact.candidate.decisions[0]
        times = sum(asked == number for asked, _ in self.asked)
        self.asked.append((number, request.incumbent_secs))
        outcome = self.fails.get((number, times))
        if outcome is not None:
            return Measurement(outcome, measure_secs=1.0, detail="failed")
        return Measurement(Outcome.OK, (number + 0.1 * times,), measure_secs=1.0, verified=request.incumbent_secs > 0)


def test_the_order_turns_around_and_the_first_round_is_checked() -> None:
    device = Device()
    found = measured_in_turn(device.measure, [artifact(1), artifact(2)], StopRule(), 3)
    assert device.asked == [(1, math.inf), (2, math.inf), (2, 0.0), (1, 0.0), (1, 0.0), (2, 0.0)]
    assert isinstance(found, list)
    assert [each.run_secs for each in found] == [(1.0, 1.1, 1.2), (2.0, 2.1, 2.2)]
    assert [(each.verified, each.stopped, each.measure_secs) for each in found] == [(True, "shoot-out", 3.0)] * 2


def test_a_finalist_that_fails_takes_no_further_part() -> None:
    device = Device({(1, 1): Outcome.WRONG_OUTPUT})
    found = measured_in_turn(device.measure, [artifact(1), artifact(2)], StopRule(), 3)
    assert isinstance(found, list)
    assert [each.outcome for each in found] == [Outcome.WRONG_OUTPUT, Outcome.OK]
    assert found[0].measure_secs == 2.0
    assert [number for number, _ in device.asked] == [1, 2, 2, 1, 2]


def test_a_lost_device_ends_it() -> None:
    device = Device({(2, 0): Outcome.DEVICE_LOST})
    found = measured_in_turn(device.measure, [artifact(1), artifact(2)], StopRule(), 3)
    assert isinstance(found, Measurement)
    assert found.outcome is Outcome.DEVICE_LOST
