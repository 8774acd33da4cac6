"""A device and a builder without hardware: run times from a formula or a dataset, noise from a seed, drift, slow links
and faults on request.

For tests of everything above a device, and for fleets larger than the one at hand. Time is virtual: a measurement moves
the device's clock by the time that it would have taken, and returns at once.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from devices.protocol import (
    Artifact,
    BuildRequest,
    BuildResult,
    MeasureRequest,
    OracleOutputs,
    measurable,
    oracle_task,
)
from devices.simulated.recorded import RecordedCandidates, without_kernel
from devices.timing.evaluator import Decide, Evaluation, confirmed, evaluate
from fleet_tune.base.domain import (
    Candidate,
    DeviceAbstraction,
    DeviceClass,
    Fingerprint,
    Measurement,
    Outcome,
    StopRule,
)
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError

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
# Seconds to replace the process of a session whose kernel crashed.
_RESTART_SECS = 0.5
_PROBE_SECS = 1e-3
_PROBE_RUNS = 8


class VirtualClock:
    """Time that passes only by :meth:`advance`. Devices of one fleet may share it."""

    def __init__(self, now_secs: float = 0.0) -> None:
        self.now_secs = now_secs

    def advance(self, secs: float) -> None:
        self.now_secs += secs


class RunTimes(Protocol):
    """A source of run times."""

    def run_secs(self, candidate: Candidate) -> float | None:
        """Return the seconds of one run without noise, on a device of speed 1; ``None`` for a candidate that does not
        run."""


@dataclass(frozen=True)
class Landscape:
    """Run time of a candidate as a function of its decisions: a bowl in the logarithms of the decisions.

    ``run_secs = best_secs * exp(steepness * mean_i min(16, (log2(1 + d_i) - optimum_i)^2))``, where the optimum of each
    column is drawn from the task's and the sketch's identity: the same in every process.
    """

    best_secs: float = 1e-3
    """Run time at the optimum."""
    steepness: float = 0.15
    """With the default the worst candidate takes 11 times as long as the best."""
    seed: int = 0

    def run_secs(self, candidate: Candidate) -> float:
        """Return the seconds of one run without noise."""
        if not candidate.decisions:
            return self.best_secs
        rng = generator(self.seed, candidate.task_id, candidate.sketch_id)
        optimum = rng.uniform(0.0, 6.0, len(candidate.decisions))
        distance = np.log2(1.0 + np.maximum(0, np.asarray(candidate.decisions))) - optimum
        return self.best_secs * math.exp(self.steepness * float(np.mean(np.minimum(16.0, distance**2))))


@dataclass(frozen=True)
class RecordedTimes:
    """Run times of a dataset: the median of a real device's measurements. Candidates that are not in it do not run."""

    recording: RecordedCandidates

    def run_secs(self, candidate: Candidate) -> float | None:
        recorded = self.recording.find(candidate)
        return statistics.median(recorded.run_secs) if recorded is not None and recorded.run_secs else None


@dataclass(frozen=True)
class Drift:
    """A device that slows down while it works, as one that heats up does.

    Run times are multiplied by ``1 + (factor - 1) * (1 - exp(-(t - begins_secs) / settles_secs))`` from the virtual
    time ``begins_secs`` on.
    """

    factor: float
    """Limit of the multiplier."""
    settles_secs: float = 60.0
    begins_secs: float = 0.0

    def at(self, now_secs: float) -> float:
        """Return the multiplier at this time."""
        if now_secs <= self.begins_secs:
            return 1.0
        return 1.0 + (self.factor - 1.0) * -math.expm1(-(now_secs - self.begins_secs) / self.settles_secs)


@dataclass(frozen=True)
class SpeedSteps:
    """A device of several fixed speeds, such as a shared host or one with a changing clock."""

    steps: tuple[tuple[float, float], ...]
    """Pairs of a virtual time and the factor by which run times are multiplied from then on, in the order of time; 1
    before the first."""
    period_secs: float = math.inf
    """Time after which the steps begin again."""

    def at(self, now_secs: float) -> float:
        """Return the multiplier at this time."""
        now_secs = math.fmod(now_secs, self.period_secs)
        factors = [factor for from_secs, factor in self.steps if from_secs <= now_secs]
        return factors[-1] if factors else 1.0


