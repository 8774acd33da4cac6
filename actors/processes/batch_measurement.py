"""Measures the candidates of a batch, in stretches between two probes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from actors.processes.device_connection import DeviceConnection
from actors.processes.device_incumbents import DeviceIncumbents, KnownIncumbents
from actors.processes.device_oracles import DeviceOracles
from actors.processes.device_probe import DeviceProbe
from actors.processes.device_window import DeviceWindow
from actors.processes.duels import duel
from actors.processes.measured_artifacts import MeasuredArtifact, all_at_speed, at_speed, loss_of
from devices.protocol import Artifact, MeasureRequest
from fleet_tune.base.domain import Measurement, Outcome, StopRule
from fleet_tune.base.errors import DeviceUnreachableError
from policies.measuring.adaptive_stopping import confirmation, following
from policies.measuring.duel import STOPPED
from policies.measuring.speed import changed

# Time of measuring between two probes of a quiet window.
_STRETCH_SECS = 0.5


@dataclasses.dataclass(frozen=True)
class BatchMeasurement:
    """Measures candidates on one device, in an open quiet window."""

    connection: DeviceConnection
    window: DeviceWindow
    probe: DeviceProbe
    incumbents: DeviceIncumbents
    oracles: DeviceOracles

    def ask(self, request: MeasureRequest) -> Measurement:
        """Measure one candidate; a device that does not answer is an outcome. Raises WindowLostError."""
        self.window.check()
        if self.oracles.is_unchecked(request.artifact.task_id):
            request = dataclasses.replace(request, incumbent_secs=0.0)  # there are no outputs to compare with
        try:
            return self.connection.device.measure(request)
        except DeviceUnreachableError as error:
            return Measurement(Outcome.DEVICE_LOST, detail=str(error))

    def steady_stretch(
        self, artifacts: Sequence[Artifact], rule: StopRule, before_secs: float
    ) -> tuple[list[MeasuredArtifact], float]:
        """Measure the first of ``artifacts`` for a stretch. Return the measurements, at the speed that the device had
        meanwhile, and the seconds of the probe after them. ``before_secs``: seconds of the probe before them. If the
        two probes differ, candidates that ran and are not verified are measured once more. The second measurement
        counts even if the speed changes again; then its speed error is larger."""
        known = self.incumbents.known()
        first = self._stretch(artifacts, rule, before_secs, _STRETCH_SECS)
        after_secs = before_secs if loss_of(first) else self.probe.secs_or(before_secs)
        corrected = self._corrected(first, (before_secs, after_secs), known)
        if not changed(before_secs, after_secs):
            return corrected, after_secs
        uncertain = [at for at, (_, each) in enumerate(first) if each.outcome is Outcome.OK and not each.verified]
        known = self.incumbents.known()
        again = self._stretch([first[at][0] for at in uncertain], rule, after_secs, math.inf)
        last_secs = after_secs if loss_of(again) else self.probe.secs_or(after_secs)
        measured_again = self._corrected(again, (after_secs, last_secs), known)
        for at, second in zip(uncertain, measured_again, strict=False):  # fewer where the device is lost
            corrected[at] = second
        return corrected, last_secs

    def _stretch(
        self, artifacts: Sequence[Artifact], rule: StopRule, probe_secs: float, most_secs: float
    ) -> list[MeasuredArtifact]:
        """Return raw measurements of artifacts in order, until the device is lost or they have taken ``most_secs``."""
        measured: list[MeasuredArtifact] = []
        for artifact in artifacts:
            measurement = self._measure(artifact, rule, self.probe.speed.speed(probe_secs))
            measured.append((artifact, measurement))
            # A duel takes as long as a stretch.
            most_secs -= _STRETCH_SECS if measurement.stopped == STOPPED else measurement.measure_secs
            if most_secs <= 0 or measurement.outcome is Outcome.DEVICE_LOST:
                break
        return measured

    def _measure(self, artifact: Artifact, rule: StopRule, speed: float) -> Measurement:
        """Measure one artifact. ``speed``: the present speed of the device, by which the incumbent's expected time is
        divided."""
        task_id = artifact.task_id
        incumbent, limit_secs = self.incumbents.of(task_id), self.incumbents.limit_secs(task_id)
        incumbent_secs = incumbent.cost_secs / speed
        if limit_secs is not None:
            rule = dataclasses.replace(rule, timeout_secs=limit_secs)
        following_rule, confirm = following(rule, incumbent_secs), confirmation(rule, incumbent_secs)
        rival = self.incumbents.rival(task_id)
        # A duel decides better than a second measurement does.
        meets_rival = rival is not None and not self.oracles.is_unchecked(task_id)
        second = None if meets_rival else confirm
        measured = self.ask(MeasureRequest(artifact, incumbent_secs, following_rule, second))
        if measured.verified and rival is not None and confirm is not None:
            result = duel(self.ask, rival, incumbent, artifact, following_rule, verified=True)
            if not (result.rival_failed and result.measured.outcome.blames_candidate):
                # The search learns how long an ordinary trial of the sketch takes, without a duel's extra time.
                measured = dataclasses.replace(result.measured, measure_secs=measured.measure_secs)
            else:
                measured = self.ask(MeasureRequest(artifact, incumbent_secs, confirm.rule, placed_anew=True))
        self.incumbents.consider(artifact, at_speed(measured, (speed, 0.0)))
        return dataclasses.replace(measured, build_secs=artifact.build_secs)

    def _corrected(
        self, measured: Sequence[MeasuredArtifact], probes: tuple[float, float], known: KnownIncumbents
    ) -> list[MeasuredArtifact]:
        """Return the measurements between two probes, in order, at the speed of that time. ``known``: the incumbents
        before the first probe. Incumbents that were found between the probes are set again, with their times at that
        speed.
        """
        self.incumbents.go_back(known)
        corrected = all_at_speed(measured, self.probe.speed.between(*probes))
        for artifact, each in corrected:
            self.incumbents.consider(artifact, each)
        return corrected
