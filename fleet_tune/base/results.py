"""Snapshots of a running session and the result of a finished one: what views, metrics and reports show."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """State of one task. ``best_secs``: the incumbent's cost, infinite while there is none. ``finish_reason``: why a
    finished task gets no more trials, empty while it is tuned. ``described``: whether its sketches are known, without
    which it is not tuned."""

    task_id: str
    name: str
    device_class: str
    weight: int
    flop: float
    sketches: int
    trials: int
    best_secs: float
    finished: bool = False
    best_rule: str = ""
    finish_reason: str = ""
    described: bool = True

    @property
    def gflops(self) -> float:
        """Throughput of the incumbent in GFLOP/s, 0 while there is none."""
        return self.flop / self.best_secs / 1e9 if math.isfinite(self.best_secs) else 0.0


class DeviceTime(enum.StrEnum):
    """What a device that can work does with its time: it measures, or waits for something."""

    MEASURE = "measure"
    SEARCH = "search"  # for candidates
    BUILD = "build"  # for artifacts
    WINDOW = "window"  # for its quiet window: for those who search and build on its host
    TURN = "turn"  # for other runs that use it
    COMMIT = "commit"  # until records are durable
    TASKS = "tasks"  # for nothing: all that there is to tune is under way or done


BUSY_SHARE = 0.9
"""A class whose devices measure for this share of their time is bound by them."""


def bound_by(shares: Mapping[str, float]) -> str:
    """What bounds a class by the shares of its devices' time: :attr:`DeviceTime.MEASURE` where they hardly wait, else
    what they wait for most; empty while nothing is known."""
    if not shares:
        return ""
    if shares.get(DeviceTime.MEASURE, 0.0) >= BUSY_SHARE:
        return DeviceTime.MEASURE.value
    waits = {what: share for what, share in shares.items() if what != DeviceTime.MEASURE.value}
    return max(waits, key=lambda what: waits[what])


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a run warns of: the ``number``-th of this run, ``at_secs`` after its begin. What was told
    ``times`` times in short time is one notice, with the seconds of the last time."""

    number: int
    at_secs: float
    text: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """One snapshot of a session.

    ``outcomes``: trials of this store by outcome (earlier runs included), ``trials``: their sum; ``new_trials``: those
    of this run. ``queues``: items waiting, by stage. ``devices``: state of each device by id. ``device_changes``: how
    many changes of devices this run has kept, other than leases. ``vitals``: by device id what it last told of its
    hardware (``temperature_celsius``, ``clock_hertz``, each where it is known) and its ``speed``, 1 where it is as fast
    as usual. ``notices``: the last of what the run warns of, oldest first. ``device_time``: by device class, shares of
    the time of its devices by what they did with it lately (:class:`DeviceTime`), and ``device_time_whole`` since the
    tuning began. Limits are None where the user set none; ``time_budget_secs`` counts from the run's begin and grows
    while tasks are still being described. ``doing``: what is done just now in a phase that has no trials. ``silent``:
    processes of the run that are gone or give no sign of life, with the second of the run since which. ``behind``: by
    device id, the run whose turn it is while this one waits, with the second since which.
    """

    phase: str
    elapsed_secs: float
    time_budget_secs: float | None
    trial_limit: int | None
    trials: int
    new_trials: int
    outcomes: Mapping[str, int]
    records_per_sec: float
    queues: Mapping[str, int]
    devices: Mapping[str, str]
    tasks: tuple[TaskProgress, ...]
    device_changes: int = 0
    vitals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    device_time: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    device_time_whole: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    doing: str = ""
    silent: Mapping[str, float] = field(default_factory=dict)
    behind: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def bounds(self) -> dict[str, str]:
        """What bounds each device class now; see :func:`bound_by`."""
        return {device_class: bound_by(shares) for device_class, shares in self.device_time.items()}

    @property
    def network_secs(self) -> dict[str, float]:
        """Estimated network latency per device class: sum of weight times best; infinite until every task has one."""
        totals: dict[str, float] = {}
        for task in self.tasks:
            totals[task.device_class] = totals.get(task.device_class, 0.0) + task.weight * task.best_secs
        return totals


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a run has learned before its first trial.

    ``source``: the path that was named, or ``pretrained`` for the cost model that comes with fleet-tune.
    ``candidates``: how many measured candidates it holds, 0 where it is a cost model; ``left_out``: records that fit no
    sketch of today's. ``own_tasks``: how many tasks start from a cost model of their own workload's records,
    ``shared_tasks``: how many start from one of all workloads; the others start from nothing, or from what the store
    that runs share has of similar ones (:attr:`FromStore.taught`).
    """

    source: str
    candidates: int
    left_out: int
    own_tasks: int
    shared_tasks: int


@dataclass(frozen=True, slots=True)
class FromStore:
    """What a run has taken from the store that several runs share, before its first trial.

    ``path``: of the store. ``records``: how many it took, one for each candidate. ``known``: tasks of which it had
    some; ``settled``: those of them that need no trial, because as much was spent on them before. ``confirmed``: tasks
    of which other versions have records, as much was spent on them, and the best few are tried once more;
    ``seeded``: other tasks whose search begins with what was found for them by other versions, or for similar ones.
    ``shipped``: tasks of which the store has nothing, and which begin with records that come with fleet-tune;
    ``shipped_confirmed``: those of them that were measured on the same kind of processor, as much was spent on them,
    and the best few are tried once more. ``taught``: tasks whose cost model starts from what the store has of similar
    ones, ``learned``: how many candidates that are.
    """

    path: str
    records: int
    known: int
    settled: int
    confirmed: int = 0
    seeded: int = 0
    shipped: int = 0
    shipped_confirmed: int = 0
    taught: int = 0
    learned: int = 0


@dataclass(frozen=True, slots=True)
class SkippedPart:
    """What a run does without, and why, in one line. ``what``: a whole ``task`` that has no sketch and whose kernel
    stays untuned, a ``sketch`` of a task that has others, the ``description`` of a sketch, which is then searched by
    its decisions alone, a ``rewrite`` of the whole network, which is right without it, the ``check`` of the untuned
    network, or a stored ``record`` that cannot be read. ``task``: its name, empty for the whole network; ``rule``: the
    sketch's, empty for all others."""

    what: Literal["task", "sketch", "description", "rewrite", "check", "record"]
    task: str
    device_class: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``--dry-run`` prints: the tasks (no trials yet), and what would be done with them. ``transferred``: what the
    search would start from, None for nothing. ``left_out``: what cannot be tuned or not as well as the rest.
    ``inputs``: where the inputs are from on which the network is compared and timed. ``store``: what would be taken
    from the store that several runs share, None without one."""

    network: str
    method: str
    devices: Mapping[str, str]
    tasks: tuple[TaskProgress, ...]
    trial_limit: int | None
    time_budget_secs: float | None
    transferred: Transferred | None = None
    left_out: tuple[SkippedPart, ...] = ()
    inputs: str = ""
    store: FromStore | None = None


class FallbackKernel(enum.StrEnum):
    """What a task gets in the compiled network in place of the best of its records."""

    RECORD = "record"  # the next best
    FIRST_CHOICE = "first choice"  # the analyzer's, measured when the tuning was over
    UNSCHEDULED = "unscheduled"  # the kernel as it was imported


@dataclass(frozen=True, slots=True)
class Fallback:
    """A task whose kernel in the compiled network is not the best of its records, or that had none. ``reason``: why, in
    one line."""

    task: str
    reason: str
    used: FallbackKernel


CLOCK_SECS = 1e-6
"""What the clock itself takes of each call of a kernel that is timed in its place."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The kernel of a task in a compiled network. ``calls``: in one run. Seconds are those of one call: ``alone_secs``
    of its record, at the device's usual speed (None where it has none), ``secs`` in its place in the network."""

    task_id: str
    task: str
    calls: int
    alone_secs: float | None
    secs: float

    @property
    def is_clear(self) -> bool:
        """Whether the clock's own time is small against the kernel's."""
        return self.secs >= 10 * CLOCK_SECS


