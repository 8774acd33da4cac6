"""What a run wants done. Artifacts are named by what they are of: a candidate's id, or a task's for its oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fleet_tune.base.device_state import DeviceEvent
from fleet_tune.base.domain import Candidate, Incumbent, Measurement, StopRule, Task
from fleet_tune.base.errors import FleetTuneError


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the task's searcher for ``count`` candidates; ``taken``: number of its last offer that arrived. Ends with
    ``Proposed`` or ``ProposalLost``."""

    task_id: str
    count: int
    taken: int


@dataclass(frozen=True, slots=True)
class Build:
    """Build a candidate, or the task's oracle (None), within ``timeout_secs``, and keep the artifact. Ends with
    ``Built`` or ``BuilderLost``."""

    builder: int
    task: Task
    candidate: Candidate | None
    timeout_secs: float


@dataclass(frozen=True, slots=True)
class Forget:
    """These artifacts are not wanted any more."""

    candidate_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """Run the device's probe, connecting first where that is needed. Ends with ``Probed``, ``ProbeFailed`` or
    ``Unreachable``."""

    device_id: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure these candidates on the device under the lease ``epoch`` and make the records durable, within
    ``deadline_secs``. ``incumbents``: by the task ids of the batch. ``limits``: by them, seconds that measuring a
    candidate may take, where that is not what the run's rule says. Ends with ``BatchMeasured``, ``BatchLost``."""

    device_id: str
    epoch: int
    candidates: tuple[Candidate, ...]
    incumbents: Mapping[str, Incumbent]
    deadline_secs: float
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShootOut:
    """Let the finalists of a task meet, and make what is found durable as revisions. ``finalists``: with the number of
    the revision that each one's record will be; the ``incumbent`` is the first, if it could be built. Ends with
    ``ShotOut`` or ``BatchLost``."""

    device_id: str
    epoch: int
    task_id: str
    finalists: tuple[tuple[Candidate, int], ...]
    incumbent: Incumbent
    rule: StopRule
    deadline_secs: float


@dataclass(frozen=True, slots=True)
class RestartDevice:
    """End the process that owns the device, which hangs; another one takes its place."""

    device_id: str


@dataclass(frozen=True, slots=True)
class RestartSearcher:
    """End the process that searches for the task, which is of no more use; another one takes its place."""

    task_id: str


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Make a trial durable that no device measured; it comes back as ``Committed``."""

    candidate: Candidate
    trace: str
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class KeepDeviceEvents:
    """Make changes of devices durable, in the order of the commands. Ends with ``DeviceEventsKept``."""

    events: tuple[DeviceEvent, ...]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Hand in every record that is durable now. Ends with ``CaughtUp``."""


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log. People are told of it while the run goes on, unless its level is ``info``; ``notice``: that
    something is well again."""

    level: Literal["info", "notice", "warning", "error"]
    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over: nothing is measured any more, and everything that was is durable. A check or a build may still
    be under way, which nobody waits for."""


@dataclass(frozen=True, slots=True)
class Abort:
    """The run cannot go on: end it with this error. What was measured is durable."""

    error: FleetTuneError


Command = (
    Propose
    | Build
    | Forget
    | Check
    | Measure
    | ShootOut
    | RestartDevice
    | RestartSearcher
    | RecordFailure
    | KeepDeviceEvents
    | CatchUp
    | Say
    | Finish
    | Abort
)
