"""Whose doing it is that a device gives no report."""

from __future__ import annotations

from typing import Any, cast

from actors.clients.calls import ActorLostError, ActorTimeoutError
from actors.clients.device import BatchReport, DeviceHandle
from actors.scheduling.artifacts import Artifacts
from actors.scheduling.device_lane import DeviceLane
from fleet_tune.domain import StopRule
from fleet_tune.results import DeviceTime
from policies.runs.commands import Measure
from policies.runs.events import BatchLost, BatchMeasured


class Failing:
    """A device that raises the next error each time."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def turn(self, _tell: Any) -> float:
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
    return answer.hangs, answer.ours


async def test_a_process_that_the_run_ended_for_its_silence_is_no_candidates_fault_and_the_next_loss_counts() -> None:
    lane = lane_of(ActorLostError("its process ended"), ActorLostError("its process ended"))
    lane.ends()
    assert await lost_over_a_batch(lane) == (False, True)
    assert await lost_over_a_batch(lane) == (False, False)


async def test_a_late_answer_may_be_a_candidates_fault() -> None:
    lane = lane_of(ActorTimeoutError("measure: no answer within 900 s"))
    assert await lost_over_a_batch(lane) == (True, False)


async def test_an_ending_that_a_check_found_is_over() -> None:
    lane = lane_of(ActorLostError("its process ended"), ActorLostError("its process ended"))
    lane.ends()
    await lane.check()
    assert await lost_over_a_batch(lane) == (False, False)


class Shared(Failing):
    """A device that another run uses first."""

    async def turn(self, tell: Any) -> float:
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
