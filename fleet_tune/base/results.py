"""Snapshots of a running session and the result of a finished one: what views, metrics and reports show."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fleet_tune.base.latency_estimate import estimated_secs
from fleet_tune.base.stages import StageProgress


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """State of one task."""

    task_id: str
    """The task's id: the workload's hash and the device class."""
    name: str
    device_class: str
    weight: int
    """Number of times that the network calls the kernel in one run."""
    flop: float
    """Float operations of one call."""
    sketches: int
    """Number of sketches that the task has."""
    trials: int
    """Trials of the task, earlier runs included."""
    best_secs: float
    """Seconds of the incumbent as every view shows them: its rank in seconds, at one speed of its device. They only
    decrease, unless a candidate is found wrong. Infinite while there is no incumbent, or that speed is not known."""
    finished: bool = False
    best_rule: str = ""
    """Rule that made the incumbent's sketch."""
    finish_reason: str = ""
    """Reason why a finished task gets no more trials. Empty while the task is tuned."""
    described: bool = True
    """True if the sketches of the task are known. Without them it is not tuned."""

    @property
    def gflops(self) -> float:
        """Throughput of the incumbent in GFLOP/s, 0 while there is none."""
        return self.flop / self.best_secs / 1e9 if math.isfinite(self.best_secs) else 0.0


class DeviceTime(enum.StrEnum):
    """Ways in which a working device spends its time: it measures, or it waits for something."""

    MEASURE = "measure"
    SEARCH = "search"  # for candidates
    BUILD = "build"  # for artifacts
    WINDOW = "window"  # for its quiet window: for processes that search and build on its host
    TURN = "turn"  # for other runs that use the device
    COMMIT = "commit"  # until records are durable
    TASKS = "tasks"  # for nothing: everything that can be tuned is under way or done


BUSY_SHARE = 0.9
"""A class whose devices measure for this share of their time is limited by them."""


def bound_by(shares: Mapping[str, float]) -> str:
    """Return the main use of a class's device time. :attr:`DeviceTime.MEASURE` if the devices hardly wait, else their
    longest wait. Empty while nothing is known."""
    if not shares:
        return ""
    if shares.get(DeviceTime.MEASURE, 0.0) >= BUSY_SHARE:
        return DeviceTime.MEASURE.value
    waits = {what: share for what, share in shares.items() if what != DeviceTime.MEASURE.value}
    return max(waits, key=lambda what: waits[what])


