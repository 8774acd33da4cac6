"""The dispatch: gives built candidates to devices, a batch at a time, and decides what a lost device means.

A device gets work only while :mod:`policies.measuring.health` allows it: it answers, its probe has run, it
is not in quarantine, and people want it used. Every batch is leased: what a device stores after its lease has ended is
refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from actors.board import Board, Trial
from actors.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, first_line
from actors.fleet_health import FleetHealth
from actors.remote_device import BatchReport, DeviceHandle, watched
from fleet_tune.device_state import Admin, Health
from fleet_tune.domain import Measurement, Outcome, StopRule
from fleet_tune.errors import DevicesLostError, DeviceUnreachableError, ProbeError, StaleLeaseError
from policies.measuring import health

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_BATCH = 12  # artifacts measured in one quiet window, at most
_MIN_BATCH = 6  # a window for fewer is opened only when no build is under way
_RETRY_SECS = 1.0
_LOST = (DeviceUnreachableError, ActorLostError, ActorTimeoutError)

RecordFailure = Callable[[Trial, Measurement], Awaitable[None]]


class Dispatch:
    """Serves the devices of a run. ``patience_secs``: how long a run without a time budget waits when no device of a
    class can work. ``record_failure``: stores a trial that no device measured. ``check_every_secs``: how often a
    device that works is asked for its probe."""

    def __init__(
        self,
        board: Board,
        fleet: FleetHealth,
        devices: Mapping[str, tuple[str, DeviceHandle]],
        rule: StopRule,
        patience_secs: float,
        record_failure: RecordFailure,
        check_every_secs: float = health.PROBE_EVERY_SECS,
    ) -> None:
        """``devices``: device id to (device class name, handle)."""
        self._board = board
        self._fleet = fleet
        self._devices = devices
        self._rule = rule
        self._patience_secs = patience_secs
        self._record_failure = record_failure
        self._check_every_secs = check_every_secs
        self._checked_at: dict[str, float] = {}
        self._hopeless_since: dict[str, float] = {}
        self.vitals: dict[str, Mapping[str, float]] = {}  # of each device's last batch

    async def serve(self, device_id: str) -> None:
        """Feed one device until the session is over.

        Raises DevicesLostError where no device of its class has been able to work for too long and no time budget
        would end the run.
        """
        while not self._board.over():
            if not await self._made_usable(device_id):
                continue
            batch, oracles = await self._with_oracles(await self._next_batch(device_id))
            if batch:
                await self._measure(device_id, batch, oracles)
                await self._board.notify()

    # A device becomes usable -----------------------------------------------------------------------------------------

    async def _made_usable(self, device_id: str) -> bool:
        """One step towards work: whether the device may be given some."""
        state = self._fleet[device_id]
        if health.may_work(state) and not self._check_is_due(device_id):
            self._hopeless_since.pop(self._class(device_id), None)
            return True
        if state.admin is not Admin.ACTIVE:
            detail = f"it is in {state.admin}"
            await self._board.wait_for_change()
        elif state.health is Health.QUARANTINED:
            detail = "it is quarantined"
            if self._fleet.quarantine_is_over(device_id):
                self._fleet.happened(device_id, health.ProbationBegun())
            else:
                await self._board.wait_for_change()
        else:
            detail = await self._check(device_id)
        if detail:
            self._give_up_if_hopeless(self._class(device_id), detail)
        return False

    async def _check(self, device_id: str) -> str:
        """Run the probe. What is wrong with the device, empty if it passed or the session is over."""
        _, device = self._devices[device_id]
        try:
            secs = await self._unless_over(device.check())
        except ProbeError as error:
            self._fleet.happened(device_id, health.Joined())
            self._fleet.happened(device_id, health.ProbeFailed(first_line(error)))
            detail = first_line(error)
        except _LOST as error:
            _LOG.warning("device %s: %s", device_id, first_line(error))
            self._fleet.happened(device_id, health.Lost(first_line(error)))
            if isinstance(error, ActorTimeoutError):
                device.restart()
            detail = first_line(error)
        else:
            if secs is not None:
                self._checked_at[device_id] = _now()
                self._fleet.happened(device_id, health.Joined())
                self._fleet.happened(device_id, health.ProbePassed(secs))
            await self._board.notify()
            return ""
        await self._board.notify()
        if not self._board.over():
            await asyncio.sleep(_RETRY_SECS)
        return detail

    def _check_is_due(self, device_id: str) -> bool:
        return _now() - self._checked_at.get(device_id, -float("inf")) >= self._check_every_secs

    def _give_up_if_hopeless(self, device_class: str, detail: str) -> None:
        why = self._fleet.hopeless(device_class)
        if not why:
            self._hopeless_since.pop(device_class, None)
            return
        waited_secs = _now() - self._hopeless_since.setdefault(device_class, _now())
        if self._board.time_budget_secs is None and waited_secs >= self._patience_secs:
            raise DevicesLostError(
                f"no device of class {device_class} has answered for {waited_secs:.0f} s: {detail} ({why})",
                "bring one back and run the same command again: it resumes",
            )

    # A batch ---------------------------------------------------------------------------------------------------------

    async def _next_batch(self, device_id: str) -> list[Trial]:
        """Artifacts for one quiet window: several, since the builders of a shared host stand still meanwhile. None
        where the device needs something else first."""
        board, queue = self._board, self._board.built[self._class(device_id)]

        def ready() -> bool:
            if board.over() or not health.may_work(self._fleet[device_id]) or self._check_is_due(device_id):
                return True
            found = self._eligible(device_id)
            return len(found) >= _MIN_BATCH or (bool(found) and (found[0].alone or board.builders_idle))

        await board.until(ready)
        if board.over() or not health.may_work(self._fleet[device_id]):
            return []
        batch = self._eligible(device_id)[:_BATCH]
        for trial in batch:
            queue.remove(trial)
        await board.notify()
        return batch

    def _eligible(self, device_id: str) -> list[Trial]:
        """What of its queue the device may measure next, together."""
        device_class = self._class(device_id)
        usable = self._fleet.usable(device_class)
        waiting = [
            trial for trial in self._board.built[device_class] if health.may_try(trial.losses, device_id, usable)
        ]
        if waiting and waiting[0].alone:
            return waiting[:1]
        return [trial for trial in waiting if not trial.alone]

    async def _with_oracles(self, batch: list[Trial]) -> tuple[list[Trial], dict[str, tuple[list[Any], float]]]:
        """The trials whose task has an unscheduled program, and those programs with the incumbents' costs."""
        kept: list[Trial] = []
        oracles: dict[str, tuple[list[Any], float]] = {}
        for trial in batch:
            state = self._board.tasks[trial.candidate.task_id]
            oracle = await self._board.oracles[state.task.id]
            if oracle is None:
                state.under_way.discard(trial.candidate.id)
            else:
                kept.append(trial)
                oracles[state.task.id] = ([oracle], state.best_secs)
        return kept, oracles

    async def _measure(self, device_id: str, batch: list[Trial], oracles: dict[str, tuple[list[Any], float]]) -> None:
        deadline_secs = WINDOW_WAIT_SECS + len(batch) * (2 * self._rule.timeout_secs + 5.0)
        _, device = self._devices[device_id]
        # People may have taken the device out while the oracles were waited for.
        if not health.may_work(self._fleet[device_id]):
            self._put_back(device_id, batch)
            return
        epoch = self._fleet.happened(device_id, health.Leased(self._fleet.run_id, deadline_secs)).lease.epoch
        artifacts = [trial.artifact for trial in batch]
        measuring = device.measure(artifacts, oracles, self._rule, epoch, deadline_secs)
        try:
            report = await watched(device, measuring)
        except (ActorLostError, ActorTimeoutError) as error:
            # The process that owns the device is ours: nobody knows at which candidate it ended, if for one at all.
            _LOG.warning("device %s: %s", device_id, first_line(error))
            if isinstance(error, ActorTimeoutError):
                device.restart()
            await self._lost(device_id, batch, batch[0] if len(batch) == 1 else None, first_line(error))
            return
        except StaleLeaseError as error:
            _LOG.warning("%s", error)
            await self._lost(device_id, batch, None, str(error))
            return
        await self._account(device_id, epoch, batch, report)

    async def _account(self, device_id: str, epoch: int, batch: list[Trial], report: BatchReport) -> None:
        """What a report means for the device and for the candidates."""
        self.vitals[device_id] = report.vitals
        lost = [trial for trial in batch if report.outcomes.get(trial.candidate.id) is Outcome.DEVICE_LOST]
        measured = len(report.outcomes) - len(lost)
        if measured:
            self._fleet.happened(device_id, health.Measured(measured))
        untried = [trial for trial in batch if trial.candidate.id not in report.outcomes]
        if report.detail:
            await self._lost(device_id, [*lost, *untried], lost[0] if lost else None, report.detail)
        else:
            self._fleet.happened(device_id, health.Released(epoch))
            self._put_back(device_id, untried)

    async def _lost(self, device_id: str, batch: list[Trial], suspect: Trial | None, detail: str) -> None:
        """The device was lost with ``batch`` on it. ``suspect``: what it was running; None where that is not known, and
        then each of the batch is measured alone from now on."""
        self._fleet.happened(device_id, health.Lost(detail, suspect.candidate.id if suspect else ""))
        if suspect is None:
            for trial in batch:
                trial.alone = True
        else:
            suspect.losses.append(device_id)
            if health.is_poison(len(suspect.losses)):
                batch = [trial for trial in batch if trial is not suspect]
                await self._blame(suspect, detail)
        self._put_back(device_id, batch)
        await self._board.notify()

    async def _blame(self, poison: Trial, detail: str) -> None:
        """The candidate is recorded as a failure, and the devices that it took down are acquitted."""
        where = ", ".join(poison.losses)
        text = f"poison: its device was lost {len(poison.losses)} times ({where}): {detail}"
        await self._record_failure(poison, Measurement(Outcome.RUN_ERROR, detail=text))
        for device_id in dict.fromkeys(poison.losses):
            self._fleet.happened(device_id, health.Acquitted(poison.candidate.id))

    def _put_back(self, device_id: str, trials: Sequence[Trial]) -> None:
        """At the head of the queue: what lost a device is tried again soon, so that the blame does not stay with the
        wrong one for long."""
        self._board.built[self._class(device_id)].extendleft(reversed(trials))

    def _class(self, device_id: str) -> str:
        return self._devices[device_id][0]

    async def _unless_over(self, work: Awaitable[_T]) -> _T | None:
        """The result of ``work``, or None as soon as the session is over."""
        working = asyncio.ensure_future(work)
        try:
            while not working.done() and not self._board.over():
                await asyncio.wait([working], timeout=0.5)
            return working.result() if working.done() else None
        finally:
            working.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()