@dataclass(frozen=True)
class SimulatedLink:
    """The network between client and device."""

    round_trip_secs: float = 0.0
    """Seconds of a round trip."""
    bytes_per_sec: float = math.inf
    round_trips: int = 6
    """Round trips of a measurement."""
    library_bytes: int = 50_000
    """Bytes that a measurement uploads."""

    @property
    def secs(self) -> float:
        """Seconds that the link adds to one measurement."""
        return self.round_trips * self.round_trip_secs + self.library_bytes / self.bytes_per_sec


@dataclass(frozen=True)
class Faults:
    """Faults of a simulated device."""

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """Outcomes of candidates that fail, by candidate id. A real device's measurement can have the same outcomes."""
    rates: Mapping[Outcome, float] = field(default_factory=dict)
    """Probability of each failure for every other candidate, drawn from the candidate's identity."""
    lost_after: int | None = None
    """Number of measurements after which the device does not answer any more; ``None`` for never."""
    outages: tuple[tuple[float, float], ...] = ()
    """Spans of virtual time (from, to) in which it does not answer; a measurement that runs into one is lost."""
    probe_fails: tuple[tuple[float, float], ...] = ()
    """Spans in which it answers and the probe fails."""

    def out(self, from_secs: float, to_secs: float) -> bool:
        """Return true if the device is out of reach at some time of this span."""
        return any(begin <= to_secs and from_secs < end for begin, end in self.outages)

    def of(self, candidate: Candidate, seed: int) -> Outcome | None:
        """Return the failure of ``candidate``; ``None`` if it has none."""
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
        """Do nothing."""

    def build(self, request: BuildRequest) -> BuildResult:
        task, candidate = request.task, request.candidate
        fault = self._faults.of(candidate, self._seed) if candidate else None
        if fault in (Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT):
            secs = request.timeout_secs if fault is Outcome.BUILD_TIMEOUT else self._build_secs
            return Measurement(fault, build_secs=secs, detail="simulated")
        return without_kernel(task.id, candidate, self._build_secs)

    def close(self) -> None:
        """Do nothing."""


