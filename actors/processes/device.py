"""The device actor: owns one device and measures artifacts on it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from actors.clients.artifacts import unpacked
from actors.clients.calls import ByValue, remote_actor
from actors.clients.device import TaskArtifacts
from actors.clients.recorder import RecorderClient
from actors.clusters.nodes import Windows
from actors.heartbeat import Heartbeat, heartbeat
from actors.processes.batch_measurement import BatchMeasurement
from actors.processes.call_rounds import CallRounds
from actors.processes.device_connection import DeviceConnection, OpenDevice
from actors.processes.device_incumbents import DeviceIncumbents
from actors.processes.device_oracles import DeviceOracles
from actors.processes.device_probe import DeviceProbe
from actors.processes.device_window import DeviceWindow
from actors.processes.duels import run_shoot_out
from actors.processes.measured_artifacts import MeasuredArtifact, all_at_speed, at_speed, loss_of
from actors.processes.recorder import make_record
from actors.turns.device_turn import DeviceTurn, TurnRequester
from devices.host.versions import HostVersions, this_host_versions
from devices.protocol import Artifact
from fleet_tune.base.domain import Fingerprint, Measurement, Outcome, Record, StopRule
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError, RecorderLostError
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.stores.codec import encode_record
from fleet_tune.base.records.stores.reader import split_task_id
from fleet_tune.base.results import DeviceTime
from policies.measuring.deadline import ROUND_LOAD_SECS
from policies.runs.events import BatchMeasured, BatchPostponed, ShootOutMeasured

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _in_turn(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Let a method that uses the device wait for its turn."""

    @functools.wraps(method)
    def waiting(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with contextlib.nullcontext() if self._turn is None else self._turn.used():
            return method(self, *args, **kwargs)

    return waiting


class DeviceActor:
    """One device, which ``open_device`` connects to (see :func:`devices.device_factory.open_device`).

    A device that shares its host with builders (``shares_host``) measures in quiet windows (``windows``), one batch in
    each. A device that other runs use too (``requester``) is used in turns. ``leaves``: disconnect at the end of a
    turn, since no other process can connect to the device while this process is connected.
    """

    def __init__(
        self,
        device_id: str,
        open_device: OpenDevice,
        run_id: str,
        windows: Windows | None,
        requester: TurnRequester | None = None,
        leaves: bool = True,
        shares_host: bool = False,
    ) -> None:
        self._device_id = device_id
        self._run_id = run_id
        self._window = DeviceWindow(windows, shares_host, f"device {device_id} of run {run_id}")
        self._turn = None if requester is None else DeviceTurn(requester, self._leave if leaves else lambda: None)
        self._connection = DeviceConnection(open_device)
        self._probe = DeviceProbe(device_id, self._connection)
        self._incumbents = DeviceIncumbents()
        self._oracles = DeviceOracles(self._connection, self._window)
        self._batch = BatchMeasurement(self._connection, self._window, self._probe, self._incumbents, self._oracles)
        self._call_rounds = CallRounds()
        self._recorded_by: tuple[ByValue[RecorderClient], RecorderClient] | None = None
        self._target: str | None = None  # canonical text; None until the device has answered

    def host(self) -> HostVersions:
        """Return the machine that this process runs on, with its versions of TVM."""
        return this_host_versions()

    @_in_turn
    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises :class:`DeviceUnreachableError`."""
        with self._window.quiet():
            fingerprint = self._connection.device.fingerprint()
        self._target = fingerprint.device_class.target
        return fingerprint

    @_in_turn
    def ping(self) -> None:
        """Check that the device answers. This disturbs no measurement. Raises DeviceUnreachableError."""
        self._connection.device.ping()

    def wait_for_turn(self, most_secs: float) -> str:
        """Wait until this run may use the device, for ``most_secs`` at most. Return the title of the run that has the
        device then, or an empty text if this run may use it."""
        return "" if self._turn is None else self._turn.wait(most_secs)

    @_in_turn
    def probe(self, target: str, power: str = "") -> float:
        """Return the seconds of one run of the probe. ``target``: the target of the device's class, which a device that
        joins late must have. ``power``: the power mode in which the run measures the device, empty if it is not known.
        The caller gives both, since this process may be younger than the run.

        Raises :class:`DeviceUnreachableError`, :class:`ProbeError`.
        """
        if self._target is None:
            self.fingerprint()
        if self._target != target:
            raise ProbeError(self._device_id, "it has another target than the others of its class")
        with self._window.quiet():
            return self._probe.secs_in(power)

    @_in_turn
    def measure(
        self,
        artifacts: Sequence[Any],
        tasks: Mapping[str, TaskArtifacts],
        rule: StopRule,
        recorder: ByValue[RecorderClient],
        epoch: int,
        power: str = "",
    ) -> BatchMeasured:
        """Measure a batch in one quiet window.

        A candidate that would be the new incumbent meets the incumbent in a duel if the incumbent's artifact is
        available. A lost device ends the batch. Candidates with the outcome KILLED or DEVICE_LOST (the candidate that
        the device was running) get no record: the run's state decides whether they are tried again.

        The probe runs at both ends of the window and between stretches of measurements; if the speed changed during a
        stretch, candidates of it are measured once more.

        Args:
            artifacts: as :class:`actors.clients.artifacts.Artifacts` hands them out.
            tasks: the tasks of the batch by id. All are given, since a restarted actor has none of them.
            rule: when a measurement ends.
            recorder: keeps the unit of the device's speed.
            epoch: epoch of the lease.
            power: as for :meth:`probe`.
        """
        self._prepare(tasks)
        fetched = [unpacked(one) for one in artifacts]
        measured: list[MeasuredArtifact] = []
        # Before the window, so that builders need not stand still for seconds.
        try:
            checked_again = self._oracles.run(tasks)
        except DeviceUnreachableError as error:
            return BatchMeasured(self._device_id, epoch, {}, error.detail)
        asked = time.monotonic()
        with self._window.quiet():
            waits = {DeviceTime.WINDOW: time.monotonic() - asked}
            try:
                # A device that is lost here was lost between two batches: no candidate is to blame.
                before_secs = self._probe.first_secs(self._recorder(recorder), next(iter(tasks)), power)
            except (DeviceUnreachableError, ProbeError) as error:
                unchecked = self._oracles.unchecked(tasks, checked_again)
                return BatchMeasured(self._device_id, epoch, {}, error.detail, unchecked=unchecked)
            while len(measured) < len(fetched) and not loss_of(measured):
                stretch, before_secs = self._batch.steady_stretch(fetched[len(measured) :], rule, before_secs)
                measured += stretch
            lost = loss_of(measured)
            vitals = {} if lost else {**self._connection.device.vitals(), **self._probe.speeds(before_secs)}
            calls = None if lost else self._time_calls(before_secs)
        if calls is not None:
            with contextlib.suppress(RecorderLostError):  # storing the records reports it
                self._recorder(recorder).calls_timed_and_wait(split_task_id(next(iter(tasks)))[1], calls)
        outcomes: dict[str, Outcome] = {}
        records: list[bytes] = []
        for artifact, measurement in measured:
            assert artifact.candidate is not None
            outcomes[artifact.candidate.id] = measurement.outcome
            if measurement.outcome.blames_candidate:
                records.append(encode_record(self._record(artifact, measurement)))
        unchecked = self._oracles.unchecked(tasks, checked_again)
        return BatchMeasured(self._device_id, epoch, outcomes, lost, vitals, waits, records, unchecked, calls)

    @_in_turn
    def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        task: TaskArtifacts,
        rule: StopRule,
        recorder: ByValue[RecorderClient],
        epoch: int,
        power: str = "",
    ) -> ShootOutMeasured | BatchPostponed:
        """Let the finalists of one task meet in one quiet window, and store their records. The shoot-out is postponed
        while the oracle of the task runs on the host.

        ``finalists``: the artifact of each finalist, in a list, and the revision number of its record. ``power``: as
        for :meth:`probe`. Raises StaleLeaseError.
        """
        artifacts = [unpacked(one) for [one], _ in finalists]
        task_id = artifacts[0].task_id
        self._prepare({task_id: task})
        self._oracles.wait(task_id)
        if self._oracles.runs_on_host(task_id):
            return BatchPostponed(self._device_id, epoch, self._oracles.unchecked([task_id]))
        try:
            checked_again = self._oracles.run({task_id: task})
        except DeviceUnreachableError as error:
            return ShootOutMeasured(self._device_id, epoch, error.detail)
        if self._oracles.runs_on_host(task_id):
            return BatchPostponed(self._device_id, epoch, self._oracles.unchecked([task_id]))
        with self._window.quiet():
            try:
                before_secs = self._probe.first_secs(self._recorder(recorder), task_id, power)
            except (DeviceUnreachableError, ProbeError) as error:
                unchecked = self._oracles.unchecked([task_id], checked_again)
                return ShootOutMeasured(self._device_id, epoch, error.detail, unchecked=unchecked)
            # A pair's ratio needs no speed. A finalist without an opponent is counted at the speed before the
            # shoot-out until the shoot-out is over.
            speed = self._probe.speed.between(before_secs, before_secs)
            found = run_shoot_out(
                lambda asked: at_speed(self._batch.ask(asked), speed), artifacts, task.incumbent, rule
            )
            if isinstance(found, Measurement):
                return ShootOutMeasured(self._device_id, epoch, found.detail or "lost")
            speed = self._probe.speed.between(before_secs, self._probe.secs_or(before_secs))
        records = []
        measured = all_at_speed([(artifacts[number], each) for number, each in found.items()], speed)
        for number, (artifact, measurement) in zip(found, measured, strict=True):
            stamped = dataclasses.replace(measurement, build_secs=artifact.build_secs)
            records.append(self._record(artifact, stamped, finalists[number][1]))
        self._recorder(recorder).append_and_wait(records, epoch)
        return ShootOutMeasured(self._device_id, epoch, unchecked=self._oracles.unchecked([task_id], checked_again))

    def beat(self) -> Heartbeat:
        """Return a sign of life. Runs beside the other calls, in its own thread."""
        return heartbeat()

    def close(self) -> None:
        self._connection.close()
        if self._turn is not None:
            self._turn.close()
        self._oracles.close()
        self._window.close()

    def _prepare(self, tasks: Mapping[str, TaskArtifacts]) -> None:
        """Fetch the missing artifacts of these tasks, and take in their incumbents."""
        for task_id, of_task in tasks.items():
            if not self._incumbents.knows(task_id):
                self._oracles.add(of_task)
            self._incumbents.take(task_id, of_task)

    def _record(self, artifact: Artifact, measurement: Measurement, revision: int = 0) -> Record:
        assert artifact.candidate is not None
        return make_record(artifact.candidate, artifact.trace, measurement, self._run_id, self._device_id, revision)

    def _recorder(self, shared: ByValue[RecorderClient]) -> RecorderClient:
        """Return the recorder's client. It is kept, since it stays the same, and unpickling an actor's handle takes
        longer than using it."""
        if self._recorded_by is None or shared != self._recorded_by[0]:
            self._recorded_by = shared, shared.get()
        return self._recorded_by[1]

    def _time_calls(self, probe_secs: float) -> CallSecs | None:
        """Run the incumbents in a round, if one is due. Return the extra time of a call over the kernel alone; None if
        there is no new result."""
        incumbents = self._incumbents.rivals()
        count = len(incumbents)
        if not self._call_rounds.is_due(count):
            return None
        secs = self._connection.device.extra_secs(incumbents, ROUND_LOAD_SECS)
        self._window.check()
        if secs is None:
            return None
        speed, _ = self._probe.speed.between(probe_secs, probe_secs)
        return self._call_rounds.timed(max(0.0, secs * speed) / count, count)

    def _leave(self) -> None:
        """Disconnect, since another run takes its turn on the device. Forget what the device held: it is gone at the
        next turn of this run."""
        self._connection.close()
        self._call_rounds = CallRounds()
        self._incumbents.clear()


def device_actor(**options: Any) -> Any:
    """The Ray class of :class:`DeviceActor`: Ray starts it again when its process ends, and it gives signs of life
    (``beat``) while it measures."""
    return remote_actor(DeviceActor, restarts=-1, groups={"beat": 1}, **options)
