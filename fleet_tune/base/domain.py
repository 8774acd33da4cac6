"""The words of fleet-tune as immutable values: workload, task, candidate, measurement, record, device.

Names contain units. ``cost_secs`` is the one objective: seconds per run of the kernel, lower is better. Nothing here
imports TVM or Ray: a TVM module or trace is carried as its JSON text and is opaque.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from fleet_tune.base import power_text


class Outcome(enum.StrEnum):
    """End of a trial. ``OK`` is the only one with run times."""

    OK = "ok"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    RUN_ERROR = "run_error"
    RUN_TIMEOUT = "run_timeout"
    WRONG_OUTPUT = "wrong_output"
    DEVICE_LOST = "device_lost"
    KILLED = "killed"

    @property
    def blames_candidate(self) -> bool:
        """True if the search may learn from this outcome (see :data:`OUTCOME_POLICIES`)."""
        return OUTCOME_POLICIES[self].blames_candidate


@dataclass(frozen=True, slots=True)
class OutcomePolicy:
    """Rule for one outcome: may the search learn from it?"""

    blames_candidate: bool
    """True if the outcome is the candidate's own and would be the same on any device of the class: the search learns
    from it. False: the search learns nothing, and may propose the candidate again."""
    why: str
    """Reason in words."""


OUTCOME_POLICIES: Mapping[Outcome, OutcomePolicy] = {
    Outcome.OK: OutcomePolicy(True, "it ran: its cost"),
    Outcome.BUILD_ERROR: OutcomePolicy(True, "the compiler refuses this program, and always will"),
    Outcome.BUILD_TIMEOUT: OutcomePolicy(True, "compiling it takes longer than anybody wants to wait"),
    Outcome.RUN_ERROR: OutcomePolicy(True, "it crashes or cannot be loaded, or it took two devices down"),
    Outcome.RUN_TIMEOUT: OutcomePolicy(True, "it is slower than the limit, or never ends"),
    Outcome.WRONG_OUTPUT: OutcomePolicy(True, "it does not compute what it should"),
    Outcome.DEVICE_LOST: OutcomePolicy(False, "the device, the way to it or its host failed, and not the candidate"),
    Outcome.KILLED: OutcomePolicy(
        False, "its process was ended from outside: by a person, or for want of memory on its host"
    ),
}
"""Rule for each outcome: may the search learn from it? Every failure that it learns from counts as an infinite cost.

An outcome that the search may not learn from is not recorded, and the attempt is made again. An attempt without an
outcome is made again too: one of our processes ended while it built or measured, the device was in quarantine, or the
lease ended. A candidate that loses two devices is blamed, as RUN_ERROR: devices that work for all other candidates do
not fail twice by chance. A candidate whose processes are ended from outside again and again is skipped in the run, and
not blamed."""


Arithmetic = Literal["float32", "bfloat16", "int8"]
"""Type of the numbers that most operations of a program compute with: ``"bfloat16"`` for products of pairs that are
added in float32, ``"int8"`` for products of bytes that are added in 32 bits."""


@dataclass(frozen=True, slots=True)
class DeviceAbstraction:
    """Figures of a device for the analyzer, the closed-form cost (Pruner section 4.1). They are probed when the device
    joins."""

    kind: str  # "cpu" or "cuda"
    cores: int
    """CPU threads that are used, or streaming multiprocessors."""
    lanes: int
    """float32 values per vector register, or the warp size."""
    registers: int
    """Vector registers per core, or 32-bit registers per multiprocessor."""
    l1_bytes: int
    """L1 data cache per core, or shared memory per block, in bytes."""
    l2_bytes: int
    """L2 per core, or the chip's L2, in bytes."""
    l3_bytes: int
    """Shared last-level cache in bytes. 0 without one."""
    peak_flops: float
    """FLOP/s of all cores together."""
    bandwidth_bytes: float
    """Bytes/s of main memory."""
    max_threads_per_block: int = 0
    tensor_cores: int = 0
    """Tensor cores of a multiprocessor. 0 if there are none, or the architecture is unknown."""
    tensor_flops: float = 0.0
    """FLOP/s of all tensor cores for 16-bit operands. The maker publishes it for the architecture; it is not measured.
    0 if there are none, or the architecture is unknown."""
    int8_flops: float = 0.0
    """Operations/s of products of bytes, of all cores together. A product of two 32-bit numbers that hold several bytes
    each, added to a third number, counts as two operations. 0 if the device computes them in float32, or was not
    probed."""
    bfloat16_flops: float = 0.0
    """The same for products of pairs of bfloat16."""

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise ValueError(f"device kind must be 'cpu' or 'cuda', got {self.kind!r}")
        for name in ("cores", "lanes", "registers", "l1_bytes", "l2_bytes", "peak_flops", "bandwidth_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")

    def peak(self, arithmetic: Arithmetic) -> float:
        """Return the operations/s of all cores together; those of float32 if no others are known."""
        probed = {"float32": self.peak_flops, "bfloat16": self.bfloat16_flops, "int8": self.int8_flops}
        return probed[arithmetic] or self.peak_flops

    def unscheduled_secs(self, flop: float) -> float:
        """Return the most seconds that an unscheduled program of ``flop`` FLOP may take: it runs on one core, without
        vectors, and misses the caches most of the time."""
        return UNSCHEDULED_LOSS * flop * self.cores * self.lanes / self.peak_flops