class ProcessRole(enum.StrEnum):
    """Roles of the processes of a run that are started again when they are lost."""

    SCHEDULER = "scheduler"
    RECORDER = "recorder"
    LEARNER = "learner"
    SEARCHER = "searcher"
    BUILDER = "builder"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class NotTried:
    """Trials that were requested of a run and not made."""

    trials: int
    reason: str
    """Reason in one line."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning of a run. Repeated warnings within a short time are one notice."""

    number: int
    """Number of the notice in this run."""
    at_secs: float
    """Seconds after the run's begin, of the last repetition."""
    text: str
    times: int = 1
    """Number of repetitions."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One snapshot of a session. Limits are None if the user set none."""

    phase: str
    elapsed_secs: float
    time_budget_secs: float | None
    """Limit of the tuning time, counted from the run's begin. It grows while tasks are still being described."""
    trial_limit: int | None
    trials: int
    """Trials in this store, earlier runs included: the sum of ``outcomes``."""
    new_trials: int
    """Trials of this run."""
    outcomes: Mapping[str, int]
    """Trials in this store by outcome, earlier runs included."""
    records_per_sec: float
    queues: Mapping[str, int]
    """Number of waiting items, by stage."""
    devices: Mapping[str, str]
    """State of each device, by id."""
    tasks: tuple[TaskProgress, ...]
    device_changes: int = 0
    """Number of changes of devices that this run has stored, except leases."""
    vitals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Latest hardware values by device id: ``temperature_celsius`` and ``clock_hertz`` if they are known;
    ``shown_speed``, the speed at which seconds are shown, relative to the store's; ``speed``, as a multiple of that
    speed."""
    notices: tuple[Notice, ...] = ()
    """The last warnings of the run, oldest first."""
    device_time: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Recent shares of the devices' time by device class and use (:class:`DeviceTime`)."""
    device_time_whole: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The same shares since the tuning began."""
    doing: str = ""
    """Current activity in a phase that has no trials."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Number of times that processes of each role (:class:`ProcessRole`) were started again; roles without a restart
    are absent."""
    not_tried: tuple[NotTried, ...] = ()
    """Trials that were asked for and not made, by reason. Empty while the run tunes."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Processes of the run that are gone or give no sign of life, each with the second of the run at which that
    began."""
    behind: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """By device id, the run whose turn it is while this run waits, and the second of this run at which the wait
    began."""
    stages: Mapping[str, StageProgress] = field(default_factory=dict)
    """State of each stage (:class:`fleet_tune.base.stages.Stage`). Empty before the tuning."""
    done_secs: float | None = None
    """Second of the run at which the command is expected to end. None without a time budget, and until it is known."""
    call_secs: Mapping[str, float] = field(default_factory=dict)
    """Seconds by which a call takes longer in the network than a kernel alone, by device class. Classes for which this
    is not known are absent."""
    loop_lag_secs: float = 0.0
    """Longest recent delay of the scheduler's event loop."""
    model_unix_secs: float | None = None
    """Time at which a cost model was last trained. None before the first time, and if the search learns nothing."""

    def later(self, secs: float) -> Progress:
        """Return the snapshot with all times counted from a moment ``secs`` seconds earlier."""
        budget_secs, done_secs = self.time_budget_secs, self.done_secs
        return replace(
            self,
            elapsed_secs=self.elapsed_secs + secs,
            time_budget_secs=None if budget_secs is None else budget_secs + secs,
            done_secs=None if done_secs is None else done_secs + secs,
            notices=tuple(replace(each, at_secs=each.at_secs + secs) for each in self.notices),
            silent={name: since + secs for name, since in self.silent.items()},
            behind={name: (title, since + secs) for name, (title, since) in self.behind.items()},
        )

    @property
    def bounds(self) -> dict[str, str]:
        """The limit of each device class now; see :func:`bound_by`."""
        return {device_class: bound_by(shares) for device_class, shares in self.device_time.items()}

    @property
    def network_secs(self) -> dict[str, float]:
        """Estimated network latency per device class; see :func:`estimated_secs`."""
        classes: dict[str, list[tuple[float, float, float]]] = {}
        for task in self.tasks:
            classes.setdefault(task.device_class, []).append((task.weight, task.flop, task.best_secs))
        return {name: estimated_secs(tasks, self.call_secs.get(name, 0.0)) for name, tasks in classes.items()}


@dataclass(frozen=True, slots=True)
class Transferred:
    """Knowledge that a run has from its source before its first trial."""

    source: str
    """Path that the user named, or ``pretrained`` for the cost model that comes with fleet-tune."""
    candidates: int
    """Number of measured candidates in the source. 0 for a cost model."""
    left_out: int
    """Number of records that fit none of the current sketches."""
    own_tasks: int
    """Number of tasks that start from a cost model of their own workload's records."""
    shared_tasks: int
    """Number of tasks that start from one cost model of all workloads. The others start from nothing, or from the
    store's records of similar tasks (:attr:`FromStore.taught`)."""


@dataclass(frozen=True, slots=True)
class FromStore:
    """Results that a run takes from the store that runs share, before its first trial."""

    path: str
    """Path of the store."""
    records: int
    """Number of records that were taken, one for each candidate."""
    known: int
    """Number of tasks for which the store had records."""
    settled: int
    """Number of known tasks that need no trial, because as much effort was spent on them before."""
    confirmed: int = 0
    """Number of tasks on which as much effort was spent with other versions: the best few candidates are tried once
    more."""
    seeded: int = 0
    """Number of other tasks whose search begins with results of other versions or of similar tasks."""
    shipped: int = 0
    """Number of tasks unknown to the store that begin with records that come with fleet-tune."""
    shipped_confirmed: int = 0
    """Number of shipped tasks that were measured on the same kind of processor with as much effort: the best few
    candidates are tried once more."""
    taught: int = 0
    """Number of tasks whose cost model starts from the store's records of similar tasks."""
    learned: int = 0
    """Number of candidates in the records of similar tasks."""


