"""The events of a run. Every command (:mod:`policies.runs.commands`) that takes time ends with an event."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.base.device_state import Admin, DeviceState
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.results import DeviceTime, ProcessRole
from fleet_tune.base.timeouts import DeviceTimeouts
from policies.runs.planned_task import PlannedTask

# Records and tasks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordsCommitted:
    """Records are durable."""

    records: Sequence[Record]
    """Records in the order of their sequence numbers; a record may come twice."""


@dataclass(frozen=True, slots=True)
class RecordsCaughtUp:
    """All records that were durable at the request have come: once at the start, and after each ``CatchUpRecords``."""


@dataclass(frozen=True, slots=True)
class SketchesReady:
    """A task of the plan has its sketches, and its searcher knows it: it may be tuned."""

    task_id: str
    rules: tuple[str, ...]
    """Rule that made each sketch."""
    confirmation_trials: int = 0
    """Trials after which the task needs no more, if one of them was right; 0 for no such number."""
    floor_secs: float | None = None
    """See :attr:`fleet_tune.base.search_task.SearchTask.floor_secs`, for these sketches; None if it stays as
    planned."""


@dataclass(frozen=True, slots=True)
class TaskSkipped:
    """A task of the plan has no sketch: it is not part of the run."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Proposed:
    """The answer to ``Propose``."""

    task_id: str
    number: int
    """Number of this proposal of its task."""
    candidates: tuple[Candidate, ...]
    exhausted: bool
    """True if nothing is left to propose."""
    predicted_gain: float
    """Predicted gain of the best next candidate, as a log ratio."""


@dataclass(frozen=True, slots=True)
class ProposalLost:
    """No answer to ``Propose``: the searcher's process has ended, or no longer works."""

    task_id: str
    detail: str
    hangs: bool = False
    """True if the process runs but no longer works."""


# Builders ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Built:
    """The answer to ``Build``."""

    builder: int
    failure: Measurement | None = None
    """How the build failed; None for an artifact."""


class BuilderLossCause(enum.Enum):
    """Why a builder gives no answer."""

    NOT_BEGUN = enum.auto()
    """The builder has not begun the job: its process did not start, say."""
    ABSENT = enum.auto()
    """The builder was lost before, and no other process has replaced it yet."""
    OUTSIDE = enum.auto()
    """A process was ended from outside, or by the run because it did not answer."""
    JOB = enum.auto()
    """The job may be the cause."""


@dataclass(frozen=True, slots=True)
class BuilderLost:
    """The answer to ``Build`` is neither an artifact nor a failure."""

    builder: int
    detail: str
    cause: BuilderLossCause


@dataclass(frozen=True, slots=True)
class BuildersAdded:
    """A node joins the cluster, with builders."""

    builders: tuple[int, ...]
    """Numbers of the builders, which no builder has had before."""


@dataclass(frozen=True, slots=True)
class BuildersLeft:
    """A node leaves the cluster, with its builders."""

    builders: tuple[int, ...]


# Devices -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DevicesRestored:
    """The state of all devices at the start, from the store and the orders. It comes once, as the first event."""

    states: Mapping[str, DeviceState]
    """Last state of each device by its id."""
    orders: Mapping[str, tuple[Admin, str]] = field(default_factory=dict)
    """Administrative state that people want of a device, with the reason, by its id."""
    began_unix_secs: float = 0.0
    """Unix time of second 0 of the run."""
    shown_speeds: Mapping[str, float] = field(default_factory=dict)
    """Speed at which people see the seconds of each class, if the store knows it."""
    calls: Mapping[str, CallSecs] = field(default_factory=dict)
    """Extra time of a call on each class, if the store knows it."""


@dataclass(frozen=True, slots=True)
class DeviceProbed:
    """The answer to ``ProbeDevice``."""

    device_id: str
    secs: float
    """Time of one run of the probe."""


@dataclass(frozen=True, slots=True)
class DeviceProbeFailed:
    """The answer to ``ProbeDevice`` of a device that can be reached but whose probe fails."""

    device_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class DeviceUnreachable:
    """``ProbeDevice`` has not reached the device."""

    device_id: str
    detail: str
    hangs: bool = False
    """True if the process that owns the device does not answer."""
    outside: bool = False
    """True if that process was ended, or its quiet window did not come in time or was lost. That says nothing about the
    device."""


@dataclass(frozen=True, slots=True)
class DeviceAdded:
    """The fleet has one more device. The run waits for its answer, as for the devices of the plan."""

    device_id: str
    state: DeviceState = field(default_factory=DeviceState)
    """Last known state of the device."""
    admin: Admin = Admin.ACTIVE
    """Administrative state that people want of it."""
    reason: str = ""
    """Reason for that state."""
    timeouts: DeviceTimeouts | None = None
    """Timeouts of its entry in the fleet file; None if its candidates follow the run's rule."""