UNSCHEDULED_LOSS = 30.0
"""Factor by which an unscheduled program may be slower than one core that multiplies and adds without vectors. Kernels
whose loops LLVM cannot vectorize lose a factor of ten of it."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices that are interchangeable for measurement."""

    name: str
    target: str
    """Canonical JSON text of the TVM target."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Description that a device gave of itself when it joined."""

    device_class: DeviceClass
    abstraction: DeviceAbstraction
    cpu_model: str
    threads: int
    tvm_version: str
    probe_secs: float
    """Run time of the probe in seconds."""
    driver: str = ""
    """Version of the GPU's driver. Empty if it is unknown."""
    microcode: str = ""
    """Version of the processor's microcode. Empty if it is unknown."""
    power: str = ""
    """Power mode of a board, with the known limits of its clock (:func:`devices.host.power_mode.power_mode`). Empty if
    it has none."""

    def differs_in_power(self, other: Fingerprint) -> bool:
        """Return true if both devices report their power mode and the modes differ: their times cannot be compared."""
        return power_text.differ(self.power, other.power)


@dataclass(frozen=True)
class Workload:
    """One TensorIR function."""

    hash: str
    """Structural hash."""
    name: str
    flop: float
    """Float operations per run."""
    module: str = field(repr=False)
    """JSON text of an IRModule whose only function is ``main``. Only ``devices`` parses it."""


@dataclass(frozen=True)
class FewerRows:
    """A task's kernel over fewer rows. A network with dynamic dimensions computes it with the same schedule."""

    module: str = field(repr=False)
    """Program of the kernel, as :attr:`Workload.module`."""
    work: float
    """Rows that this kernel computes for each row of the task's own kernel, in a mean weighted by extent."""


@dataclass(frozen=True)
class Task:
    """A workload to tune for one device class."""

    workload: Workload
    device_class: DeviceClass
    weight: int = 1
    """Number of times that the network calls the workload in one run."""
    imported: tuple[str, ...] = field(default=(), repr=False)
    """Traces with decisions, as JSON texts, that were found elsewhere. The task has their sketches in addition to those
    of the sketch rules."""
    fewer_rows: tuple[FewerRows, ...] = field(default=(), repr=False, compare=False)
    """Kernels over fewer rows, ascending; none for fixed shapes."""

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"a task's weight must be at least 1, got {self.weight}")

    @cached_property
    def id(self) -> str:
        return f"{self.workload.hash}@{self.device_class.name}"


@dataclass(frozen=True)
class Candidate:
    """A sketch with all decisions taken."""

    task_id: str
    sketch: int
    """Index of the sketch in the task."""
    sketch_id: str
    """Content hash of the sketch. Indices may shift between versions of the sketch rules."""
    decisions: tuple[int, ...]
    """Flat decision vector in the sketch's column order (see :mod:`fleet_tune.base.sketch`)."""
    predicted_secs: float | None = field(default=None, compare=False)
    """Run time that the search predicted when it proposed the candidate. None: it predicted none. Comparisons of
    candidates ignore it."""

    @cached_property
    def id(self) -> str:
        """Content hash: equal for the same task, sketch and decisions in every process and version."""
        text = f"{self.task_id}|{self.sketch_id}|{','.join(map(str, self.decisions))}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a duel of a candidate with the incumbent of its task, by runs in turn
    (:mod:`policies.measuring.duel`)."""

    against: str
    """Candidate id of the incumbent."""
    against_rank_secs: float
    """Rank of the incumbent, in seconds."""
    ratio: float
    """Seconds of this candidate divided by those of the incumbent."""
    error: float
    """Standard error of the ratio, as a share of it."""
    runs: int
    """Runs of both together."""
    faster: bool
    """True if this candidate is faster beyond doubt. It is the incumbent then."""

    @property
    def rank_secs(self) -> float:
        """Seconds by which this candidate is ranked: ahead of the incumbent only if it is faster."""
        return self.against_rank_secs * (self.ratio if self.faster else max(1.0, self.ratio))


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best candidate of a task so far, as devices get it. The defaults stand for no incumbent."""

    candidate_id: str = ""
    cost_secs: float = math.inf
    rank_secs: float = math.inf
    """Seconds by which it was chosen."""


