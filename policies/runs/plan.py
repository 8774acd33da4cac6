"""What a run is to do, and how much may be under way at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_tune.domain import Limits, StopRule, Task
from policies.measuring.health import PROBE_EVERY_SECS

DEVICE_PATIENCE_SECS = 120.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Bounds of what is under way.

    ``grant``: candidates proposed at once. ``waiting_per_builder``: how many may wait for each builder. ``in_flight``:
    candidates of one device class that may be under way, or ``in_flight_per_device`` for each of its devices that can
    work, whichever is more: two batches, one on the device and one on its way to it. ``batch``: artifacts measured in
    one quiet window, at most; one for fewer than ``least_batch`` is opened only when every build under way has taken
    ``gather_secs`` already: nobody waits for a slow one.
    ``attempts``: a candidate that loses this many builders is blamed. ``retry_secs``: until what failed is tried again;
    twice as long each time that it fails again, up to ``rest_secs`` (see :meth:`rest_of`). ``starts``: a run ends when
    every builder has failed to start this often, with no build in between. ``proposals``: a task over which this many
    proposals are lost in a row is finished.
    """

    grant: int = 8
    waiting_per_builder: int = 8
    in_flight: int = 40
    in_flight_per_device: int = 24
    batch: int = 12
    least_batch: int = 6
    gather_secs: float = 2.0
    attempts: int = 2
    retry_secs: float = 1.0
    rest_secs: float = 60.0
    starts: int = 3
    proposals: int = 5

    def rest_of(self, failures: int) -> float:
        """Seconds until what has failed so often in a row is tried again."""
        return min(self.rest_secs, self.retry_secs * 2.0 ** min(failures - 1, 30))

    def in_flight_of(self, devices: int) -> int:
        """Candidates that may be under way for a class of which so many devices can work."""
        return max(self.in_flight, self.in_flight_per_device * devices)


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task of a run. ``rules``: what made each of its sketches, None while it is still being described.
    ``floor_secs``: a cost that no schedule can beat. ``oracle_secs``: the longest that a run of its oracle may take."""

    task: Task
    rules: tuple[str, ...] | None
    floor_secs: float
    oracle_secs: float = 0.0


@dataclass(frozen=True)
class RunPlan:
    """``devices``: the class of each device by its id, empty for one that has never answered: it may appear later.
    ``device_patience_secs``: how long a run waits for a device when none can work any more. ``check_every_secs``: how
    often a device that works runs its probe. ``window_wait_secs``: the longest wait for a quiet window, part of every
    lease. ``build_timeout_secs``: what every build may take, None for what the builds of its task take
    (:mod:`policies.measuring.build_limit`)."""

    run_id: str
    tasks: tuple[PlannedTask, ...]
    devices: Mapping[str, str]
    builders: int
    limits: Limits = field(default_factory=Limits)
    rule: StopRule = field(default_factory=StopRule)
    flow: Flow = field(default_factory=Flow)
    device_patience_secs: float = DEVICE_PATIENCE_SECS
    check_every_secs: float = PROBE_EVERY_SECS
    window_wait_secs: float = 900.0
    build_timeout_secs: float | None = None