@dataclass(frozen=True, slots=True)
class SkippedPart:
    """A part that a run skips."""

    what: Literal["task", "sketch", "description", "rewrite", "product", "check", "extent", "output", "record"]
    """The kind of part. ``task``: it has no sketch and its kernel stays untuned. ``sketch``: the task has other
    sketches. ``description``: the sketch is searched by its decisions alone. ``rewrite``: a rewrite of the whole
    network, which is right without it. ``product``: a product of a quantised network that is computed in floats, or one
    that stays in float32 with the precision ``auto``. ``check``: the check of the untuned network. ``extent``: an
    extent of dynamic dimensions that the framework refuses, so that the network is not compared at it. ``output``: an
    output that tells nothing in that check. ``record``: a stored record that cannot be read."""
    task: str
    """Name of the task, or of the product. Empty for the whole network."""
    device_class: str
    rule: str
    """Rule of the sketch. Empty for a part that is not a sketch."""
    reason: str
    """Reason in one line."""


@dataclass(frozen=True, slots=True)
class OutputErrors:
    """Differences of a network's outputs from those of its framework, on the same inputs."""

    absolute: float
    """Largest absolute difference."""
    relative: float
    """Largest difference, divided by the largest absolute value of the output."""
    mean: float
    """Mean absolute difference, divided by the largest absolute value of the output. The largest of all outputs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Output of ``--dry-run``: the tasks, without trials, and the plan for them."""

    network: str
    method: str
    devices: Mapping[str, str]
    tasks: tuple[TaskProgress, ...]
    trial_limit: int | None
    time_budget_secs: float | None
    transferred: Transferred | None = None
    """Knowledge from which the search would start. None: it starts from nothing."""
    left_out: tuple[SkippedPart, ...] = ()
    """Parts that cannot be tuned, or not as well as the rest."""
    inputs: str = ""
    """Origin of the inputs on which the network is compared and timed."""
    store: FromStore | None = None
    """Results that would be taken from the store that runs share. None without a store."""
    precision: str | None = None
    """Precision that the network would be converted to, with the options that belong to it. None: it is not
    converted."""
    errors: Mapping[str, OutputErrors] = field(default_factory=dict)
    """Errors of the untuned network, by device class. Empty without ``precision``."""


class FallbackKernel(enum.StrEnum):
    """Kernel of a task in the compiled network, instead of the best of its records."""

    RECORD = "record"  # the next best
    FIRST_CHOICE = "first choice"  # the analyzer's, measured when the tuning was over
    UNSCHEDULED = "unscheduled"  # the kernel without a schedule


@dataclass(frozen=True, slots=True)
class Fallback:
    """A task whose kernel in the compiled network is not the best of its records, or that had no record."""

    task: str
    reason: str
    """Reason in one line."""
    used: FallbackKernel


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Time of a task's kernel in a compiled network. Seconds are for one call."""

    task_id: str
    task: str
    calls: int
    """Number of calls in one run."""
    alone_secs: float | None
    """Seconds of the kernel's record, in the unit of :attr:`TaskProgress.best_secs`. None without a record."""
    secs: float
    """Seconds of the kernel in its place in the network."""
    clock_secs: float = 0.0
    """Seconds of each call that the clock itself took. ``secs`` does not include them."""

    @property
    def is_clear(self) -> bool:
        """True if the clock's own time is no larger than the kernel's. The kernel's time is then known to a fifth or
        so."""
        return self.secs >= self.clock_secs