UNKNOWN_SPREAD = 0.05
"""Spread that is assumed for a cost that was measured in a single micro-batch."""
HALF_WEIGHT_ERROR = 0.1
"""Relative error of a cost that counts half as much in training as one that is certain."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Outcome of a trial."""

    outcome: Outcome
    run_secs: tuple[float, ...] = ()
    """Mean seconds per run of each micro-batch, in order. Empty unless the outcome is OK."""
    build_secs: float = 0.0
    measure_secs: float = 0.0
    stopped: str = ""
    """Reason why the measurement ended: ``converged`` (coefficient of variation), ``raced`` (clearly slower than the
    incumbent), ``maximum`` or ``duel``. Empty for a failure."""
    verified: bool = False
    """True if the output was compared with that of the unscheduled program and agrees. Says nothing about times."""
    detail: str = ""
    """Error text of a failure."""
    speed: float = 1.0
    """Speed of the device during the measurement, as a multiple of the speed at which its seconds are counted."""
    speed_error: float = 0.0
    """Standard error of the speed, as a share of it."""
    comparison: Comparison | None = None
    """Result against the incumbent. None if there was no duel."""
    throttled: float = 0.0
    """Share of the periods in which the device's process used up the CPU quota of its control group and stood still.
    The quota then determines its times."""
    slowed_by: str = ""
    """Names of the causes that lowered the hardware's clock during the measurement, separated by commas: heat
    (``gpu-throttle-alert``), over-current events (``oc3``). Empty if there were none, or the system does not report
    them."""

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != bool(self.run_secs):
            raise ValueError(f"run_secs belong to the outcome 'ok' and to it alone, got {self.outcome} {self.run_secs}")
        for secs in self.run_secs:
            if not 0 < secs < math.inf:
                raise ValueError(f"run_secs must be positive and finite, got {self.run_secs}")
        if not 0 < self.speed < math.inf:
            raise ValueError(f"a speed must be positive and finite, got {self.speed}")
        if not 0 <= self.speed_error < math.inf:
            raise ValueError(f"the error of a speed must be finite and not negative, got {self.speed_error}")
        if not 0 <= self.throttled <= 1:
            raise ValueError(f"the share of throttled periods must be from 0 to 1, got {self.throttled}")

    @property
    def raw_secs(self) -> float:
        """Median seconds per run as they were measured; infinite for a failure."""
        return _median(self.run_secs) if self.run_secs else math.inf

    @property
    def cost_secs(self) -> float:
        """Median seconds per run of a device of speed 1; infinite for a failure."""
        return self.raw_secs * self.speed

    @property
    def error(self) -> float:
        """Standard error of the cost, as a share of it: of the micro-batches, of the speed, and of a quota's pauses.
        NaN for a failure."""
        if not self.run_secs:
            return math.nan
        spread = self.spread if len(self.run_secs) > 1 else UNKNOWN_SPREAD
        return math.hypot(spread / math.sqrt(len(self.run_secs)), self.speed_error, self.throttled)

    @property
    def rank_secs(self) -> float:
        """Seconds by which candidates are ranked: the result against an incumbent, else the cost with its standard
        error. Infinite for a failure."""
        if self.comparison is not None:
            return self.comparison.rank_secs
        return self.cost_secs * (1 + self.error) if self.run_secs else math.inf

    @property
    def weight(self) -> float:
        """Weight of the cost in training. 1 for a certain cost, and for a failure."""
        return 1 / (1 + (self.error / HALF_WEIGHT_ERROR) ** 2) if self.run_secs else 1.0

    @property
    def spread(self) -> float:
        """Spread of the micro-batches: 1.4826 times their median absolute deviation, as a share of the median (for a
        normal distribution, the share of the standard deviation). NaN for fewer than two."""
        if len(self.run_secs) < 2:
            return math.nan
        middle = self.raw_secs
        return 1.4826 * _median([abs(secs - middle) for secs in self.run_secs]) / middle


