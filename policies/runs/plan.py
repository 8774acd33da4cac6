"""What a run is to do, and how much may be under way at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_tune.base.domain import Limits, StopRule, Task
from fleet_tune.base.results import Notice
from policies.measuring.health import PROBE_EVERY_SECS

DEVICE_PATIENCE_SECS = 120.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Bounds of what is under way; within them it follows the devices (:mod:`policies.runs.stages.pace`).

    ``grant``: candidates that are asked for at once, at least; ``most_grant``: at most. ``waiting_per_builder``: how
    many may wait for each builder. ``in_flight``: candidates of one device class that may be under way, however slow
    its devices. ``window_secs``: how long a batch should take on its device; ``first_batch``: how many a device gets
    while nothing is known of its class, ``batch``: how many at most; a batch of fewer than ``least_batch`` that are not
    all that fit into the time is begun only when every build under way has taken ``gather_secs`` already: nobody waits
    for a slow one.
    ``attempts``: a candidate that loses this many builders is blamed; one whose processes are ended from outside
    ``kills`` times is left out, and the run ends where that is so of ``left_out`` candidates in a row. ``retry_secs``:
    until what failed is tried again; twice as long each time that it fails again, up to ``rest_secs`` (see
    :meth:`rest_of`). ``starts``: a run ends when every builder has failed to start this often, with no build in
    between, or was not there ``looks`` times in a row, up to ``look_secs`` apart. ``proposals``: a task over which
    this many proposals are lost in a row is finished.
    """

    grant: int = 8
    most_grant: int = 256
    waiting_per_builder: int = 8
    in_flight: int = 16
    window_secs: float = 1.5
    first_batch: int = 3
    batch: int = 64
    least_batch: int = 6
    gather_secs: float = 2.0
    attempts: int = 2
    kills: int = 3
    left_out: int = 5
    retry_secs: float = 1.0
    rest_secs: float = 60.0
    starts: int = 3
    looks: int = 30
    look_secs: float = 5.0
    proposals: int = 5

    def rest_of(self, failures: int) -> float:
        """Seconds until what has failed so often in a row is tried again."""
        return min(self.rest_secs, self.retry_secs * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task of a run. ``rules``: what made each of its sketches, None while it is still being described, and empty
    where it turned out to have none. ``floor_secs``: a cost that no schedule can beat. ``oracle_secs``: the longest
    that a run of its oracle may take. ``searcher``: number of the searcher that knows it. ``settled``: why it needs no
    trial at all, empty where it is tuned. ``enough``: see :attr:`fleet_tune.base.search_task.SearchTask.enough`.
    ``late``: of a device class that joined while the run went on: the time budget does not wait until it is
    described."""

    task: Task
    rules: tuple[str, ...] | None
    floor_secs: float
    oracle_secs: float = 0.0
    searcher: int = 0
    settled: str = ""
    enough: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True)
class Before:
    """What a state takes over from the one before it in the same run, which was lost with its process; the records and
    the states of devices say everything else. ``secs``: of the run by then. ``budget_from_secs``: from when the time
    budget counts, if all tasks are described. ``notices``: what people were told. ``device_changes``: see
    :class:`fleet_tune.base.results.Progress`."""

    secs: float = 0.0
    budget_from_secs: float = 0.0
    notices: tuple[Notice, ...] = ()
    device_changes: int = 0


@dataclass(frozen=True)
class RunPlan:
    """``devices``: the class of each device by its id, empty for one that has never answered: it may appear later.
    ``builders``: how many there are, or have been; their numbers begin with 0. ``left_builders``: those that have left.
    ``awaited_classes``: device classes for which the network is just being prepared.
    ``device_patience_secs``: how long a run waits for a device when none can work any more. ``check_every_secs``: how
    often a device that works runs its probe. ``candidate_secs``: of measuring a candidate at most, beside what its
    operations take (:mod:`policies.measuring.run_limit`), by device id; else what ``rule`` says. ``window_wait_secs``:
    the longest wait for a quiet window, part of every lease. ``build_timeout_secs``: what every build may take, None
    for what the builds of its task take (:mod:`policies.measuring.build_limit`). ``before``: of a run that goes on in
    another process."""

    run_id: str
    tasks: tuple[PlannedTask, ...]
    devices: Mapping[str, str]
    builders: int
    left_builders: frozenset[int] = frozenset()
    limits: Limits = field(default_factory=Limits)
    rule: StopRule = field(default_factory=StopRule)
    flow: Flow = field(default_factory=Flow)
    device_patience_secs: float = DEVICE_PATIENCE_SECS
    check_every_secs: float = PROBE_EVERY_SECS
    candidate_secs: Mapping[str, float] = field(default_factory=dict)
    window_wait_secs: float = 900.0
    build_timeout_secs: float | None = None
    awaited_classes: frozenset[str] = frozenset()
    before: Before = field(default_factory=Before)
