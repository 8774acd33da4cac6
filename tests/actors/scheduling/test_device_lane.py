"""Whose doing it is that a device gives no report."""

from __future__ import annotations

from typing import Any, cast

from actors.clients.calls import ActorLostError, ActorTimeoutError
from actors.clients.device import DeviceHandle
from actors.scheduling.artifacts import Artifacts
from actors.scheduling.device_lane import DeviceLane
from fleet_tune.domain import StopRule
from policies.runs.commands import Measure
from policies.runs.events import BatchLost


class Failing:
    """A device that raises the next error each time."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

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
