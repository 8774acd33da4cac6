"""The end of a run: for each task a shoot-out between the few candidates that may be its fastest.

Who takes part is decided by :mod:`policies.measuring.shootout`; what a shoot-out finds is stored as revisions of the
candidates' records, so that a run that resumes finds it there and does not repeat it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from actors.board import TaskTrials
from actors.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, ask, first_line
from actors.fleet_health import FleetHealth
from actors.remote_device import BatchReport, DeviceHandle, watched
from devices.protocol import BuildFailure, BuildRequest
from fleet_tune.device_state import Admin, Health
from fleet_tune.domain import Candidate, StopRule, Task
from fleet_tune.errors import DeviceUnreachableError, ProbeError, StaleLeaseError
from policies.measuring import health
from policies.measuring.shootout import ROUNDS, round_rule

_LOG = logging.getLogger(__name__)
_LOST = (ActorLostError, ActorTimeoutError, StaleLeaseError)
# What a device that cannot work yet is waited for: shoot-outs are worth no more, and the next run holds those left out.
_BACK_SECS = 30.0
_RETRY_SECS = 1.0


class FinalRound:
    """``builders``: the builder actors, idle by now. ``devices``: device id to (device class name, device). ``over``:
    whether no further shoot-out shall begin."""

    def __init__(
        self,
        fleet: FleetHealth,
        builders: Sequence[Any],
        devices: Mapping[str, tuple[str, DeviceHandle]],
        rule: StopRule,
        build_timeout_secs: float,
        over: Callable[[], bool],
    ) -> None:
        self._fleet = fleet
        self._builders = builders
        self._devices = devices
        self._rule = rule
        self._build_timeout_secs = build_timeout_secs
        self._over = over

    async def hold(self, states: Sequence[TaskTrials], oracles: Mapping[str, Awaitable[Any]]) -> None:
        """A shoot-out for each task that needs one. ``oracles``: the unscheduled programs by task id, or None each.

        What cannot be built or measured leaves its task as it is: the incumbent stands.
        """
        if math.isinf(self._rule.race_factor):
            return  # a dataset is collected: no candidate matters more than another
        await asyncio.gather(*(self._serve(device_class, states, oracles) for device_class in self._classes()))

    def _classes(self) -> list[str]:
        return sorted({device_class for device_class, _ in self._devices.values()})

    async def _serve(
        self, device_class: str, states: Sequence[TaskTrials], oracles: Mapping[str, Awaitable[Any]]
    ) -> None:
        """The tasks of one class, the heaviest share of the network first."""
        mine = [state for state in states if state.task.device_class.name == device_class]
        for state in sorted(mine, key=lambda each: -each.task.weight * each.best_secs if each.ranking.best else 0.0):
            finalists = state.ranking.finalists()
            if not finalists:
                continue
            device_id = await self._usable(device_class)
            if device_id is None:
                return
            known = oracles.get(state.task.id)
            oracle = None if known is None else await known
            if oracle is None:  # built by an earlier run, or not any more when this one ended
                oracle = await self._built(state.task, None)
            artifacts = [state.artifacts.get(each.id) or await self._built(state.task, each) for each in finalists]
            entered = [
                (artifact, state.ranking.next_revision(candidate.id))
                for candidate, artifact in zip(finalists, artifacts, strict=True)
                if artifact is not None
            ]
            # People may have taken the device out while the artifacts were built.
            if oracle is not None and len(entered) > 1 and not self._over() and self._free(device_id):
                await self._shoot_out(device_id, state.task, entered, oracle)

    async def _usable(self, device_class: str) -> str | None:
        """A device of the class that may work now. One that was lost, or that had no time to join because this run had
        nothing else to measure, is waited for a little. None where there is none, or no shoot-out shall begin."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _BACK_SECS
        while not self._over():
            free = next((name for name in self._fleet.usable(device_class) if self._free(name)), None)
            missed = [] if free else self._missed(device_class)
            if not missed or clock() >= deadline:
                return free
            for device_id in missed:
                await self._check(device_id, deadline - clock())
        return None

    def _missed(self, device_class: str) -> list[str]:
        """The devices of a class that could work after a check."""
        states = {
            name: self._fleet[name] for name, (its_class, _) in self._devices.items() if its_class == device_class
        }
        return [
            name
            for name, state in states.items()
            if state.admin is Admin.ACTIVE and state.health is not Health.QUARANTINED and not state.lease.held
        ]

    async def _check(self, device_id: str, patience_secs: float) -> None:
        _, device = self._devices[device_id]
        try:
            secs = await asyncio.wait_for(device.check(), patience_secs)
        except (*_LOST, DeviceUnreachableError, ProbeError, TimeoutError) as error:
            _LOG.warning("device %s: %s", device_id, first_line(error))
            await asyncio.sleep(_RETRY_SECS)
        else:
            self._fleet.happened(device_id, health.Joined())
            self._fleet.happened(device_id, health.ProbePassed(secs))

    def _free(self, device_id: str) -> bool:
        return device_id in self._devices and health.may_work(self._fleet[device_id])

    async def _shoot_out(self, device_id: str, task: Task, finalists: Sequence[tuple[Any, int]], oracle: Any) -> None:
        rule = round_rule(self._rule)
        deadline_secs = WINDOW_WAIT_SECS + len(finalists) * ROUNDS * (2 * rule.timeout_secs + 5.0)
        _, device = self._devices[device_id]
        epoch = self._fleet.happened(device_id, health.Leased(self._fleet.run_id, deadline_secs)).lease.epoch
        try:
            holding = device.shoot_out(finalists, oracle, rule, ROUNDS, epoch, deadline_secs)
            report = await watched(device, holding)
        except _LOST as error:
            if isinstance(error, ActorTimeoutError):
                device.restart()
            report = BatchReport(detail=first_line(error))
        if report.detail:
            _LOG.warning("shoot-out of %s on %s: %s", task.workload.name, device_id, report.detail)
            self._fleet.happened(device_id, health.Lost(report.detail))
        else:
            self._fleet.happened(device_id, health.Released(epoch))

    async def _built(self, task: Task, candidate: Candidate | None) -> Any:
        """Object reference of an artifact that is not at hand, of an earlier run for example; None where that fails."""
        if not self._builders:
            return None
        request = BuildRequest(task, candidate, self._build_timeout_secs)
        try:
            failure_ref, artifact_ref = self._builders[0].build.options(num_returns=2).remote(request)
            failure: BuildFailure | None = await ask(failure_ref, self._build_timeout_secs + WINDOW_WAIT_SECS, "build")
        except (ActorLostError, ActorTimeoutError) as error:
            _LOG.warning("builder: %s", error)
            return None
        return artifact_ref if failure is None else None