@dataclass(frozen=True, slots=True)
class InNetwork:
    """Distribution of the latency of a compiled network over its kernels."""

    secs: float
    """Latency of the network. The kernels were timed beside whole runs at another moment; their times are scaled to
    this latency by their share of those runs."""
    kernels: tuple[KernelTime, ...]
    others_secs: float
    """Seconds of the kernels that belong to no task."""

    @property
    def alone_secs(self) -> float | None:
        """Seconds of all tasks' kernels in a run, if each took as long as it takes alone. None if the time of one is
        not known."""
        known = [each.calls * each.alone_secs for each in self.kernels if each.alone_secs is not None]
        return sum(known) if len(known) == len(self.kernels) else None

    @property
    def kernels_secs(self) -> float:
        """Seconds of all kernels in a run."""
        return self.others_secs + sum(each.calls * each.secs for each in self.kernels)

    @property
    def left_over_secs(self) -> float:
        """Seconds that are in no kernel: calls and allocation."""
        return max(0.0, self.secs - self.kernels_secs)

    @property
    def sums(self) -> dict[str, float | None]:
        """The sums ``alone_secs``, ``kernels_secs`` and ``left_over_secs`` by name."""
        sums = {"kernels_secs": self.kernels_secs, "left_over_secs": self.left_over_secs}
        return {"alone_secs": self.alone_secs, **sums}


@dataclass(frozen=True, slots=True)
class ChosenInNetwork:
    """A task whose kernel is not the fastest one alone, because another kernel is faster in its place in the
    network."""

    task_id: str
    candidate_id: str
    """Id of the chosen candidate."""
    compared: tuple[str, ...]
    """Ids of all candidates that were timed in the network. The fastest one alone is the first."""
    ratio: float
    """Seconds of the chosen candidate divided by those of the fastest one alone, in the network: the geometric mean of
    all rounds."""
    error: float
    """Standard error of the ratio, as a share of it."""
    rounds: int
    """Number of rounds."""


BUSY_CORES = 0.25
"""If other processes use at least this many of the cores of a network, its times do not count: its threads wait for
each other, so that one disturbed thread delays all."""


SLOW = 1.15
"""A network that takes this many times as long as estimated was disturbed by something that no process list shows, such
as other guests on the host of a virtual machine."""


THROTTLED_SHARE = 0.05
"""Share of the periods of a CPU quota from which a timed network counts as throttled. A smaller share is lost in other
noise."""


def is_busy(others_cores: float | None) -> bool:
    """Return true if other processes take :data:`BUSY_CORES` or more. False if it is not known."""
    return others_cores is not None and others_cores >= BUSY_CORES