class SimulatedDevice:
    """A device whose run times are a formula or a dataset's (see :class:`devices.protocol.Device`).

    Args:
        device_class: its class.
        abstraction: its properties.
        landscape: its run times.
        decide: stopping rule.
        speed: factor by which it is faster than the landscape.
        noise: standard deviation of the logarithm of a micro-batch's time.
        faults: its faults.
        seed: seed of noise and faults.
        drift: its slow-downs.
        link: the network to it.
        clock: its virtual clock; ``None`` for a clock of its own.
    """

    def __init__(
        self,
        device_class: DeviceClass,
        *,
        abstraction: DeviceAbstraction = SIMULATED_CPU,
        landscape: RunTimes | None = None,
        decide: Decide | None = None,
        speed: float = 1.0,
        noise: float = 0.02,
        faults: Faults | None = None,
        seed: int = 0,
        drift: Drift | SpeedSteps | None = None,
        link: SimulatedLink | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self._device_class = device_class
        self._abstraction = abstraction
        self._landscape: RunTimes = landscape or Landscape()
        self._decide = decide
        self._speed = speed
        self._noise = noise
        self._faults = faults or Faults()
        self._seed = seed
        self._oracles: set[str] = set()
        self._drift: Drift | SpeedSteps = drift or Drift(1.0)
        self._link = link or SimulatedLink()
        self._clock = clock or VirtualClock()
        self._measured = 0
        self._probes_run = 0
        #: Virtual time of all measurements.
        self.elapsed_secs = 0.0

    def ping(self) -> float:
        self._reach()
        self._clock.advance(self._link.round_trip_secs)
        return self._link.round_trip_secs

    def probe_secs(self) -> float:
        self._reach()
        now = self._clock.now_secs
        if any(begin <= now < end for begin, end in self._faults.probe_fails):
            raise ProbeError(self._device_class.name, "simulated")
        self._probes_run += 1
        # The best of many runs is simulated by the noise of one micro-batch, which only slows down.
        rng = generator(self._seed, "probe", str(self._probes_run))
        slower = math.exp(self._noise * abs(float(rng.standard_normal())))
        secs = _PROBE_SECS / self._speed * self._drift.at(now) * slower
        self._clock.advance(self._link.round_trip_secs + _PROBE_RUNS * secs)
        return secs

    def fingerprint(self) -> Fingerprint:
        self._reach()
        return Fingerprint(
            device_class=self._device_class,
            abstraction=self._abstraction,
            cpu_model="simulated",
            threads=self._abstraction.cores,
            tvm_version="none",
            probe_secs=_PROBE_SECS / self._speed,
        )

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
        candidate = measurable(request.artifact, self._oracles)
        started = self._clock.now_secs
        measurement = self._measure(candidate, request)
        secs = self._clock.now_secs - started
        self.elapsed_secs += secs
        return replace(measurement, build_secs=request.artifact.build_secs, measure_secs=secs)

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:  # noqa: ARG002
        """Return 0: without caches each kernel takes as long as alone. ``None`` if the device is lost."""
        return None if self._lost() else 0.0

    def close(self) -> None:
        """Do nothing."""

    def _measure(self, candidate: Candidate, request: MeasureRequest) -> Measurement:
        if self._lost():
            self._clock.advance(_CONNECT_SECS)
            return Measurement(Outcome.DEVICE_LOST, detail="simulated loss")
        self._measured += 1
        started = self._clock.now_secs
        measurement = self._run(candidate, request)
        if self._faults.out(started, self._clock.now_secs):
            return Measurement(Outcome.DEVICE_LOST, detail="simulated outage")
        return measurement

    def _run(self, candidate: Candidate, request: MeasureRequest) -> Measurement:
        """Return the measurement of a device that answers."""
        rule, clock = request.rule, self._clock
        clock.advance(self._link.secs)
        fault = self._faults.of(candidate, self._seed)
        calm_secs = self._landscape.run_secs(candidate)
        if calm_secs is None or fault is Outcome.RUN_ERROR:
            clock.advance(_RESTART_SECS)
            return Measurement(Outcome.RUN_ERROR, detail="simulated crash" if fault else "no run time is known")
        if fault is Outcome.DEVICE_LOST:
            return Measurement(fault, detail="simulated")
        true_secs = calm_secs / self._speed
        if fault is Outcome.RUN_TIMEOUT or true_secs * self._drift.at(clock.now_secs) > rule.timeout_secs:
            clock.advance(rule.timeout_secs)
            return Measurement(Outcome.RUN_TIMEOUT, detail=f"no result within {rule.timeout_secs:g} s")
        rng = generator(self._seed, "noise", candidate.id, str(self._measured))

        def run_batch(runs: int) -> float:
            calm = true_secs * self._drift.at(clock.now_secs)
            secs = calm * math.exp(self._noise * float(rng.standard_normal()))
            clock.advance(runs * secs)
            return secs

        def measured(by: StopRule, incumbent_secs: float) -> Evaluation:
            return evaluate(run_batch, by, incumbent_secs, self._decide, lambda: clock.now_secs)

        evaluation = confirmed(measured, measured, request)
        if not statistics.median(evaluation.run_secs) < request.incumbent_secs:
            return Measurement(Outcome.OK, evaluation.run_secs, stopped=evaluation.stopped)
        clock.advance(true_secs * self._drift.at(clock.now_secs))
        if fault is Outcome.WRONG_OUTPUT:
            return Measurement(Outcome.WRONG_OUTPUT, detail="simulated")
        return Measurement(Outcome.OK, evaluation.run_secs, stopped=evaluation.stopped, verified=True)

    def _reach(self) -> None:
        if self._lost():
            self._clock.advance(_CONNECT_SECS)
            raise DeviceUnreachableError(self._device_class.name, "simulated loss")

    def _lost(self) -> bool:
        after, now = self._faults.lost_after, self._clock.now_secs
        return (after is not None and self._measured >= after) or self._faults.out(now, now)


def generator(seed: int, *names: str) -> np.random.Generator:
    """Return random numbers that depend on nothing but the arguments."""
    digest = hashlib.blake2b("|".join([str(seed), *names]).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
