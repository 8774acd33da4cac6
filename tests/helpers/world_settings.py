"""What a :class:`tests.helpers.run_world.World` is made of, and what goes wrong in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.base.device_state import DeviceState
from fleet_tune.base.domain import Limits, Record, StopRule, Task
from policies.runs import events as ev
from policies.runs.plan import Flow
from tests.helpers.world_devices import Device, Spans


@dataclass
class Settings:
    """``supply``: candidates that each task has. ``build_secs``, ``propose_secs``: how long these take.
    ``build_fails``: numbers of candidates that do not build, ``slow_builds``: seconds by the numbers of those that take
    others. ``oracle_fails``: names of workloads whose oracle does not build; ``oracle_secs``: what it takes longer than
    a candidate. ``searcher_restarts``: share of proposals before which the searcher's process begins anew, with what is
    durable by then. ``recorder_secs``: until something is durable, about. ``builders_lost``, ``proposals_lost``: share
    of calls without an answer; ``builds_killed``: of those builds whose process is ended from outside,
    ``builders_absent``: of those that come to a builder that is not there at that moment. ``starts_fail``: when
    builders do not start, but the first ``builders_that_start``. ``searcher_dies``: names of workloads over which the
    searcher always dies, with all that it was asked for. ``floor_secs``: of every task; ``candidate_secs``: of
    candidates on the devices for which the fleet file says it. ``oracle_run_secs``: what the plan says of every
    oracle's runs. ``appear``: when devices answer for the first time of whose class nothing is known before.
    ``script``: events of other people's making by their time. ``stored``: what earlier runs left. ``described_at``:
    when tasks are described, by their id; the others are so from the start. ``left_out``: ids of those that turn out to
    have no sketch. ``settled``: why tasks need no trial, by their id; ``enough``: how many trials are enough for those
    that are described later. ``scheduler_lost_at``: when the process that drives the run is lost, and another takes its
    place. ``joins``: when the first device of a class answers of which nobody did at the start: the network is prepared
    for it for ``prepare_secs``, and where it is one of the ``unprepared`` ones in vain. ``added``: when devices are
    added to the fleet file that it has not had at the start; they answer a second later, or when they ``appear``.
    ``leave``: when devices are removed from it. ``builders_left_at``: when the machine of all builders leaves; that of
    as many others comes a second later. ``stall_secs``: for which the process that drives the run is busy with
    an event; what comes meanwhile is handled together."""

    devices: Mapping[str, Device]
    tasks: Sequence[Task] = ()
    builders: int = 4
    supply: int = 60
    limits: Limits = field(default_factory=Limits)
    flow: Flow = field(default_factory=Flow)
    rule: StopRule = field(default_factory=StopRule)
    build_secs: float = 0.05
    propose_secs: float = 0.01
    build_fails: frozenset[int] = frozenset()
    slow_builds: Mapping[int, float] = field(default_factory=dict)
    oracle_fails: frozenset[str] = frozenset()
    oracle_secs: float = 0.0
    searcher_restarts: float = 0.0
    recorder_secs: float = 0.02
    builders_lost: float = 0.0
    builds_killed: float = 0.0
    builders_absent: float = 0.0
    proposals_lost: float = 0.0
    starts_fail: Spans = ()
    builders_that_start: int = 0
    searcher_dies: frozenset[str] = frozenset()
    oracle_run_secs: float = 0.0
    floor_secs: float = 1e-9
    candidate_secs: Mapping[str, float] = field(default_factory=dict)
    appear: Mapping[str, float] = field(default_factory=dict)
    patience_secs: float = 120.0
    check_every_secs: float = 120.0
    build_timeout_secs: float | None = None
    script: Mapping[float, ev.Event] = field(default_factory=dict)
    stored: tuple[Record, ...] = ()
    described_at: Mapping[str, float] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    settled: Mapping[str, str] = field(default_factory=dict)
    enough: Mapping[str, int] = field(default_factory=dict)
    scheduler_lost_at: tuple[float, ...] = ()
    device_states: Mapping[str, DeviceState] = field(default_factory=dict)
    joins: Mapping[str, float] = field(default_factory=dict)
    prepare_secs: float = 2.0
    unprepared: frozenset[str] = frozenset()
    added: Mapping[str, float] = field(default_factory=dict)
    leave: Mapping[str, float] = field(default_factory=dict)
    builders_left_at: float = math.inf
    stall_secs: float = 0.0
    run_id: str = "run"
    seed: int = 0
