"""The device actor: owns one device and measures artifacts on it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from actors.clients.artifacts import unpacked
from actors.clients.calls import ByValue, remote_actor
from actors.clients.device import TaskArtifacts
from actors.clients.recorder import RecorderClient
from actors.clusters.nodes import Windows, own_window_folder
from actors.heartbeat import Heartbeat, heartbeat
from actors.processes.call_rounds import CallRounds
from actors.processes.device_window import DeviceWindow
from actors.processes.duels import duel, tournament
from actors.processes.recorder import make_record
from actors.turns.device_turn import DeviceTurn, TurnRequester
from devices.client.host_oracle import HostOracles
from devices.host.children.child import without_torch
from devices.host.versions import HostVersions, this_host_versions
from devices.protocol import Artifact, Device, MeasureRequest
from fleet_tune.base.domain import Fingerprint, Incumbent, Measurement, Outcome, StopRule
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError, RecorderLostError
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.power_text import mode_of
from fleet_tune.base.records.stores.codec import encode_record
from fleet_tune.base.records.stores.reader import split_task_id
from fleet_tune.base.results import DeviceTime
from policies.measuring.adaptive_stopping import confirmation, following
from policies.measuring.deadline import ROUND_LOAD_SECS
from policies.measuring.speed import Speedometer, changed
from policies.runs.events import BatchMeasured, BatchPostponed, ShootOutMeasured

# Of measuring between two probes of a quiet window.
_STRETCH_SECS = 0.5
# Probes in a row in the first quiet window of a run, within so many seconds: their median is what is usual. The first
# one after others have worked on the host may take half as long again.
_FIRST_PROBES = 15
_FIRST_SECS = 2.0
_ORACLE_RUNS_HERE = "this machine runs its unscheduled program now"
# A shoot-out waits so long for an oracle that runs on the host; then others have their turn.
_ORACLE_WAIT_SECS = 5.0


MeasuredArtifact = tuple[Artifact, Measurement]
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

    A device that shares its host with builders (``shares_host``) is measured in quiet windows (``windows``), a batch in
    each. One that other runs use too (``requester``) is used in turns; ``leaves``: nobody else can connect to it while
    this process is connected.
    """

    def __init__(
        self,
        device_id: str,
        open_device: Callable[[], contextlib.AbstractContextManager[Device]],
        run_id: str,
        windows: Windows | None,
        requester: TurnRequester | None = None,
        leaves: bool = True,
        shares_host: bool = False,
    ) -> None:
        self._device_id = device_id
        self._open_device = open_device
        self._run_id = run_id
        self._window = DeviceWindow(windows, shares_host, f"device {device_id} of run {run_id}")
        self._opened = contextlib.ExitStack()
        self._turn = None if requester is None else DeviceTurn(requester, self._leave if leaves else lambda: None)
        self._connected: Device | None = None
        self._incumbents: dict[str, Incumbent] = {}
        self._rivals: dict[str, Artifact] = {}  # artifacts of incumbents, by task
        self._limits: dict[str, float | None] = {}  # of measuring a candidate, by task
        self._unchecked: dict[str, str] = {}
        """Why the oracle of a task is slow or fails here, by task: its candidates are measured, and not verified."""
        self._host_oracles = HostOracles(folder=own_window_folder())
        self._speed = Speedometer()
        self._shown_speed: float | None = None  # of its class, once the store has said it
        self._call_rounds = CallRounds()
        self._recorded_by: tuple[ByValue[RecorderClient], RecorderClient] | None = None
        self._target: str | None = None  # canonical text, once the device was asked

    @property
    def _device(self) -> Device:
        """Opened when first asked for, so that what is wrong with it is the answer of a call, not a dead actor."""
        if self._connected is None:
            without_torch()  # this process needs TVM alone, which otherwise loads torch too
            self._connected = self._opened.enter_context(self._open_device())
        return self._connected

    def host(self) -> HostVersions:
        """The machine that this process runs on."""
        return this_host_versions()

    @_in_turn
    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises :class:`DeviceUnreachableError`."""
        with self._window.quiet():
            fingerprint = self._device.fingerprint()
        self._target = fingerprint.device_class.target
        return fingerprint

    @_in_turn
    def ping(self) -> None:
        """Ask whether the device answers, which disturbs nobody. Raises DeviceUnreachableError."""
        self._device.ping()

    def wait_for_turn(self, most_secs: float) -> str:
        """Wait until this run may use the device, for so long at most; the title of the run that has it by then,
        empty where it may."""
        return "" if self._turn is None else self._turn.wait(most_secs)

    @_in_turn
    def probe(self, target: str, power: str = "") -> float:
        """Seconds of one run of the probe. ``target``: that of the device's class, which a device that joins late must
        have. ``power``: the power mode in which the run measures it, empty where that is not known; this process may be
        younger than the run.

        Raises :class:`DeviceUnreachableError`, :class:`ProbeError`.
        """
        if self._target is None:
            self.fingerprint()
        if self._target != target:
            raise ProbeError(self._device_id, "it has another target than the others of its class")
        with self._window.quiet():
            return self._probe_in(power)

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

        A candidate that would be the new incumbent meets the incumbent in a duel, as far as its artifact is at hand. A
        lost device ends the batch. The outcomes DEVICE_LOST, of the candidate that it was running, and KILLED have no
        record: the run's state decides whether the candidate is tried again.

        The probe runs at both ends of the window and between stretches of measurements; where the speed changed during
        a stretch, its candidates are measured once more.

        Args:
            artifacts: as :class:`actors.clients.artifacts.Artifacts` hands them out.
            tasks: those of the batch by id; a restarted actor lacks all of them.
            rule: when a measurement ends.
            recorder: has the unit of the device's speed.
            epoch: of the lease.
            power: as of :meth:`probe`.
        """
        for task_id, of_task in tasks.items():
            self._prepare(task_id, of_task)
        fetched = [unpacked(one) for one in artifacts]
        measured: list[MeasuredArtifact] = []
        # Before the window: who builds need not stand still for seconds.
        try:
            checked_again = self._run_oracles(tasks)
        except DeviceUnreachableError as error:
            return BatchMeasured(self._device_id, epoch, {}, error.detail)
        asked = time.monotonic()
        with self._window.quiet():
            waits = {DeviceTime.WINDOW: time.monotonic() - asked}
            try:
                # What went away between two batches was lost by no candidate.
                before_secs = self._first_probe(self._recorder(recorder), next(iter(tasks)), power)
            except (DeviceUnreachableError, ProbeError) as error:
                unchecked = self._unchecked_of(tasks, checked_again)
                return BatchMeasured(self._device_id, epoch, {}, error.detail, unchecked=unchecked)
            while len(measured) < len(fetched) and not _lost(measured):
                stretch, before_secs = self._steady_stretch(fetched[len(measured) :], rule, before_secs)
                measured += stretch
            lost = _lost(measured)
            vitals = {} if lost else {**self._device.vitals(), **self._speeds(before_secs)}
            calls = None if lost else self._time_calls(before_secs)
        if calls is not None:
            with contextlib.suppress(RecorderLostError):  # the records tell of it
                self._recorder(recorder).calls_timed_and_wait(split_task_id(next(iter(tasks)))[1], calls)
        outcomes: dict[str, Outcome] = {}
        records: list[bytes] = []
        for artifact, measurement in measured:
            assert artifact.candidate is not None
            outcomes[artifact.candidate.id] = measurement.outcome
            if measurement.outcome.blames_candidate:
                about = (self._run_id, self._device_id)
                records.append(encode_record(make_record(artifact.candidate, artifact.trace, measurement, *about)))
        unchecked = self._unchecked_of(tasks, checked_again)
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
        """Let the finalists of one task meet in one quiet window, and store what was found. It is postponed while the
        oracle of the task runs on the host.

        ``finalists``: each one's artifact, in a list, and the number of the revision that its record will
        be. ``power``: as of :meth:`probe`. Raises StaleLeaseError.
        """
        artifacts = [unpacked(one) for [one], _ in finalists]
        task_id = artifacts[0].task_id
        self._prepare(task_id, task)
        self._host_oracles.wait(task_id, _ORACLE_WAIT_SECS)
        if self._host_oracles.is_computing(task_id):
            return self._awaits_oracle(task_id, epoch)
        try:
            checked_again = self._run_oracles({task_id: task})
        except DeviceUnreachableError as error:
            return ShootOutMeasured(self._device_id, epoch, error.detail)
        if self._host_oracles.is_computing(task_id):
            return self._awaits_oracle(task_id, epoch)
        with self._window.quiet():
            try:
                before_secs = self._first_probe(self._recorder(recorder), task_id, power)
            except (DeviceUnreachableError, ProbeError) as error:
                unchecked = self._unchecked_of([task_id], checked_again)
                return ShootOutMeasured(self._device_id, epoch, error.detail, unchecked=unchecked)
            # Pairs need no speed, but those that meet nobody do: that of before the tournament, until it is over.
            speed = self._speed.between(before_secs, before_secs)
            found = tournament(lambda asked: _at(self._ask(asked), speed), artifacts, task.incumbent, rule)
            if isinstance(found, Measurement):
                return ShootOutMeasured(self._device_id, epoch, found.detail or "lost")
            speed = self._speed.between(before_secs, self._probe_or(before_secs))
        records = []
        measured = _all_at([(artifacts[number], each) for number, each in found.items()], speed)
        for number, (artifact, measurement) in zip(found, measured, strict=True):
            revision = finalists[number][1]
            assert artifact.candidate is not None
            stamped = dataclasses.replace(measurement, build_secs=artifact.build_secs)
            about = (self._run_id, self._device_id, revision)
            records.append(make_record(artifact.candidate, artifact.trace, stamped, *about))
        self._recorder(recorder).append_and_wait(records, epoch)
        return ShootOutMeasured(self._device_id, epoch, unchecked=self._unchecked_of([task_id], checked_again))

    def beat(self) -> Heartbeat:
        """A sign of life; called beside the others, in a thread of its own."""
        return heartbeat()

    def _steady_stretch(
        self, artifacts: Sequence[Artifact], rule: StopRule, before_secs: float
    ) -> tuple[list[MeasuredArtifact], float]:
        """Measurements of the first of ``artifacts``, at the speed that the device had meanwhile, and the probe after
        them. ``before_secs``: the probe before them. Where the two differ, what is not settled by then is measured once
        more; that counts, even where the speed changes again, which its error says."""
        known = self._known
        first = self._stretch(artifacts, rule, before_secs, _STRETCH_SECS)
        after_secs = before_secs if _lost(first) else self._probe_or(before_secs)
        settled = self._settled(first, (before_secs, after_secs), known)
        if not changed(before_secs, after_secs):
            return settled, after_secs
        unsettled = [at for at, (_, each) in enumerate(first) if each.outcome is Outcome.OK and not each.verified]
        known = self._known
        again = self._stretch([first[at][0] for at in unsettled], rule, after_secs, math.inf)
        last_secs = after_secs if _lost(again) else self._probe_or(after_secs)
        measured_again = self._settled(again, (after_secs, last_secs), known)
        for at, second in zip(unsettled, measured_again, strict=False):  # fewer where the device is lost
            settled[at] = second
        return settled, last_secs

    def _stretch(
        self, artifacts: Sequence[Artifact], rule: StopRule, probe_secs: float, most_secs: float
    ) -> list[MeasuredArtifact]:
        """Raw measurements, until the device is lost or they have taken ``most_secs``."""
        measured: list[MeasuredArtifact] = []
        for artifact in artifacts:
            measurement = self._measure(artifact, rule, self._speed.speed(probe_secs))
            measured.append((artifact, measurement))
            # A duel takes as long as a stretch.
            most_secs -= measurement.measure_secs if measurement.comparison is None else _STRETCH_SECS
            if most_secs <= 0 or measurement.outcome is Outcome.DEVICE_LOST:
                break
        return measured

    def _measure(self, artifact: Artifact, rule: StopRule, speed: float) -> Measurement:
        """``speed``: of the device by now; the incumbent would take so much less."""
        incumbent, limit_secs = self._incumbents[artifact.task_id], self._limits.get(artifact.task_id)
        incumbent_secs = incumbent.cost_secs / speed
        if limit_secs is not None:
            rule = dataclasses.replace(rule, timeout_secs=limit_secs)
        following_rule, confirm = following(rule, incumbent_secs), confirmation(rule, incumbent_secs)
        rival = self._rivals.get(artifact.task_id)
        # A duel decides better than a second measurement does.
        meets_rival = rival is not None and artifact.task_id not in self._unchecked
        second = None if meets_rival else confirm
        measured = self._ask(MeasureRequest(artifact, incumbent_secs, following_rule, second))
        if measured.verified and rival is not None and confirm is not None:
            result = duel(self._ask, rival, incumbent, artifact, following_rule, verified=True)
            if not (result.rival_failed and result.measured.outcome.blames_candidate):
                # The search learns what trials of its sketch take; what a winner takes beyond that is no argument.
                measured = dataclasses.replace(result.measured, measure_secs=measured.measure_secs)
            else:
                measured = self._ask(MeasureRequest(artifact, incumbent_secs, confirm.rule, placed_anew=True))
        self._consider(artifact, _at(measured, (speed, 0.0)))
        return dataclasses.replace(measured, build_secs=artifact.build_secs)

    def _prepare(self, task_id: str, of_task: TaskArtifacts) -> None:
        """Fetch what is lacking of a task, and take what is told of its incumbent, which may be another one than the
        last of this device."""
        if task_id not in self._incumbents:
            [oracle] = of_task.oracle
            self._device.add_oracle(unpacked(oracle))
        self._incumbents[task_id] = of_task.incumbent
        self._limits[task_id] = of_task.limit_secs
        rival = self._rivals.get(task_id)
        if rival is None or rival.candidate is None or rival.candidate.id != of_task.incumbent.candidate_id:
            self._rivals.pop(task_id, None)
            for reference in of_task.rival:
                self._rivals[task_id] = unpacked(reference)

    def _run_oracles(self, tasks: Mapping[str, TaskArtifacts]) -> list[str]:
        """Run the oracles of these tasks that have not run. One that takes too long or fails here runs on the host, in
        the background; where it cannot, it is tried again here with the next batch, a few times. Meanwhile nothing of
        its task is checked here. Return the tasks that are checked from now on and were not before. Raises
        DeviceUnreachableError."""
        checked_again = []
        for task_id, of_task in tasks.items():
            with self._window.working():
                problem = self._oracle_problem(task_id, of_task)
            if problem:
                self._unchecked[task_id] = problem
            elif self._unchecked.pop(task_id, None):
                checked_again.append(task_id)
        return checked_again

    def _unchecked_of(self, tasks: Iterable[str], checked_again: Iterable[str]) -> dict[str, str]:
        """See :attr:`BatchMeasured.unchecked`."""
        reasons = {task_id: self._unchecked[task_id] for task_id in tasks if task_id in self._unchecked}
        return reasons | dict.fromkeys(checked_again, "")

    def _awaits_oracle(self, task_id: str, epoch: int) -> BatchPostponed:
        self._unchecked.setdefault(task_id, _ORACLE_RUNS_HERE)
        return BatchPostponed(self._device_id, epoch, self._unchecked_of([task_id], ()))

    def _oracle_problem(self, task_id: str, of_task: TaskArtifacts) -> str:
        """Return why candidates of a task cannot be checked now, in one line; empty where they can."""
        # In this order: it may end in between.
        is_computing, outputs = self._host_oracles.is_computing(task_id), self._host_oracles.outputs(task_id)
        if outputs is not None:
            self._device.use_oracle_outputs(task_id, outputs)
            return ""
        if is_computing:
            return self._unchecked.get(task_id, _ORACLE_RUNS_HERE)
        problem = self._device.run_oracle(task_id)
        if not problem:
            return ""
        failure = self._host_oracles.failure(task_id)
        if failure:
            return f"{problem}, nor can this machine run it: {failure}"
        [oracle] = of_task.oracle
        self._host_oracles.begin(unpacked(oracle), self._window.of_host())
        return f"{problem}: this machine runs it now" if self._host_oracles.is_computing(task_id) else problem

    @property
    def _known(self) -> tuple[dict[str, Incumbent], dict[str, Artifact]]:
        return dict(self._incumbents), dict(self._rivals)

    def _settled(
        self,
        measured: Sequence[MeasuredArtifact],
        probes: tuple[float, float],
        known: tuple[dict[str, Incumbent], dict[str, Artifact]],
    ) -> list[MeasuredArtifact]:
        """Return the measurements between two probes, in order, at the speed of that time; ``known``: the incumbents
        before.

        Meanwhile times were taken for those of one speed. What they are worth is known now, and no time of a speed that
        nobody knew remains as a bar for others.
        """
        self._incumbents, self._rivals = known
        settled = _all_at(measured, self._speed.between(*probes))
        for artifact, each in settled:
            self._consider(artifact, each)
        return settled

    def _consider(self, artifact: Artifact, measured: Measurement) -> None:
        """Make this candidate the incumbent of its task, if it ranks before it."""
        assert artifact.candidate is not None
        if measured.verified and measured.rank_secs < self._incumbents[artifact.task_id].rank_secs:
            incumbent = Incumbent(artifact.candidate.id, measured.cost_secs, measured.rank_secs)
            self._incumbents[artifact.task_id], self._rivals[artifact.task_id] = incumbent, artifact

    def _probe(self) -> float:
        """Seconds of one run of the probe. Raises DeviceUnreachableError, ProbeError."""
        secs = self._device.probe_secs()
        self._speed.probed(secs)
        return secs

    def _probe_in(self, power: str) -> float:
        """:meth:`_probe`. Raises ProbeError too where the device tells another power mode than this one."""
        now = self._device.power() if power else ""
        if now and mode_of(now) != mode_of(power):
            reason = f"its power mode is {now}, and this run measures it in {power}"
            raise ProbeError(self._device_id, f"{reason}: set it back, or end the run and begin it again")
        return self._probe()

    def _probe_or(self, before_secs: float) -> float:
        """Seconds of one run of the probe, those of the one before where it does not run: what was measured is there,
        and the next batch finds out."""
        try:
            return self._probe()
        except (DeviceUnreachableError, ProbeError):
            return before_secs

    def _recorder(self, shared: ByValue[RecorderClient]) -> RecorderClient:
        """It is the same all the time, and to make a handle of an actor takes longer than to use it."""
        if self._recorded_by is None or shared != self._recorded_by[0]:
            self._recorded_by = shared, shared.get()
        return self._recorded_by[1]

    def _first_probe(self, recorder: RecorderClient, task_id: str, power: str) -> float:
        """Seconds of the probe at the beginning of a quiet window. In the first window it runs several times: what is
        usual is told to the store, which says what its seconds are counted at, and at which speed people see them.
        Raises as :meth:`_probe_in`."""
        secs = self._probe_in(power)
        if self._shown_speed is None:
            deadline = time.monotonic() + _FIRST_SECS
            for _ in range(_FIRST_PROBES - 1):
                if time.monotonic() >= deadline:
                    break
                secs = self._probe()
            told = self._device_id, split_task_id(task_id)[1], self._speed.usual_secs
            self._speed.unit_secs, self._shown_speed = recorder.probed_and_wait(*told)
        return secs

    def _time_calls(self, probe_secs: float) -> CallSecs | None:
        """Run the incumbents in a round, where that is due. Return what a call takes longer than a kernel alone; None
        where that is not known anew."""
        count = len(self._rivals)
        if not self._call_rounds.is_due(count):
            return None
        secs = self._device.extra_secs(list(self._rivals.values()), ROUND_LOAD_SECS)
        self._window.check()
        if secs is None:
            return None
        speed, _ = self._speed.between(probe_secs, probe_secs)
        return self._call_rounds.timed(max(0.0, secs * speed) / count, count)

    def _speeds(self, probe_secs: float) -> dict[str, float]:
        assert self._shown_speed is not None
        return {"speed": self._speed.speed(probe_secs) / self._shown_speed, "shown_speed": self._shown_speed}

    def _ask(self, request: MeasureRequest) -> Measurement:
        self._window.check()
        if request.artifact.task_id in self._unchecked:
            request = dataclasses.replace(request, incumbent_secs=0.0)  # it is compared with nothing
        try:
            return self._device.measure(request)
        except DeviceUnreachableError as error:
            return Measurement(Outcome.DEVICE_LOST, detail=str(error))

    def close(self) -> None:
        self._opened.close()
        if self._turn is not None:
            self._turn.close()
        self._host_oracles.close()
        self._window.close()

    def _leave(self) -> None:
        """Another run takes its turn on the device: nothing is there any more when it is this run's again."""
        self._opened.close()
        self._opened = contextlib.ExitStack()
        self._connected = None
        self._call_rounds = CallRounds()
        self._incumbents.clear()
        self._rivals.clear()


