"""A device and a builder without hardware: run times from a formula, noise from a seed, faults on request.

For tests of everything above a device, and for fleets larger than the one at hand. Time is virtual: a measurement
says how long it would have taken and returns at once.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from devices.artifact import Artifact, BuildFailure, BuildRequest, BuildResult, MeasureRequest
from devices.evaluator import Decide, evaluate
from fleet_tune.domain import (
    Candidate,
    DeviceAbstraction,
    DeviceClass,
    Fingerprint,
    Measurement,
    Outcome,
)
from fleet_tune.errors import DeviceUnreachableError

SIMULATED_CPU = DeviceAbstraction(
    kind="cpu",
    cores=8,
    lanes=16,
    registers=32,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=32 << 20,
    peak_flops=1e12,
    bandwidth_bytes=1e11,
)
_CONNECT_SECS = 1.0


@dataclass(frozen=True)
class Landscape:
    """Run time of a candidate as a function of its decisions: a bowl in the logarithms of the decisions.

    ``run_secs = best_secs * exp(steepness * mean_i min(16, (log2(1 + d_i) - optimum_i)^2))``, where the optimum of each
    column is drawn from the task's and the sketch's identity: the same in every process. ``best_secs``: run time at
    the optimum; with the default steepness the worst is 11 times that.
    """

    best_secs: float = 1e-3
    steepness: float = 0.15
    seed: int = 0

    def run_secs(self, candidate: Candidate) -> float:
        """Seconds of one run without noise."""
        if not candidate.decisions:
            return self.best_secs
        rng = generator(self.seed, candidate.task_id, candidate.sketch_id)
        optimum = rng.uniform(0.0, 6.0, len(candidate.decisions))
        distance = np.log2(1.0 + np.maximum(0, np.asarray(candidate.decisions))) - optimum
        return self.best_secs * math.exp(self.steepness * float(np.mean(np.minimum(16.0, distance**2))))


@dataclass(frozen=True)
class Faults:
    """What goes wrong. ``outcomes``: failures of named candidates by their id (each also ends a real device's
    measurement that way). ``rates``: probability of each failure for every other candidate, drawn from the candidate's
    identity. ``lost_after``: number of measurements after which the device answers no more, None for never."""

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    rates: Mapping[Outcome, float] = field(default_factory=dict)
    lost_after: int | None = None

    def of(self, candidate: Candidate, seed: int) -> Outcome | None:
        """The failure of ``candidate``, None for none."""
        if candidate.id in self.outcomes:
            return self.outcomes[candidate.id]
        draw = float(generator(seed, "fault", candidate.id).random())
        for outcome, rate in self.rates.items():
            draw -= rate
            if draw < 0:
                return outcome
        return None


class SimulatedBuilder:
    """Builds artifacts with empty libraries, for simulated devices. ``faults`` may name BUILD_ERROR, BUILD_TIMEOUT."""

    def __init__(self, build_secs: float = 0.5, faults: Faults | None = None, seed: int = 0) -> None:
        self._build_secs = build_secs
        self._faults = faults or Faults()
        self._seed = seed

    def start(self) -> None:
        """Nothing to start."""

    def build(self, request: BuildRequest) -> BuildResult:
        task, candidate = request.task, request.candidate
        fault = self._faults.of(candidate, self._seed) if candidate else None
        if fault in (Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT):
            secs = request.timeout_secs if fault is Outcome.BUILD_TIMEOUT else self._build_secs
            measurement = Measurement(fault, build_secs=secs, detail="simulated")
            return BuildFailure(task.id, candidate, "", measurement)
        return Artifact(
            task_id=task.id,
            candidate=candidate,
            library=b"",
            args=(),
            original_args=(),
            outputs=(),
            packed=(),
            trace="",
            build_secs=self._build_secs,
        )

    def close(self) -> None:
        """Nothing to close."""


class SimulatedDevice:
    """A device whose run times are a formula (see :class:`devices.device.Device`).

    ``speed``: how many times faster than the landscape it runs. ``noise``: standard deviation of the logarithm of a
    micro-batch's time. ``elapsed_secs`` is the virtual time that all measurements took.
    """

    def __init__(
        self,
        device_class: DeviceClass,
        abstraction: DeviceAbstraction = SIMULATED_CPU,
        landscape: Landscape | None = None,
        decide: Decide | None = None,
        speed: float = 1.0,
        noise: float = 0.02,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        self._device_class = device_class
        self._abstraction = abstraction
        self._landscape = landscape or Landscape()
        self._decide = decide
        self._speed = speed
        self._noise = noise
        self._faults = faults or Faults()
        self._seed = seed
        self._references: set[str] = set()
        self._measured = 0
        self.elapsed_secs = 0.0

    def fingerprint(self) -> Fingerprint:
        if self._lost():
            raise DeviceUnreachableError(self._device_class.name, "simulated loss")
        return Fingerprint(
            device_class=self._device_class,
            abstraction=self._abstraction,
            cpu_model="simulated",
            threads=self._abstraction.cores,
            tvm_version="none",
            reference_secs=1e-3 / self._speed,
        )

    def add_reference(self, artifact: Artifact) -> None:
        if artifact.candidate is not None:
            raise ValueError("a reference is the unscheduled program: its artifact has no candidate")
        self._references.add(artifact.task_id)

    def measure(self, request: MeasureRequest) -> Measurement:
        artifact = request.artifact
        candidate = artifact.candidate
        if candidate is None:
            raise ValueError("the artifact to measure has no candidate")
        if artifact.task_id not in self._references:
            raise ValueError(f"the reference of task {artifact.task_id} was not added")
        started = self.elapsed_secs
        measurement = self._measure(candidate, request)
        return replace(measurement, build_secs=artifact.build_secs, measure_secs=self.elapsed_secs - started)

    def close(self) -> None:
        """Nothing to let go of."""

    def _measure(self, candidate: Candidate, request: MeasureRequest) -> Measurement:
        rule = request.rule
        if self._lost():
            self.elapsed_secs += _CONNECT_SECS
            return Measurement(Outcome.DEVICE_LOST, detail="simulated loss")
        self._measured += 1
        fault = self._faults.of(candidate, self._seed)
        true_secs = self._landscape.run_secs(candidate) / self._speed
        if fault is Outcome.RUN_TIMEOUT or true_secs > rule.timeout_secs:
            self.elapsed_secs += rule.timeout_secs
            return Measurement(Outcome.RUN_TIMEOUT, detail=f"no result within {rule.timeout_secs:g} s")
        if fault in (Outcome.RUN_ERROR, Outcome.DEVICE_LOST):
            return Measurement(fault, detail="simulated")
        rng = generator(self._seed, "noise", candidate.id, str(self._measured))

        def run_batch(runs: int) -> float:
            secs = true_secs * math.exp(self._noise * float(rng.standard_normal()))
            self.elapsed_secs += runs * secs
            return secs

        evaluation = evaluate(run_batch, rule, request.incumbent_secs, self._decide, lambda: self.elapsed_secs)
        if not statistics.median(evaluation.run_secs) < request.incumbent_secs:
            return Measurement(Outcome.OK, evaluation.run_secs, stopped=evaluation.stopped)
        self.elapsed_secs += true_secs
        if fault is Outcome.WRONG_OUTPUT:
            return Measurement(Outcome.WRONG_OUTPUT, detail="simulated")
        return Measurement(Outcome.OK, evaluation.run_secs, stopped=evaluation.stopped, verified=True)

    def _lost(self) -> bool:
        after = self._faults.lost_after
        return after is not None and self._measured >= after


def generator(seed: int, *names: str) -> np.random.Generator:
    """Random numbers that depend on nothing but their arguments."""
    digest = hashlib.blake2b("|".join([str(seed), *names]).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
