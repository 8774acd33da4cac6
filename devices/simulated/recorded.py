"""A device and a builder that answer from a dataset: whole runs in virtual time, on the measurements of a real device.

A candidate of the dataset fails or runs as it was recorded, micro-batch by micro-batch. So the current stop rule
decides anew when the measurement ends (also by racing). Any other candidate fails: it was not recorded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devices.protocol import (
    Artifact,
    BuildRequest,
    BuildResult,
    MeasureRequest,
    OracleOutputs,
    measurable,
    oracle_task,
)
from devices.timing.evaluator import Decide, Evaluation, confirmed, evaluate
from fleet_tune.base.domain import Candidate, Fingerprint, Measurement, Outcome, StopRule
from fleet_tune.base.errors import DatasetError, DeviceUnreachableError
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.task_data import MEASURED_BY, OUTCOMES, Dataset, TaskData

NOT_RECORDED = "the candidate is not in the dataset"
_BUILD_OUTCOMES = (Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT)


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """The outcome of one candidate in a dataset; see :class:`fleet_tune.base.task_data.TaskData`."""

    outcome: Outcome
    run_secs: tuple[float, ...]
    build_secs: float
    measure_secs: float
    detail: str


class RecordedCandidates:
    """The candidates of a dataset by their ids."""

    def __init__(self, dataset: Dataset) -> None:
        self._tasks: Mapping[str, TaskData] = {data.task.id: data for data in dataset}
        self._rows: dict[str, dict[str, int]] = {}

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._tasks

    def find(self, candidate: Candidate) -> RecordedOutcome | None:
        """Return the recorded outcome of ``candidate``; ``None`` if there is none."""
        data = self._tasks.get(candidate.task_id)
        if data is None:
            return None
        if candidate.task_id not in self._rows:
            self._rows[candidate.task_id] = {data.candidate(at).id: at for at in range(len(data))}
        at = self._rows[candidate.task_id].get(candidate.id)
        if at is None:
            return None
        return RecordedOutcome(
            OUTCOMES[int(data.outcome[at])],
            data.batches(at),
            float(data.build_secs[at]),
            float(data.measure_secs[at]),
            data.details[at] or "failed when it was recorded",
        )


def without_kernel(task_id: str, candidate: Candidate | None, build_secs: float) -> Artifact:
    """Return an artifact without a kernel, of a build that took ``build_secs``. Only its candidate matters."""
    return Artifact(
        task_id=task_id,
        candidate=candidate,
        library=b"",
        args=(),
        original_args=(),
        outputs=(),
        packed=(),
        trace="",
        build_secs=build_secs,
    )


class RecordedBuilder:
    """Returns artifacts with empty libraries for the candidates whose recorded build succeeded; see
    :class:`actors.processes.builder.Worker`.

    ``paths``: the datasets of the devices that it builds for. Raises :class:`DatasetError`.
    """

    def __init__(self, *paths: Path) -> None:
        self._recordings = [RecordedCandidates(load(path)) for path in paths]
        #: Virtual time of all builds.
        self.elapsed_secs = 0.0

    def start(self) -> None:
        """Do nothing."""

    def build(self, request: BuildRequest) -> BuildResult:
        task, candidate = request.task, request.candidate
        build_secs = 0.0
        if candidate is not None:
            recorded = next((match for each in self._recordings if (match := each.find(candidate))), None)
            if recorded is None:
                return Measurement(Outcome.BUILD_ERROR, detail=NOT_RECORDED)
            build_secs = recorded.build_secs
            self.elapsed_secs += build_secs
            if recorded.outcome in _BUILD_OUTCOMES:
                return Measurement(recorded.outcome, build_secs=build_secs, detail=recorded.detail)
        return without_kernel(task.id, candidate, build_secs)

    def close(self) -> None:
        """Do nothing."""


class RecordedDevice:
    """A device that answers from a dataset (see :class:`devices.protocol.Device`).

    An output that was not compared when it was recorded counts as right here. Raises :class:`DatasetError` if
    ``device_class`` is not one of the dataset's.

    Args:
        dataset: the measurements.
        device_class: name of one of the dataset's device classes; ``None`` for its only one.
        decide: stopping rule.
        lost_after: number of measurements after which the device does not answer any more; ``None`` for never.
    """

    def __init__(
        self,
        dataset: Dataset,
        device_class: str | None = None,
        decide: Decide | None = None,
        lost_after: int | None = None,
    ) -> None:
        names = [fingerprint.device_class.name for fingerprint in dataset.fingerprints]
        if device_class is None and len(names) == 1:
            device_class = names[0]
        if device_class not in names:
            raise DatasetError(
                f"the dataset has no device class {device_class!r}"
                if device_class
                else "the dataset has several device classes",
                f"name one of these with device_class: {', '.join(names)}",
            )
        self._fingerprint = dataset.fingerprints[names.index(device_class)]
        self._recording = RecordedCandidates(dataset)
        self._decide = decide
        self._lost_after = lost_after
        self._measured = 0
        self._oracles: set[str] = set()
        #: Virtual time of all measurements.
        self.elapsed_secs = 0.0

    def fingerprint(self) -> Fingerprint:
        if self._lost():
            raise DeviceUnreachableError(self._fingerprint.device_class.name, "recorded loss")
        return self._fingerprint

    def ping(self) -> float:
        self.fingerprint()
        return 0.0

    def probe_secs(self) -> float:
        return self.fingerprint().probe_secs

    def power(self) -> str:
        return ""

    def vitals(self) -> dict[str, float]:
        return {}

    def add_oracle(self, artifact: Artifact) -> None:
        self._oracles.add(oracle_task(artifact))

    def run_oracle(self, task_id: str) -> str:  # noqa: ARG002
        return ""

    def use_oracle_outputs(self, task_id: str, outputs: OracleOutputs) -> None:
        """Do nothing: results count as verified without an oracle."""

    def measure(self, request: MeasureRequest) -> Measurement:
        artifact = request.artifact
        candidate = measurable(artifact, self._oracles)
        if self._lost():
            return Measurement(Outcome.DEVICE_LOST, build_secs=artifact.build_secs, detail="recorded loss")
        self._measured += 1
        recorded = self._recording.find(candidate)
        measured = (
            Measurement(Outcome.RUN_ERROR, detail=NOT_RECORDED)
            if recorded is None
            else _replayed(recorded, request, self._decide)
        )
        self.elapsed_secs += measured.measure_secs
        return replace(measured, build_secs=artifact.build_secs)

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        """Do nothing."""

    def _lost(self) -> bool:
        return self._lost_after is not None and self._measured >= self._lost_after


def _replayed(recorded: RecordedOutcome, request: MeasureRequest, decide: Decide | None) -> Measurement:
    """Return the measurement of a recorded candidate for ``request``.

    Its micro-batches are the recorded ones; if the rule asks for more, they begin again with the first. Its
    ``measure_secs`` are the recorded ones without the micro-batches that the rule saves, or with those that it adds.
    """
    if recorded.outcome is not Outcome.OK:
        return Measurement(recorded.outcome, measure_secs=recorded.measure_secs, detail=recorded.detail)

    def measure(rule: StopRule, incumbent_secs: float) -> Evaluation:
        return _evaluated(recorded.run_secs, rule, incumbent_secs, decide)

    evaluation = confirmed(measure, measure, request)
    as_recorded = replace(MEASURED_BY, min_batches=1, max_batches=len(recorded.run_secs), timeout_secs=math.inf)
    spent_secs = _evaluated(recorded.run_secs, as_recorded, math.inf, None).device_secs
    measured = Measurement(
        Outcome.OK,
        evaluation.run_secs,
        measure_secs=max(recorded.measure_secs - spent_secs, 0.0) + evaluation.device_secs,
        stopped=evaluation.stopped,
    )
    return replace(measured, verified=measured.cost_secs < request.incumbent_secs)


def _evaluated(
    recorded_secs: Sequence[float], rule: StopRule, incumbent_secs: float, decide: Decide | None
) -> Evaluation:
    """Return the evaluation of a kernel whose micro-batches took ``recorded_secs`` per run. Its first run, the warm-up,
    takes as long as a run of the first micro-batch. A longer warm-up is left out: it would change nothing."""
    elapsed_secs = 0.0
    batches = itertools.chain(recorded_secs[:1], itertools.cycle(recorded_secs))

    def run_batch(runs: int) -> float:
        nonlocal elapsed_secs
        secs = next(batches)
        elapsed_secs += runs * secs
        return secs

    return evaluate(run_batch, replace(rule, warm_up_secs=0.0), incumbent_secs, decide, lambda: elapsed_secs)