def _lost(measured: Sequence[MeasuredArtifact]) -> str:
    """Return how the device was lost, which ends a batch; empty if it was not."""
    lost = (each for _, each in measured if each.outcome is Outcome.DEVICE_LOST)
    return next((each.detail or "lost" for each in lost), "")


def _at(measurement: Measurement, speed: tuple[float, float]) -> Measurement:
    """Return a measurement with the speed of the device at that time and its error."""
    if measurement.outcome is not Outcome.OK:
        return measurement
    return dataclasses.replace(measurement, speed=speed[0], speed_error=speed[1])


def _all_at(measured: Sequence[MeasuredArtifact], speed: tuple[float, float]) -> list[MeasuredArtifact]:
    """:func:`_at` of each, in order; who met another one of these met it as that one is now."""
    ranks: dict[str, float] = {}
    settled: list[MeasuredArtifact] = []
    for artifact, raw in measured:
        assert artifact.candidate is not None
        each = _at(raw, speed)
        if each.comparison is not None and each.comparison.against in ranks:
            comparison = dataclasses.replace(each.comparison, against_rank_secs=ranks[each.comparison.against])
            each = dataclasses.replace(each, comparison=comparison)
        if each.outcome is Outcome.OK:  # who failed at last was still met as it was before
            ranks[artifact.candidate.id] = each.rank_secs
        settled.append((artifact, each))
    return settled


def device_actor(**options: Any) -> Any:
    """The Ray class of :class:`DeviceActor`: Ray starts it again when its process ends, and it gives signs of life
    (``beat``) while it measures."""
    return remote_actor(DeviceActor, restarts=-1, groups={"beat": 1}, **options)
