"""The words of fleet-tune as immutable values: workload, task, candidate, measurement, record, device.

Units stand in the names. ``cost_secs`` is the one objective: seconds per run of the kernel, lower is better.
Nothing here imports TVM or Ray: a TVM module or trace is carried as its JSON text and is opaque.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


class Outcome(enum.StrEnum):
    """How a trial ended. ``OK`` is the only one with run times."""

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
        """Whether the search may learn from this outcome (see :data:`OUTCOME_POLICIES`)."""
        return OUTCOME_POLICIES[self].blames_candidate


@dataclass(frozen=True, slots=True)
class OutcomePolicy:
    """What an outcome teaches. ``blames_candidate``: it is the candidate's own and would be the same on any device of
    the class, so the search learns from it; otherwise it learns nothing, and may propose the candidate again.
    ``why``: in words."""

    blames_candidate: bool
    why: str


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
"""What the search may learn from, and what it may not. Everything but OK counts for it as a cost without limit.

What teaches nothing is not recorded: such an attempt is made again. So is one without an outcome: a process of ours
that ends while it builds or measures, a device in quarantine, a lease that ended. A candidate that loses two devices is
blamed, as RUN_ERROR: devices that work for all others do not fail twice by chance. One whose processes are ended from
outside again and again is left out of the run, and not blamed."""


@dataclass(frozen=True, slots=True)
class DeviceAbstraction:
    """What the analyzer (the closed-form cost) knows of a device (Pruner section 4.1), probed when the device joins.

    ``peak_flops`` in FLOP/s of all cores together, ``bandwidth_bytes`` in bytes/s of main memory, sizes in bytes.
    ``cores``: CPU threads used, or streaming multiprocessors. ``lanes``: float32 values per vector register, or the
    warp size. ``registers``: vector registers per core, or 32-bit registers per multiprocessor. ``l1_bytes``: L1
    data cache per core, or shared memory per block. ``l2_bytes``: L2 per core, or the chip's L2. ``l3_bytes``:
    shared last-level cache, 0 where there is none.

    ``tensor_cores`` of a multiprocessor, and ``tensor_flops``, the FLOP/s of all of them for 16-bit operands: what the
    maker publishes of the architecture, nothing that was measured; 0 where there are none, or the architecture is
    unknown.
    """

    kind: str  # "cpu" or "cuda"
    cores: int
    lanes: int
    registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    peak_flops: float
    bandwidth_bytes: float
    max_threads_per_block: int = 0
    tensor_cores: int = 0
    tensor_flops: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise ValueError(f"device kind must be 'cpu' or 'cuda', got {self.kind!r}")
        for name in ("cores", "lanes", "registers", "l1_bytes", "l2_bytes", "peak_flops", "bandwidth_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")

    def unscheduled_secs(self, flop: float) -> float:
        """Seconds that a program of so many FLOP may take at most which nobody has scheduled: it runs on one core,
        without vectors, and misses the caches most of the time."""
        return UNSCHEDULED_LOSS * flop * self.cores * self.lanes / self.peak_flops


UNSCHEDULED_LOSS = 30.0
"""How many times slower than one core can multiply and add without vectors. Naive loops lose a factor of ten there."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices that are interchangeable for measurement. ``target``: canonical JSON text of the TVM target."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a device said of itself when it joined; ``probe_secs`` is the run time of the probe. ``driver``: version of
    the GPU's, ``microcode``: of the processor's; empty where that is unknown."""

    device_class: DeviceClass
    abstraction: DeviceAbstraction
    cpu_model: str
    threads: int
    tvm_version: str
    probe_secs: float
    driver: str = ""
    microcode: str = ""


@dataclass(frozen=True)
class Workload:
    """One TensorIR function. ``hash``: structural hash; ``flop``: float operations per run; ``module``: JSON text of
    an IRModule whose only function is ``main`` (carried, never parsed outside ``devices``)."""

    hash: str
    name: str
    flop: float
    module: str = field(repr=False)


@dataclass(frozen=True)
class Task:
    """A workload to tune for one device class; ``weight``: how often the network calls it. ``imported``: traces with
    decisions (JSON texts) whose sketches it has beside those that the rules make; they were found elsewhere."""

    workload: Workload
    device_class: DeviceClass
    weight: int = 1
    imported: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"a task's weight must be at least 1, got {self.weight}")

    @cached_property
    def id(self) -> str:
        return f"{self.workload.hash}@{self.device_class.name}"


@dataclass(frozen=True)
class Candidate:
    """A sketch with all decisions taken.

    ``sketch_id`` is the sketch's content hash (indices may shift between versions of the sketch rules), ``decisions``
    the flat decision vector in the sketch's column order (see :mod:`fleet_tune.base.sketch`).
    """

    task_id: str
    sketch: int
    sketch_id: str
    decisions: tuple[int, ...]

    @cached_property
    def id(self) -> str:
        """Content hash: equal for the same task, sketch and decisions in every process and version."""
        text = f"{self.task_id}|{self.sketch_id}|{','.join(map(str, self.decisions))}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a candidate did against the incumbent of its task, by runs in turn (:mod:`policies.measuring.duel`).

    ``against``: the incumbent's candidate id; ``against_rank_secs``: what it was chosen by. ``ratio``: of this one's
    seconds to the incumbent's; ``error``: its standard error, as a share of it; ``runs``: of both together.
    ``faster``: beyond doubt, so that this one is the incumbent now.
    """

    against: str
    against_rank_secs: float
    ratio: float
    error: float
    runs: int
    faster: bool

    @property
    def rank_secs(self) -> float:
        """What this one is to be chosen by: before the incumbent if it is faster, and behind it if it is not."""
        return self.against_rank_secs * (self.ratio if self.faster else max(1.0, self.ratio))


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best of a task so far, as a device is told of it; none by default. ``rank_secs``: what it was chosen by."""

    candidate_id: str = ""
    cost_secs: float = math.inf
    rank_secs: float = math.inf


UNKNOWN_SPREAD = 0.05
"""Of a cost that was measured in a single micro-batch."""
HALF_WEIGHT_ERROR = 0.1
"""Relative error of a cost that counts half as much in training as one that is certain."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Outcome of a trial.

    ``run_secs``: mean seconds per run of each micro-batch, in order; empty unless the outcome is OK.
    ``stopped``: why the measurement ended: ``converged`` (coefficient of variation), ``raced`` (clearly slower than
    the incumbent), ``maximum``, ``duel``, or empty on failure. ``verified``: the output was compared with the
    unscheduled program's and agrees; it says nothing of times. ``speed``: how fast the device was meanwhile, as a
    multiple of the speed at which its seconds are counted; ``speed_error``: standard error of that, as a share of it.
    ``comparison``: how it did against the incumbent, None where they did not meet. ``detail``: the error text of a
    failure.
    """

    outcome: Outcome
    run_secs: tuple[float, ...] = ()
    build_secs: float = 0.0
    measure_secs: float = 0.0
    stopped: str = ""
    verified: bool = False
    detail: str = ""
    speed: float = 1.0
    speed_error: float = 0.0
    comparison: Comparison | None = None

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
        """Standard error of the cost, as a share of it: of the micro-batches and of the speed. NaN for a failure."""
        if not self.run_secs:
            return math.nan
        spread = self.spread if len(self.run_secs) > 1 else UNKNOWN_SPREAD
        return math.hypot(spread / math.sqrt(len(self.run_secs)), self.speed_error)

    @property
    def rank_secs(self) -> float:
        """What candidates are chosen by: how they did against an incumbent, or else the cost and its standard error;
        infinite for a failure."""
        if self.comparison is not None:
            return self.comparison.rank_secs
        return self.cost_secs * (1 + self.error) if self.run_secs else math.inf

    @property
    def weight(self) -> float:
        """What the cost counts in training, beside 1 for one that is certain, as a failure is."""
        return 1 / (1 + (self.error / HALF_WEIGHT_ERROR) ** 2) if self.run_secs else 1.0

    @property
    def spread(self) -> float:
        """How far the micro-batches lie apart: 1.4826 times their median absolute deviation, as a share of the median
        (for a normal distribution that is the standard deviation's share). NaN for fewer than two."""
        if len(self.run_secs) < 2:
            return math.nan
        middle = self.raw_secs
        return 1.4826 * _median([abs(secs - middle) for secs in self.run_secs]) / middle


def _median(values: Sequence[float]) -> float:
    """As :func:`statistics.median`, which takes several times as long; a store has millions of these. At least one."""
    if len(values) == 1:
        return values[0]
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class Record:
    """A measurement as stored. ``seq`` is given by the store (0 before), ``uid`` makes appending idempotent,
    ``trace``: JSON text of the TVM schedule trace with its decisions, ``unix_secs``: when it was measured.

    ``revision``: 0 for a trial. A higher one is no trial: it says of a candidate that was tried before what is known
    better now (it met the incumbent in the final round), and takes the place of what earlier records of the candidate
    say. What was verified once stays so, until a record says that it failed.
    """

    uid: str
    run_id: str
    candidate: Candidate
    trace: str = field(repr=False)
    measurement: Measurement
    device_id: str
    unix_secs: float
    seq: int = 0
    revision: int = 0

    @property
    def task_id(self) -> str:
        return self.candidate.task_id


@dataclass(frozen=True, slots=True)
class StopRule:
    """How a measurement goes, and when it ends (AdaTune section 4.1, and racing beyond it).

    After at least one run and ``warm_up_secs`` that are not counted, micro-batches of at least ``micro_batch_secs``
    each (of ``micro_batch_runs`` runs where that is not 0) are timed until the coefficient of variation of the running
    throughput over at least ``min_batches`` of them falls to ``max_cv``, at most ``max_batches`` times, or until the
    candidate has lost against the incumbent: its fastest of ``k`` micro-batches is slower by more than the share
    ``(race_factor - 1) / k``. ``race_factor`` is infinite to let every candidate finish.

    ``timeout_secs`` bounds the whole; with an incumbent it is ``timeout_factor`` times the incumbent's cost, but not
    less than ``min_timeout_secs`` (see :func:`policies.measuring.stopping.following`). ``flush_bytes``: memory that is
    copied before every run, to empty the caches; 0 leaves them as the run before left them."""

    micro_batch_secs: float = 0.004
    min_batches: int = 3
    max_batches: int = 10
    max_cv: float = 0.03
    race_factor: float = 1.5
    timeout_secs: float = 10.0
    timeout_factor: float = 200.0
    min_timeout_secs: float = 2.0
    warm_up_secs: float = 0.0
    flush_bytes: int = 0
    micro_batch_runs: int = 0

    def __post_init__(self) -> None:
        for name in ("micro_batch_secs", "min_batches", "timeout_secs", "timeout_factor", "min_timeout_secs"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        if self.max_batches < self.min_batches:
            raise ValueError(f"max_batches is {self.max_batches}, less than min_batches, {self.min_batches}")
        least = min(self.max_cv, self.warm_up_secs, self.flush_bytes, self.micro_batch_runs)
        if not (self.race_factor >= 1 and least >= 0):
            raise ValueError(f"race_factor must be at least 1, and nothing may be negative: {self}")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What a result must stand before it counts: a cost below ``below_secs`` is measured again by ``rule``, and the
    second result takes the place of the first, whose luck made it look good."""

    below_secs: float
    rule: StopRule


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends; None: no limit. ``time_budget_secs``: seconds of tuning, counted from when every
    task is described. ``trials``: of all tasks together,
    ``task_trials``: of each task; both count the trials of earlier runs in the same store.

    Raises ValueError for a limit that is not positive, or a time that is not finite.
    """

    time_budget_secs: float | None = None
    trials: int | None = None
    task_trials: int | None = None

    def __post_init__(self) -> None:
        budget = self.time_budget_secs
        if budget is not None and not (math.isfinite(budget) and budget > 0):
            raise ValueError(f"a time budget is positive and finite, got {budget} s")
        if any(limit is not None and limit < 1 for limit in (self.trials, self.task_trials)):
            raise ValueError(f"a limit of trials is at least 1, got {self.trials} and {self.task_trials} for each task")