@dataclass(frozen=True, slots=True)
class InNetwork:
    """Where the time of a compiled network goes. ``secs``: of a whole run, in turn with the runs in which the kernels
    were timed, at another moment than the latencies of the network. ``others_secs``: of kernels that are no task's.
    ``left_over_secs``: what a run in which they were timed took beside all kernels: calls, allocation, the watching."""

    secs: float
    kernels: tuple[KernelTime, ...]
    others_secs: float
    left_over_secs: float

    @property
    def alone_secs(self) -> float | None:
        """What the kernels of all tasks would take in a run if they took what they take alone; None where one is not
        known."""
        known = [each.calls * each.alone_secs for each in self.kernels if each.alone_secs is not None]
        return sum(known) if len(known) == len(self.kernels) else None

    @property
    def kernels_secs(self) -> float:
        """What all kernels take in a run."""
        return self.others_secs + sum(each.calls * each.secs for each in self.kernels)

    @property
    def sums(self) -> dict[str, float | None]:
        """Both of them, by their names."""
        return {"alone_secs": self.alone_secs, "kernels_secs": self.kernels_secs}


@dataclass(frozen=True, slots=True)
class ChosenInPlace:
    """A task whose kernel is not the one that is the fastest alone, because another is faster in its place in the
    network. ``candidate_id``: of the other; ``compared``: ids of all candidates that were timed there, that one first.
    ``ratio``: of the other's seconds to that one's there, the geometric mean of so many ``rounds``; ``error``: its
    standard error, as a share of it."""

    task_id: str
    candidate_id: str
    compared: tuple[str, ...]
    ratio: float
    error: float
    rounds: int


