"""Settings of a :class:`tests.helpers.run_world.World`: its parts, and what goes wrong in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.base.device_state import DeviceState
from fleet_tune.base.domain import Limits, Record, StopRule, Task
from fleet_tune.base.timeouts import DeviceTimeouts
from policies.runs import events as ev
from policies.runs.plan import InFlightLimits
from tests.helpers.world_devices import Device, Spans

RESTART_SECS = 3.0


def timeouts_of(candidate_secs: float) -> DeviceTimeouts:
    """Timeouts of a device that has its candidates alone limited."""
    return DeviceTimeouts(candidate_secs=candidate_secs, oracle_secs=0.0)


@dataclass
class Settings:
    """Parts of a world, with defaults in which nothing goes wrong. Times are seconds of the run."""

    devices: Mapping[str, Device]
    tasks: Sequence[Task] = ()
    builders: int = 4
    supply: int = 60
    """Candidates that each task has."""
    limits: Limits = field(default_factory=Limits)
    flow: InFlightLimits = field(default_factory=InFlightLimits)
    rule: StopRule = field(default_factory=StopRule)
    build_secs: float = 0.05
    """Time of a build."""
    propose_secs: float = 0.01
    """Time of a proposal."""
    build_fails: frozenset[int] = frozenset()
    """Numbers of candidates that do not build."""
    slow_builds: Mapping[int, float] = field(default_factory=dict)
    """Seconds of the builds that take others, by number of the candidate."""
    oracle_fails: frozenset[str] = frozenset()
    """Names of workloads whose oracle does not build."""
    oracle_secs: float = 0.0
    """Time that an oracle takes longer than a candidate."""
    searcher_restarts: float = 0.0
    """Share of proposals before which the searcher's process begins anew, with the records that are durable by then."""
    searcher_killed_at: tuple[float, ...] = ()
    """Times at which the searcher's process is killed, with all that it was asked for; another begins anew."""
    recorder_killed_at: tuple[float, ...] = ()
    """Times at which the recorder's process is killed. Another takes its place ``RESTART_SECS`` later; what was not
    acknowledged is handed in again."""
    recorder_secs: float = 0.02
    """Time until a record is durable, about."""
    builders_lost: float = 0.0
    """Share of builds without an answer."""
    builds_killed: float = 0.0
    """Share of builds whose process is ended from outside."""
    builders_absent: float = 0.0
    """Share of builds that come to a builder that is absent at that moment."""
    proposals_lost: float = 0.0
    """Share of proposals without an answer."""
    starts_fail: Spans = ()
    """Times at which builders do not start, but the first ``builders_that_start``."""
    builders_that_start: int = 0
    searcher_dies: frozenset[str] = frozenset()
    """Names of workloads over which the searcher always dies, with all that it was asked for."""
    oracle_run_secs: float = 0.0
    """Longest run of every oracle, as the plan says."""
    floor_secs: float = 1e-4
    """Cost that no schedule of a task can beat."""
    candidate_secs: Mapping[str, float] = field(default_factory=dict)
    """Limit of candidates on the devices for which the fleet file gives one."""
    appear: Mapping[str, float] = field(default_factory=dict)
    """Times at which devices answer for the first time whose class is unknown before."""
    patience_secs: float = 120.0
    check_every_secs: float = 120.0
    build_timeout_secs: float | None = None
    script: Mapping[float, ev.Event] = field(default_factory=dict)
    """Events of people, by their time."""
    stored: tuple[Record, ...] = ()
    """Records of earlier runs."""
    described_at: Mapping[str, float] = field(default_factory=dict)
    """Times at which tasks are described, by their id; the others are from the start."""
    left_out: frozenset[str] = frozenset()
    """Ids of tasks that turn out to have no sketch."""
    settled: Mapping[str, str] = field(default_factory=dict)
    """Reasons why tasks need no trial, by their id."""
    confirmation_trials: Mapping[str, int] = field(default_factory=dict)
    """Confirmation trials of the tasks that are described later, by their id."""
    scheduler_lost_at: tuple[float, ...] = ()
    """Times at which the process that drives the run is lost, and another takes its place."""
    device_states: Mapping[str, DeviceState] = field(default_factory=dict)
    joins: Mapping[str, float] = field(default_factory=dict)
    """Times at which the first device of a class answers that had none at the start; the network is prepared for it."""
    prepare_secs: float = 2.0
    """Time of that preparation."""
    unprepared: frozenset[str] = frozenset()
    """Classes for which the network cannot be prepared."""
    added: Mapping[str, float] = field(default_factory=dict)
    """Times at which devices are added to the fleet file. They answer a second later, or when they ``appear``."""
    leave: Mapping[str, float] = field(default_factory=dict)
    """Times at which devices are removed from the fleet file."""
    builders_left_at: float = math.inf
    """Time at which the machine of all builders leaves; another one comes a second later."""
    stall_secs: float = 0.0
    """Time that the process that drives the run is busy with an event; the events meanwhile are handled together."""
    run_id: str = "run"
    seed: int = 0
