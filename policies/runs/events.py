"""What happens to a run. Whoever carries out a command (:mod:`policies.runs.commands`) tells its end so."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.base.device_state import Admin, DeviceState
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.results import DeviceTime
from policies.runs.planned_task import PlannedTask


@dataclass(frozen=True, slots=True)
class Restored:
    """What the store and the orders say of the devices: their last states, and what people want of them with the
    reason, both by device id. ``began_unix_secs``: when second 0 of the run was. Comes once, first."""

    states: Mapping[str, DeviceState]
    orders: Mapping[str, tuple[Admin, str]] = field(default_factory=dict)
    began_unix_secs: float = 0.0


@dataclass(frozen=True, slots=True)
class Committed:
    """Records that are durable, in the order of their sequence numbers; one may come twice."""

    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything that was durable when this was asked for has come: at the start, and after each ``CatchUp``."""


@dataclass(frozen=True, slots=True)
class SketchesReady:
    """A task of the plan has its sketches, made by ``rules``, and its searcher knows it: it may be tuned. ``enough``:
    trials after which it needs no more, where one of them was right; 0 for no such number."""

    task_id: str
    rules: tuple[str, ...]
    enough: int = 0


@dataclass(frozen=True, slots=True)
class TaskSkipped:
    """A task of the plan has no sketch: it is none of this run."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Proposed:
    """The answer to ``Propose``. ``number``: of this offer of its task. ``exhausted``: nothing is left to propose.
    ``predicted_gain``: of the best next candidate, a log ratio."""

    task_id: str
    number: int
    candidates: tuple[Candidate, ...]
    exhausted: bool
    predicted_gain: float


@dataclass(frozen=True, slots=True)
class ProposalLost:
    """No answer to ``Propose``: the searcher is gone, or, where it ``hangs``, of no more use."""

    task_id: str
    detail: str
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """The answer to ``Build``. ``failure``: None for an artifact. ``trace``: of a build that failed."""

    builder: int
    failure: Measurement | None = None
    trace: str = ""


class Cause(enum.Enum):
    """Why a builder gives no answer."""

    NOT_BEGUN = enum.auto()  # it has not come to the job: its process did not start, say
    ABSENT = enum.auto()  # it was lost before, and no other process has taken its place yet
    OUTSIDE = enum.auto()  # a process was ended from outside, or by the run because it gave no sign of life
    JOB = enum.auto()  # it may be the job's fault


@dataclass(frozen=True, slots=True)
class BuilderLost:
    """No artifact and no failure is the answer to ``Build``."""

    builder: int
    detail: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to ``Check``: one run of the probe took ``secs``."""

    device_id: str
    secs: float


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The answer to ``Check`` of a device that answers and whose probe does not run."""

    device_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """``Check`` found no device. ``hangs``: the process that owns it does not answer; ``outside``: that process was
    ended, which says nothing of the device."""

    device_id: str
    detail: str
    hangs: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class DeviceAnswered:
    """A device of the run that had never answered does, and is of this class, for which the run tunes."""

    device_id: str
    device_class: str


@dataclass(frozen=True, slots=True)
class ClassAwaited:
    """A device of a class answers for which nothing is tuned yet: the network is prepared for it. The run does not end
    meanwhile for want of something to tune."""

    device_class: str


@dataclass(frozen=True, slots=True)
class ClassAdded:
    """The network is prepared for a class that was awaited: these are its tasks, which are still to be described. None
    where it could not be prepared."""

    device_class: str
    tasks: tuple[PlannedTask, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildersAdded:
    """A machine builds too: builders with these numbers, which nobody has had."""

    builders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BuildersLeft:
    """A machine is gone, and its builders with it."""

    builders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceAdded:
    """The fleet has a device more, which is waited for as those of the plan are. ``state``: the last one that is known
    of it; ``admin``, ``reason``: what people want of it. ``candidate_secs``: as those of the plan are, None for what
    the rule says."""

    device_id: str
    state: DeviceState = field(default_factory=DeviceState)
    admin: Admin = Admin.ACTIVE
    reason: str = ""
    candidate_secs: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceLeft:
    """The fleet has a device less: what it works on is tried again elsewhere, and nobody is blamed for it."""

    device_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchMeasured:
    """The answer to ``Measure``. ``outcomes`` by candidate id: all of them are durable but KILLED, and DEVICE_LOST,
    which only the last one can be; candidates without one were not tried. ``detail``: how the device was lost, empty if
    it was not. ``waits``: seconds of the lease that were no measuring, by what they were."""

    device_id: str
    epoch: int
    outcomes: Mapping[str, Outcome]
    detail: str = ""
    vitals: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[DeviceTime, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchLost:
    """No answer to ``Measure`` or ``ShootOut``: the process that owns the device is gone, or ``hangs``, or its results
    came under an old lease. Nobody knows what of it was measured. ``outside``: the process was ended from outside, or
    by the run because it gave no sign of life: no kernel runs in it, so that no candidate was the cause."""

    device_id: str
    epoch: int
    detail: str
    hangs: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class ShotOut:
    """The answer to ``ShootOut``. ``detail``: how the device was lost, empty if it was not."""

    device_id: str
    epoch: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Postponed:
    """The answer to ``Measure`` or ``ShootOut`` of a device that another run has used all the time since: nothing was
    begun."""

    device_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class WaitingForTurn:
    """What is asked of a device waits until another run has had its turn there; ``behind``: its title, empty once it is
    this run's turn."""

    device_id: str
    behind: str


@dataclass(frozen=True, slots=True)
class Ordered:
    """A person wants something else of a device."""

    device_id: str
    admin: Admin
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceEventsKept:
    """The changes of so many ``KeepDeviceEvents`` are durable."""

    commands: int = 1


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something that people are to be told of, and that asks for nothing else: a process that stores or learns failed,
    or is ``well`` again."""

    text: str
    well: bool = False


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the run to end: what is being measured is stored, and no shoot-out begins."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: see :attr:`policies.runs.state.RunState.wake_secs`."""


Event = (
    Restored
    | Committed
    | CaughtUp
    | SketchesReady
    | TaskSkipped
    | Proposed
    | ProposalLost
    | Built
    | BuilderLost
    | Probed
    | ProbeFailed
    | Unreachable
    | DeviceAnswered
    | ClassAwaited
    | ClassAdded
    | BuildersAdded
    | BuildersLeft
    | DeviceAdded
    | DeviceLeft
    | BatchMeasured
    | BatchLost
    | ShotOut
    | Postponed
    | WaitingForTurn
    | Ordered
    | DeviceEventsKept
    | Noticed
    | StopRequested
    | Tick
)
