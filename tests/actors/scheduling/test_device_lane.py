"""Whose doing it is that a device gives no report."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.clients.artifacts import Artifacts
from actors.clients.calls import ActorLostError, ActorTimeoutError
from actors.clients.device import BatchReport, DeviceHandle, NotOurTurnError
from actors.scheduling.device_lane import DeviceLane
from fleet_tune.domain import StopRule
from fleet_tune.errors import DeviceUnreachableError, StaleLeaseError
from fleet_tune.results import DeviceTime
from policies.runs.commands import Measure
from policies.runs.events import BatchLost, BatchMeasured, Postponed, Unreachable


class Failing:
    """A device that raises the next error each time."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def turn(self, _tell: Any, _most_secs: float = 0.0) -> float:
        return 0.0

    async def check(self) -> float:
        raise self._errors.pop(0)

    async def measure(self, *_args: Any) -> Any:
        raise self._errors.pop(0)


def lane_of(*errors: Exception) -> DeviceLane:
    return DeviceLane("board", cast("DeviceHandle", Failing(*errors)), cast("Artifacts", None), StopRule())


async def lost_over_a_batch(lane: DeviceLane) -> tuple[bool, bool]:
    answer = await lane.measure(Measure("board", 1, (), {}, 10.0))
    assert isinstance(answer, BatchLost)
    return answer.hangs, answer.outside


async def test_a_process_of_ours_that_ended_is_no_candidates_fault_and_a_late_answer_may_be() -> None:
    assert await lost_over_a_batch(lane_of(ActorLostError("its process ended"))) == (False, True)
    assert await lost_over_a_batch(lane_of(ActorTimeoutError("measure: no answer within 900 s"))) == (True, False)
    assert await lost_over_a_batch(lane_of(StaleLeaseError("board", 1, 2))) == (False, False)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ActorLostError("its process ended"), (False, True)),
        (ActorTimeoutError("run the probe: no answer within 900 s"), (True, False)),
        (DeviceUnreachableError("board", "no route"), (False, False)),
    ],
)
async def test_what_a_check_without_an_answer_says_of_the_device(error: Exception, expected: tuple[bool, bool]) -> None:
    answer = await lane_of(error).check()
    assert isinstance(answer, Unreachable)
    assert (answer.hangs, answer.outside) == expected


class Shared(Failing):
    """A device that another run uses first."""

    async def turn(self, tell: Any, _most_secs: float = 0.0) -> float:
        tell("net (run 7)")
        tell("")
        return 12.5

    async def measure(self, *_args: Any) -> BatchReport:
        return BatchReport(waits={DeviceTime.WINDOW: 0.5})


async def test_the_wait_for_a_turn_is_told_and_counted_as_such() -> None:
    told: list[str] = []
    lane = DeviceLane("board", cast("DeviceHandle", Shared()), cast("Artifacts", None), StopRule(), told.append)
    answer = await lane.measure(Measure("board", 1, (), {}, 10.0))
    assert isinstance(answer, BatchMeasured)
    assert answer.waits == {DeviceTime.WINDOW: 0.5, DeviceTime.TURN: 12.5}
    assert told == ["net (run 7)", ""]


class Elsewhere(Failing):
    """A device that another run does not give away."""

    async def turn(self, tell: Any, most_secs: float = 0.0) -> float:
        assert most_secs < 1000.0
        tell("net (run 7)")
        raise NotOurTurnError("it is the turn of net (run 7)")


async def test_what_another_run_holds_up_for_long_is_put_back() -> None:
    lane = DeviceLane("board", cast("DeviceHandle", Elsewhere()), cast("Artifacts", None), StopRule())
    assert await lane.measure(Measure("board", 1, (), {}, 10.0)) == Postponed("board", 1)