def _median(values: Sequence[float]) -> float:
    """Return the median of at least one value. :func:`statistics.median` takes several times as long, and a store has
    millions of measurements."""
    if len(values) == 1:
        return values[0]
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class Record:
    """A measurement as stored."""

    uid: str
    """Unique id, which makes appending idempotent."""
    run_id: str
    candidate: Candidate
    trace: str = field(repr=False)
    """JSON text of the TVM schedule trace with its decisions."""
    measurement: Measurement
    device_id: str
    unix_secs: float
    """Time of the measurement."""
    seq: int = 0
    """Number that the store assigns. 0 for a record that is not stored yet."""
    revision: int = 0
    """0 for a trial. A record of a higher revision is no trial. It has newer knowledge about a candidate that was tried
    before (it met the incumbent in the final round, for example), and replaces the candidate's earlier records. A
    verified candidate stays verified until a record says that it failed."""

    @property
    def task_id(self) -> str:
        return self.candidate.task_id


@dataclass(frozen=True, slots=True)
class StopRule:
    """Rule for the course and the end of a measurement (AdaTune section 4.1, and racing beyond it).

    A warm-up that is not counted precedes the micro-batches. The measurement ends when the running throughput has
    converged, or when the candidate has lost against the incumbent: its fastest of ``k`` micro-batches is slower by
    more than the share ``(race_factor - 1) / k``.
    """

    micro_batch_secs: float = 0.004
    """Least seconds of a micro-batch."""
    min_batches: int = 3
    """Least number of micro-batches."""
    max_batches: int = 10
    """Largest number of micro-batches."""
    max_cv: float = 0.03
    """Coefficient of variation of the running throughput at which the measurement has converged."""
    race_factor: float = 1.5
    """Bound of the race against the incumbent. Infinite: every candidate finishes."""
    timeout_secs: float = 10.0
    """Limit of the whole measurement. With an incumbent it is ``timeout_factor`` times the incumbent's cost, but at
    least ``min_timeout_secs`` (see :func:`policies.measuring.adaptive_stopping.following`)."""
    timeout_factor: float = 200.0
    min_timeout_secs: float = 2.0
    warm_up_secs: float = 0.0
    """Seconds of runs before the first micro-batch; at least one run."""
    flush_bytes: int = 0
    """Memory that is copied before every run to empty the caches. 0 leaves the caches as they are."""
    micro_batch_runs: int = 0
    """Runs of a micro-batch. 0: ``micro_batch_secs`` decides."""
    weights_bytes: int = 0
    """Bytes of all weights of the network that the kernel is for. On the CPUs of our device servers, the kernel then
    finds its weights where they would be in the network: in main memory if all weights are more than the caches hold.
    0: the kernel finds its weights where its last run left them."""

    def __post_init__(self) -> None:
        for name in ("micro_batch_secs", "min_batches", "timeout_secs", "timeout_factor", "min_timeout_secs"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        if self.max_batches < self.min_batches:
            raise ValueError(f"max_batches is {self.max_batches}, less than min_batches, {self.min_batches}")
        least = min(self.max_cv, self.warm_up_secs, self.flush_bytes, self.micro_batch_runs, self.weights_bytes)
        if not (self.race_factor >= 1 and least >= 0):
            raise ValueError(f"race_factor must be at least 1, and nothing may be negative: {self}")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Condition under which a result is measured again before it counts. The second result replaces the first, which
    may have looked good by luck."""

    below_secs: float
    """Costs below this are measured again."""
    rule: StopRule
    """Rule of the second measurement."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Conditions under which a run ends. None: no limit.

    Trials of earlier runs in the same store count. Raises ValueError for a limit that is not positive, or a time that
    is not finite.
    """

    time_budget_secs: float | None = None
    """Seconds of tuning, counted from the moment when every task is described."""
    trials: int | None = None
    """Trials of all tasks together."""
    task_trials: int | None = None
    """Trials of each task."""

    def __post_init__(self) -> None:
        budget = self.time_budget_secs
        if budget is not None and not (math.isfinite(budget) and budget > 0):
            raise ValueError(f"a time budget is positive and finite, got {budget} s")
        if any(limit is not None and limit < 1 for limit in (self.trials, self.task_trials)):
            raise ValueError(f"a limit of trials is at least 1, got {self.trials} and {self.task_trials} for each task")