@dataclass(frozen=True, slots=True)
class DeviceAnswered:
    """A device of the run answers for the first time: it joins."""

    device_id: str
    device_class: str
    """Its class, for which the run tunes."""


@dataclass(frozen=True, slots=True)
class DeviceLeft:
    """The fleet has one device less. Its work is tried again elsewhere, and no candidate is blamed."""

    device_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClassAwaited:
    """A device whose class has no tasks yet answers. The network is being prepared for the class. Meanwhile the run
    does not end, even if nothing is left to tune."""

    device_class: str


@dataclass(frozen=True, slots=True)
class ClassAdded:
    """The preparation of the network for an awaited class has ended."""

    device_class: str
    tasks: tuple[PlannedTask, ...] = ()
    """Tasks of the class, which are still to be described; none if the network could not be prepared."""


@dataclass(frozen=True, slots=True)
class BatchMeasured:
    """The answer to ``Measure``."""

    device_id: str
    epoch: int
    outcomes: Mapping[str, Outcome]
    """Outcome by candidate id. Each has a record, which need not be durable yet, except KILLED, and DEVICE_LOST, which
    only the last candidate can have. Candidates without an outcome were not tried."""
    detail: str = ""
    """How the device was lost; empty if it was not lost."""
    vitals: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[DeviceTime, float] = field(default_factory=dict)
    """Seconds of the lease in which the device did not measure, by their use."""
    records: Sequence[bytes] = ()
    """Records of the outcomes as the store encodes them. The executor of the device has them stored, and hands the
    event on without them."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """Why candidates of a task are not verified on this device, by the task's id; empty if they are from now on."""
    calls: CallSecs | None = None
    """Extra time of a call on the device's class, at speed 1; None if it was not measured with the batch."""


@dataclass(frozen=True, slots=True)
class BatchLost:
    """No answer to ``Measure`` or ``ShootOut``: the process that owns the device has ended, or its results came under
    an old lease. It is not known which candidates were measured."""

    device_id: str
    epoch: int
    detail: str
    hangs: bool = False
    """True if the process does not answer."""
    outside: bool = False
    """True if the process was ended from outside, or by the run because it did not answer. No kernel runs in that
    process: no candidate was the cause."""


@dataclass(frozen=True, slots=True)
class ShootOutMeasured:
    """The answer to ``ShootOut``."""

    device_id: str
    epoch: int
    detail: str = ""
    """How the device was lost; empty if it was not lost."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """As for :class:`BatchMeasured`."""


@dataclass(frozen=True, slots=True)
class BatchPostponed:
    """The answer to ``Measure`` or ``ShootOut`` if no result counts: another run has used the device all the time, the
    quiet window did not come in time or was lost because the process was stopped, or the host runs an oracle."""

    device_id: str
    epoch: int
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """As for :class:`BatchMeasured`."""


@dataclass(frozen=True, slots=True)
class DeviceInUse:
    """A command waits for its device while another run has its turn there."""

    device_id: str
    behind: str
    """Title of the other run; empty once it is this run's turn."""


@dataclass(frozen=True, slots=True)
class AdminRequested:
    """A person wants another administrative state of a device."""

    device_id: str
    admin: Admin
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceEventsStored:
    """The changes of ``StoreDeviceEvents`` are durable."""

    commands: int = 1
    """Number of such commands."""


# The run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoticePosted:
    """A notice for people that needs no command: a process that stores or learns has failed, say."""

    text: str
    well: bool = False
    """True for good news."""


@dataclass(frozen=True, slots=True)
class ProcessRestarted:
    """A process of the run has ended, and another one replaces it."""

    process: str
    """Name of the process for people."""
    role: ProcessRole
    times: int = 1
    """Number of processes that have ended since the last event of this process."""

    @property
    def text(self) -> str:
        """The event in words."""
        times = "" if self.times == 1 else f" {self.times} times"
        return f"the process of {self.process} has ended{times}: another takes its place"


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The run is to end: measurements under way are stored, and no shoot-out begins."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: see :attr:`policies.runs.state.RunState.wake_secs`."""


Event = (
    RecordsCommitted
    | RecordsCaughtUp
    | SketchesReady
    | TaskSkipped
    | Proposed
    | ProposalLost
    | Built
    | BuilderLost
    | BuildersAdded
    | BuildersLeft
    | DevicesRestored
    | DeviceProbed
    | DeviceProbeFailed
    | DeviceUnreachable
    | DeviceAdded
    | DeviceAnswered
    | DeviceLeft
    | ClassAwaited
    | ClassAdded
    | BatchMeasured
    | BatchLost
    | ShootOutMeasured
    | BatchPostponed
    | DeviceInUse
    | AdminRequested
    | DeviceEventsStored
    | NoticePosted
    | ProcessRestarted
    | StopRequested
    | Tick
)