BUSY_CORES = 0.25
"""Processor cores that others take of a network's from which on its times are not those of the machine: its threads
wait for each other, so that the one beside which another process runs delays all."""


def is_busy(others_cores: float | None) -> bool:
    """Whether others take so much; not where nobody knows."""
    return others_cores is not None and others_cores >= BUSY_CORES


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """The compiled network of one device class, measured on its device.

    Latencies are medians in seconds; None stands for what was not measured: ``torch_secs`` where the network is an ONNX
    file or was not run on the tuning machine, and all of them where the network could not be run. ``max_abs_error`` and
    ``max_rel_error`` compare the published network's outputs with the framework's on the example inputs; the relative
    one is divided by the largest absolute value of the framework.

    ``checked_on``: where the outputs were compared before the network was published: ``this machine`` or a device;
    empty where they were not, and ``unchecked`` says why. ``published``: ``untuned`` where that is faster than the
    ``tuned`` one, or where ``problem`` says what is wrong with that, and ``nothing`` where ``problem`` says why.
    ``fallbacks``: the tasks that got something else than their best. ``chosen_in_place``: those that got what is the
    best in the network, and not alone. ``in_network``: where the time of the published
    network goes, None where its kernels were not timed. ``untuned_earlier``: an earlier run has timed the untuned one,
    and the tuned one takes far less. ``others_cores``: the processor cores that other processes took
    of those that the network needs while it was timed, on the average; None where nobody knows, as of a device.
    """

    device_class: str
    folder: Path
    tuned_secs: float | None
    untuned_secs: float | None
    torch_secs: float | None
    max_abs_error: float | None
    max_rel_error: float | None
    checked_on: str = ""
    unchecked: str = ""
    published: Literal["tuned", "untuned", "nothing"] = "tuned"
    problem: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    chosen_in_place: tuple[ChosenInPlace, ...] = ()
    in_network: InNetwork | None = None
    untuned_earlier: bool = False
    others_cores: float | None = None

    @property
    def on_busy_host(self) -> bool:
        """Whether others worked so much while the network was timed that its times are not those of the machine."""
        return is_busy(self.others_cores)

    @property
    def secs(self) -> float | None:
        """Latency of the network that was published."""
        return {"tuned": self.tuned_secs, "untuned": self.untuned_secs, "nothing": None}[self.published]


@dataclass(frozen=True, slots=True)
class Collected:
    """What the collecting of a dataset ends with. ``dataset``: the file, None where nothing was measured; the counts
    and ``interrupted`` are those of :class:`TuneResult`."""

    network: str
    out: Path
    dataset: Path | None
    outcomes: Mapping[str, int]
    new_trials: int
    elapsed_secs: float
    interrupted: bool
    signal_number: int = 0


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a tuning run ends with. ``interrupted``: it was stopped by a signal before its budget was used;
    ``signal_number``: by which one, 0 without a signal. ``transferred``: what the search started from, None for
    nothing; ``left_out``, ``inputs``: as in the plan; ``notices``: the last of what the run warned of. ``device_time``:
    by device class, shares of the time of its devices by what they did with it (:class:`DeviceTime`), ``bounds``: what
    bounded each class, by these. ``store``: what it took from the store that several runs share, None without one."""

    network: str
    out: Path
    tasks: tuple[TaskProgress, ...]
    outcomes: Mapping[str, int]
    new_trials: int
    elapsed_secs: float
    interrupted: bool
    networks: tuple[NetworkResult, ...] = field(default=())
    signal_number: int = 0
    transferred: Transferred | None = None
    left_out: tuple[SkippedPart, ...] = ()
    inputs: str = ""
    notices: tuple[Notice, ...] = ()
    device_time: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    store: FromStore | None = None

    @property
    def bounds(self) -> dict[str, str]:
        """What bounded each device class; see :func:`bound_by`."""
        return {device_class: bound_by(shares) for device_class, shares in self.device_time.items()}
