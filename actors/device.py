"""The device actor: owns one device, measures artifacts on it and makes the records durable."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.calls import WINDOW_WAIT_SECS, fetch, remote_actor
from actors.clients import BatchReport, RecorderClient
from actors.finalists import measured_in_turn
from actors.recorder import make_record
from devices.host.child import without_torch
from devices.host.quiet import QuietWindow
from devices.protocol import Artifact, Device, MeasureRequest
from fleet_tune.domain import Fingerprint, Measurement, Outcome, Record, StopRule
from fleet_tune.errors import DeviceUnreachableError, ProbeError
from policies.measuring.baseline import MAX_DRIFT, Baseline
from policies.measuring.drift import DriftWatch
from policies.measuring.stopping import confirmation, following

_FETCH_DEADLINE_SECS = 30.0


class DeviceActor:
    """One device, which ``open_device`` connects to (see :func:`devices.opening.opened_device`).

    A device that shares its host with builders (``quiet_window``) is measured in quiet windows, a batch in each.
    """

    def __init__(
        self,
        device_id: str,
        open_device: Callable[[], contextlib.AbstractContextManager[Device]],
        run_id: str,
        quiet_window: str | None,
        max_drift: float = MAX_DRIFT,
    ) -> None:
        self._device_id = device_id
        self._open_device = open_device
        self._run_id = run_id
        self._window = QuietWindow(Path(quiet_window), WINDOW_WAIT_SECS) if quiet_window else None
        self._opened = contextlib.ExitStack()
        self._connected: Device | None = None
        self._best_secs: dict[str, float] = {}
        self._drift = DriftWatch(max_drift)
        self._recorder: RecorderClient | None = None  # of the last batch
        self._target: str | None = None  # canonical text, once the device was asked

    @property
    def _device(self) -> Device:
        """Opened when first asked for, so that what is wrong with it is the answer of a call, not a dead actor."""
        if self._connected is None:
            without_torch()  # this process needs TVM alone, which otherwise loads torch too
            self._connected = self._opened.enter_context(self._open_device())
        return self._connected

    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises :class:`DeviceUnreachableError`."""
        with self._quiet():
            fingerprint = self._device.fingerprint()
        self._target = fingerprint.device_class.target
        return fingerprint

    def check(self, target: str, earlier: Baseline | None) -> tuple[float, Baseline]:
        """Seconds of one run of the probe, and what they are compared with from now on. ``target``: that of
        the device's class, which a device that joins late must have. ``earlier``: what an earlier process of this actor
        answered last.

        Raises :class:`DeviceUnreachableError`, :class:`ProbeError`.
        """
        if self._target is None:
            self.fingerprint()
        if self._target != target:
            raise ProbeError(self._device_id, "it has another target than the others of its class")
        with self._quiet():
            secs = self._device.probe_secs()
        marked = self._drift.checked(secs, earlier)
        if marked and self._recorder is not None:
            self._recorder.append_and_wait(marked)
        assert self._drift.baseline is not None
        return secs, self._drift.baseline

    def measure(
        self,
        artifacts: Sequence[Any],
        oracles: Mapping[str, tuple[list[Any], float]],
        rule: StopRule,
        recorder: RecorderClient,
        epoch: int,
    ) -> BatchReport:
        """Measure a batch in one quiet window and store the records under the lease ``epoch``.

        ``artifacts``: object references. ``oracles``: for each task of the batch the object reference of its
        unscheduled program (in a list, so that it is fetched only where it is lacking: a restarted actor lacks all)
        and its incumbent's cost. A lost device ends the batch, and the outcome DEVICE_LOST of what it was running is
        not stored: the run's state decides whether the candidate is tried again. Raises StaleLeaseError.
        """
        self._recorder = recorder
        for task_id, ([oracle], best_secs) in oracles.items():
            if task_id not in self._best_secs:
                self._device.add_oracle(fetch(oracle, _FETCH_DEADLINE_SECS, "fetch an oracle"))
            # It may be slower than what was told before: of an incumbent whose device turned out to be off.
            self._best_secs[task_id] = best_secs
        fetched: list[Artifact] = [fetch(one, _FETCH_DEADLINE_SECS, "fetch an artifact") for one in artifacts]
        records: list[Record] = []
        outcomes: dict[str, Outcome] = {}
        lost = ""
        with self._quiet():
            try:
                # What went away between two batches was lost by no candidate.
                self._device.ping()
            except DeviceUnreachableError as error:
                return BatchReport(detail=error.detail)
            for artifact in fetched:
                assert artifact.candidate is not None
                measurement = self._measure(artifact, rule)
                outcomes[artifact.candidate.id] = measurement.outcome
                if measurement.outcome is Outcome.DEVICE_LOST:
                    lost = measurement.detail or "lost"
                    break
                records.append(
                    make_record(artifact.candidate, artifact.trace, measurement, self._run_id, self._device_id)
                )
            vitals = {} if lost else {**self._device.vitals(), "drift": self._drift.factor}
        if records:
            recorder.append_and_wait(records, epoch)
            self._drift.stored(records)
        return BatchReport(outcomes, lost, vitals)

    def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        oracle: list[Any],
        rule: StopRule,
        rounds: int,
        recorder: RecorderClient,
        epoch: int,
    ) -> BatchReport:
        """Measure the finalists of one task in turn, ``rounds`` times, in one quiet window, and store what was found.

        ``finalists``: the object reference of each one's artifact, and the number of the revision that its record will
        be. ``oracle``: the object reference of the unscheduled program, in a list. Raises StaleLeaseError.
        """
        artifacts: list[Artifact] = [fetch(one, _FETCH_DEADLINE_SECS, "fetch an artifact") for [one], _ in finalists]
        if artifacts[0].task_id not in self._best_secs:
            self._device.add_oracle(fetch(oracle[0], _FETCH_DEADLINE_SECS, "fetch an oracle"))
            self._best_secs[artifacts[0].task_id] = math.inf
        with self._quiet():
            measurements = measured_in_turn(self._ask, artifacts, rule, rounds)
        if isinstance(measurements, Measurement):
            return BatchReport(detail=measurements.detail or "lost")
        records = []
        for artifact, (_, revision), measurement in zip(artifacts, finalists, measurements, strict=True):
            assert artifact.candidate is not None
            stamped = dataclasses.replace(self._drift.stamped(measurement), build_secs=artifact.build_secs)
            about = (self._run_id, self._device_id, revision)
            records.append(make_record(artifact.candidate, artifact.trace, stamped, *about))
        recorder.append_and_wait(records, epoch)
        return BatchReport({record.candidate.id: record.measurement.outcome for record in records})

    def beat(self) -> None:
        """A sign of life; called beside the others, in a thread of its own."""

    def _measure(self, artifact: Artifact, rule: StopRule) -> Measurement:
        # What the incumbent would take now: a device that is off must not give up on whom it would keep when right.
        incumbent_secs = self._best_secs[artifact.task_id] * self._drift.factor
        following_rule, confirm = following(rule, incumbent_secs), confirmation(rule, incumbent_secs)
        measured = self._ask(MeasureRequest(artifact, incumbent_secs, following_rule, confirm))
        measured = self._drift.stamped(measured)
        if measured.verified and measured.cost_secs < incumbent_secs:
            self._best_secs[artifact.task_id] = measured.cost_secs
        return dataclasses.replace(measured, build_secs=artifact.build_secs)

    def _ask(self, request: MeasureRequest) -> Measurement:
        try:
            return self._device.measure(request)
        except DeviceUnreachableError as error:
            return Measurement(Outcome.DEVICE_LOST, detail=str(error))

    def close(self) -> None:
        self._opened.close()

    def _quiet(self) -> contextlib.AbstractContextManager[Any]:
        return self._window.quiet() if self._window else contextlib.nullcontext()


def device_actor(**options: Any) -> Any:
    """The Ray class of :class:`DeviceActor`: Ray starts it again when its process ends, and it gives signs of life
    (``beat``) while it measures."""
    return remote_actor(DeviceActor, restarts=-1, groups={"beat": 1}, **options)
