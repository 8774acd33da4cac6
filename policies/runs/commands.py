"""The commands of a run. Artifacts are named by a candidate's id, or by a task's id for the task's oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fleet_tune.base.device_state import DeviceEvent
from fleet_tune.base.domain import Candidate, Incumbent, Measurement, StopRule, Task
from fleet_tune.base.errors import FleetTuneError


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the searcher of a task for candidates. Ends with ``Proposed`` or ``ProposalLost``."""

    task_id: str
    count: int
    last_proposal: int
    """Number of the task's last proposal that arrived."""


@dataclass(frozen=True, slots=True)
class Build:
    """Build a candidate and keep the artifact. Ends with ``Built`` or ``BuilderLost``."""

    builder: int
    task: Task
    candidate: Candidate | None
    """The candidate; None for the task's oracle."""
    timeout_secs: float


@dataclass(frozen=True, slots=True)
class DropArtifacts:
    """Drop the artifacts of candidates, which are not needed any more."""

    candidate_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """Run the device's probe. Connect first if necessary. Ends with ``DeviceProbed``, ``DeviceProbeFailed`` or
    ``DeviceUnreachable``."""

    device_id: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure candidates on a device; their records are stored as they come. Ends with ``BatchMeasured``, ``BatchLost``
    or ``BatchPostponed``."""

    device_id: str
    epoch: int
    """Epoch of the lease under which the records are stored."""
    candidates: tuple[Candidate, ...]
    incumbents: Mapping[str, Incumbent]
    """Incumbent of each task of the batch, by the task's id."""
    deadline_secs: float
    """Time for the batch."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Seconds for measuring a candidate, by task id, if they differ from the run's rule."""


@dataclass(frozen=True, slots=True)
class ShootOut:
    """Compare the finalists of a task on a device, and make the result durable as revisions. Ends with
    ``ShootOutMeasured``, ``BatchLost`` or ``BatchPostponed``."""

    device_id: str
    epoch: int
    """Epoch of the lease under which the revisions are stored."""
    task_id: str
    finalists: tuple[tuple[Candidate, int], ...]
    """Finalists, each with the revision number of its record. The first is the incumbent, if it could be built."""
    incumbent: Incumbent
    rule: StopRule
    deadline_secs: float


@dataclass(frozen=True, slots=True)
class RestartDevice:
    """End the process that owns the device, since it hangs. Another process replaces it."""

    device_id: str


@dataclass(frozen=True, slots=True)
class RestartSearcher:
    """End the process that searches for the task, since it no longer works. Another process replaces it."""

    task_id: str


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Make the failure of a trial that no device measured durable. It comes back with ``RecordsCommitted``."""

    candidate: Candidate
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class StoreDeviceEvents:
    """Make changes of devices durable, in the order of the commands. Ends with ``DeviceEventsStored``."""

    events: tuple[DeviceEvent, ...]


@dataclass(frozen=True, slots=True)
class CatchUpRecords:
    """Hand in every record that is durable now. Ends with ``RecordsCaughtUp``."""


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log."""

    level: Literal["info", "notice", "warning", "error"]
    """Lines of any level but ``info`` are shown to people while the run goes on; ``notice`` is good news."""
    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run: nothing is measured any more, and everything that was measured is durable. A probe or a build may
    still be under way; the run does not wait for it."""


@dataclass(frozen=True, slots=True)
class Abort:
    """End the run with an error: it cannot go on. What was measured is durable."""

    error: FleetTuneError


Command = (
    Propose
    | Build
    | DropArtifacts
    | ProbeDevice
    | Measure
    | ShootOut
    | RestartDevice
    | RestartSearcher
    | RecordFailure
    | StoreDeviceEvents
    | CatchUpRecords
    | Log
    | Finish
    | Abort
)