def slowness(secs: float | None, estimate_secs: float | None) -> float:
    """Return how many times as long as estimated a network took; 0 if either is not known."""
    return secs / estimate_secs if secs and estimate_secs else 0.0


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """The compiled network of one device class, measured on its device.

    Latencies are medians in seconds. All of them are None if the network could not be run.
    """

    device_class: str
    folder: Path
    tuned_secs: float | None
    untuned_secs: float | None
    framework_secs: float | None
    """Latency in the network's own framework (:attr:`framework`). None if the network was not run on the tuning
    machine."""
    max_abs_error: float | None
    """Largest absolute difference between the outputs of the published network and of the framework, on the example
    inputs."""
    max_rel_error: float | None
    """The same difference, divided by the largest absolute value of the framework's output."""
    mean_rel_error: float | None = None
    """Mean absolute difference, divided by the same value."""
    framework: str = "the framework"
    """Name of the framework that the network came from."""
    precision: str | None = None
    """Precision that the network was converted to. None: it was not converted."""
    converted: Mapping[str, int] = field(default_factory=dict)
    """Number of products that the precision ``auto`` has converted, by their new precision."""
    checked_on: str = ""
    """Place where the outputs were compared before the network was published: ``this machine`` or a device. Empty if
    they were not compared."""
    unchecked: str = ""
    """Reason why the outputs were not compared."""
    special: str = ""
    """Difference of the network from its framework on inputs with NaN, infinities, signed zeros and denormal numbers.
    Empty if there is none, or it was not compared on them."""
    published: Literal["tuned", "untuned", "nothing"] = "tuned"
    """The network that was published. ``untuned``: it is faster, or ``problem`` says what is wrong with the tuned one.
    ``nothing``: ``problem`` says why."""
    problem: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    """Tasks that did not get their best kernel."""
    chosen_in_network: tuple[ChosenInNetwork, ...] = ()
    """Tasks that got the kernel that is best in the network, and not the one that is best alone."""
    libraries: tuple[str, ...] = ()
    """Libraries whose kernels the network calls, each with its package and licence."""
    in_network: InNetwork | None = None
    """Distribution of the published network's time. None if its kernels were not timed."""
    untuned_earlier: bool = False
    """True if ``untuned_secs`` was measured before, by an earlier run or when the network was compared with its
    framework. It was not measured again, because the tuned network takes far less."""
    others_cores: float | None = None
    """Average number of the network's processor cores that other processes took while it was timed. None if this is not
    known, as on a device."""

    throttled: float = 0.0
    """Share of periods in which the network's process used up its CPU quota and stood still while it was timed. 0 for a
    device: its records have this share."""
    estimate_secs: float | None = None
    """Latency of the tuned network as estimated from its kernels. None if it is not known."""

    def with_errors(self, errors: OutputErrors | None) -> NetworkResult:
        """Return the result with the errors of the published network; ``errors`` is None if it was not compared."""
        found = (None, None, None) if errors is None else (errors.absolute, errors.relative, errors.mean)
        return replace(self, max_abs_error=found[0], max_rel_error=found[1], mean_rel_error=found[2])

    @property
    def is_throttled(self) -> bool:
        """True if a CPU quota stopped the network so often that the quota determines its times."""
        return self.throttled >= THROTTLED_SHARE

    @property
    def on_busy_host(self) -> bool:
        """True if other processes worked so much while the network was timed that its times do not count."""
        return is_busy(self.others_cores)

    @property
    def slowness(self) -> float:
        """Latency of the published network divided by its estimate, if it is the tuned one; 0 if that is not known.
        From :data:`SLOW` on, the host counts as disturbed."""
        return slowness(self.tuned_secs, self.estimate_secs) if self.published == "tuned" else 0.0

    @property
    def secs(self) -> float | None:
        """Latency of the network that was published."""
        return {"tuned": self.tuned_secs, "untuned": self.untuned_secs, "nothing": None}[self.published]


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of collecting a dataset. The counts and ``interrupted`` are those of :class:`TuneResult`."""

    network: str
    out: Path
    dataset: Path | None
    """The file. None if nothing was measured."""
    outcomes: Mapping[str, int]
    new_trials: int
    elapsed_secs: float
    interrupted: bool
    signal_number: int = 0


@dataclass(frozen=True, slots=True)
class TuneResult:
    """Result of a tuning run."""

    network: str
    out: Path
    tasks: tuple[TaskProgress, ...]
    outcomes: Mapping[str, int]
    new_trials: int
    elapsed_secs: float
    interrupted: bool
    """True if a signal stopped the run before its budget was used."""
    networks: tuple[NetworkResult, ...] = field(default=())
    signal_number: int = 0
    """Number of the signal that stopped the run. 0 without a signal."""
    transferred: Transferred | None = None
    """Knowledge from which the search started. None: it started from nothing."""
    left_out: tuple[SkippedPart, ...] = ()
    """Parts that could not be tuned, or not as well as the rest."""
    inputs: str = ""
    """Origin of the inputs on which the network was compared and timed."""
    notices: tuple[Notice, ...] = ()
    """The last warnings of the run."""
    device_time: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Shares of the devices' time by device class and use (:class:`DeviceTime`)."""
    store: FromStore | None = None
    """Results that were taken from the store that runs share. None without a store."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Number of times that processes of each role (:class:`ProcessRole`) were started again."""
    not_tried: tuple[NotTried, ...] = ()
    """Trials that were asked for and not made, by reason."""

    @property
    def bounds(self) -> dict[str, str]:
        """The limit of each device class; see :func:`bound_by`."""
        return {device_class: bound_by(shares) for device_class, shares in self.device_time.items()}
