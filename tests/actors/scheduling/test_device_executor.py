"""Whose doing it is that a device gives no report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from actors.clients.artifacts import Artifacts
from actors.clients.calls import ActorLostError, ActorTimeoutError
from actors.clients.device import DeviceHandle, NotOurTurnError
from actors.scheduling.device_executor import DeviceExecutor
from devices.host.quiet_windows.quiet_window import QuietTimeoutError
from fleet_tune.base.domain import Incumbent, StopRule
from fleet_tune.base.errors import DeviceUnreachableError, RecorderLostError, StaleLeaseError, UserError
from fleet_tune.base.results import DeviceTime
from policies.runs.commands import Measure, ShootOut
from policies.runs.events import BatchLost, BatchMeasured, BatchPostponed, DeviceProbeFailed, DeviceUnreachable


class Failing:
    """A device that raises the next error each time."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def turn(self, _report_wait: Any, _most_secs: float = 0.0) -> float:
        return 0.0

    async def probe(self) -> float:
        raise self._errors.pop(0)

    async def measure(self, *_args: Any) -> Any:
        raise self._errors.pop(0)

    async def shoot_out(self, *_args: Any) -> Any:
        raise self._errors.pop(0)


class Store:
    """What was handed in to be stored; durable when somebody says so."""

    def __init__(self) -> None:
        self.batches: list[tuple[Sequence[bytes], int | None]] = []
        self.durable: list[asyncio.Future[None]] = []

    def store(self, records: Sequence[bytes], epoch: int | None = None) -> asyncio.Future[None]:
        self.batches.append((records, epoch))
        self.durable.append(asyncio.get_running_loop().create_future())
        return self.durable[-1]


def executor_with(
    device: Any, store: Store | None = None, report_wait: Callable[[str], None] = lambda _: None
) -> DeviceExecutor:
    storing = cast("Any", store or Store())
    return DeviceExecutor("board", cast("DeviceHandle", device), Artifacts(), StopRule(), storing, report_wait)


def executor_of(*errors: Exception) -> DeviceExecutor:
    return executor_with(Failing(*errors))


async def lost_over_a_batch(executor: DeviceExecutor) -> tuple[bool, bool]:
    answer = await executor.measure(Measure("board", 1, (), {}, 10.0))
    assert isinstance(answer, BatchLost)
    return answer.hangs, answer.outside


async def test_an_error_of_one_device_ends_no_run() -> None:
    full = OSError(28, "No space left on device")
    assert await lost_over_a_batch(executor_of(full)) == (False, False)
    answer = await executor_of(full).shoot_out(ShootOut("board", 1, "task", (), Incumbent(), StopRule(), 10.0))
    assert isinstance(answer, BatchLost)
    assert answer.detail == "OSError: [Errno 28] No space left on device"


async def test_a_process_of_ours_that_ended_is_no_candidates_fault_and_a_late_answer_may_be() -> None:
    assert await lost_over_a_batch(executor_of(ActorLostError("its process ended"))) == (False, True)
    assert await lost_over_a_batch(executor_of(ActorTimeoutError("measure: no answer within 900 s"))) == (True, False)
    entered = ShootOut("board", 1, "task", (), Incumbent(), StopRule(), 10.0)
    answer = await executor_of(StaleLeaseError("board", 1, 2)).shoot_out(entered)
    assert isinstance(answer, BatchLost)
    assert (answer.hangs, answer.outside) == (False, False)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ActorLostError("its process ended"), (False, True)),
        (ActorTimeoutError("run the probe: no answer within 900 s"), (True, False)),
        (DeviceUnreachableError("board", "no route"), (False, False)),
    ],
)
async def test_what_a_check_without_an_answer_says_of_the_device(error: Exception, expected: tuple[bool, bool]) -> None:
    answer = await executor_of(error).probe()
    assert isinstance(answer, DeviceUnreachable)
    assert (answer.hangs, answer.outside) == expected


@pytest.mark.parametrize("error", [UserError("the GPU has no driver", "install one"), RuntimeError("out of memory")])
async def test_a_device_that_cannot_be_used_ends_its_check_and_not_the_run(error: Exception) -> None:
    answer = await executor_of(error).probe()
    assert isinstance(answer, DeviceProbeFailed)
    assert str(error).splitlines()[0] in answer.detail


async def test_a_recorder_that_is_gone_ends_the_run() -> None:
    with pytest.raises(RecorderLostError):
        await executor_of(RecorderLostError("its process ended", "run the same command again")).probe()


async def test_a_window_that_does_not_come_free_puts_the_batch_back() -> None:
    answer = await executor_of(QuietTimeoutError("held for 900 s")).measure(Measure("board", 1, (), {}, 10.0))
    assert isinstance(answer, BatchPostponed)


class ByValue(Failing):
    """A device that another run uses first."""

    async def turn(self, report_wait: Any, _most_secs: float = 0.0) -> float:
        report_wait("net (run 7)")
        report_wait("")
        return 12.5

    async def measure(self, *_args: Any) -> BatchMeasured:
        return BatchMeasured("board", 1, {}, waits={DeviceTime.WINDOW: 0.5})


async def test_the_wait_for_a_turn_is_told_and_counted_as_such() -> None:
    told: list[str] = []
    executor = executor_with(ByValue(), report_wait=told.append)
    answer = await executor.measure(Measure("board", 1, (), {}, 10.0))
    assert isinstance(answer, BatchMeasured)
    assert answer.waits == {DeviceTime.WINDOW: 0.5, DeviceTime.TURN: 12.5}
    assert told == ["net (run 7)", ""]


class Elsewhere(Failing):
    """A device that another run does not give away."""

    async def turn(self, report_wait: Any, most_secs: float = 0.0) -> float:
        assert most_secs < 1000.0
        report_wait("net (run 7)")
        raise NotOurTurnError("it is the turn of net (run 7)")


async def test_what_another_run_holds_up_for_long_is_put_back() -> None:
    executor = executor_with(Elsewhere())
    assert await executor.measure(Measure("board", 1, (), {}, 10.0)) == BatchPostponed("board", 1)


class Measuring(Failing):
    """A device of which every batch has a record."""

    async def measure(self, *_args: Any) -> BatchMeasured:
        return BatchMeasured("board", 1, {}, records=[b"record"])


async def test_a_device_goes_on_while_its_batch_is_stored_and_is_no_more_than_a_batch_ahead() -> None:
    store = Store()
    executor = executor_with(Measuring(), store)
    first = await executor.measure(Measure("board", 1, (), {}, 10.0))
    assert isinstance(first, BatchMeasured)
    assert first.waits == {}
    assert store.batches == [([b"record"], 1)]

    second = asyncio.ensure_future(executor.measure(Measure("board", 2, (), {}, 10.0)))
    await asyncio.wait([second], timeout=0.01)
    assert not second.done(), "the batch before is not durable yet"
    assert len(store.batches) == 1
    store.durable[0].set_result(None)
    answer = await asyncio.wait_for(second, 30)
    assert isinstance(answer, BatchMeasured)
    assert answer.waits.keys() == {DeviceTime.COMMIT}
    assert store.batches[1:] == [([b"record"], 2)]
