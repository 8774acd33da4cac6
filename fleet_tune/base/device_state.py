"""The state of a device in four separate fields, and the event of each change. Views show them and the store keeps
them.

The fields are separate because they answer separate questions: does it answer (connectivity), can its results be
trusted (health), do people want it used (admin), who uses it now (lease). The rules by which they change are
:mod:`policies.measuring.health`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

HOT = "hot"
"""Name of a reading of a device's hardware: 1 while heat lowers its clock, else 0."""


class Connectivity(enum.StrEnum):
    """Connectivity of a device: does it answer?"""

    ONLINE = "online"
    OFFLINE = "offline"


class Health(enum.StrEnum):
    """Trust in a device. Only a GOOD device gets work. An UNKNOWN or SUSPECT device must run the probe first. A
    QUARANTINED device must also wait until its quarantine ends."""

    UNKNOWN = "unknown"
    GOOD = "good"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


class Admin(enum.StrEnum):
    """Use of the device as an administrator wants it. A DRAINING device finishes the work that it has begun, and is
    then in MAINTENANCE."""

    ACTIVE = "active"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Lease:
    """Right of a run to use a device until a deadline."""

    owner: str = ""
    """Run id. Empty while nobody uses the device."""
    deadline_unix_secs: float = 0.0
    epoch: int = 0
    """Number of the lease. It grows by one with every new lease; a result of an older lease is refused."""

    @property
    def held(self) -> bool:
        return bool(self.owner)

    def accepts(self, epoch: int) -> bool:
        """Return true if a result of this epoch counts."""
        return self.held and epoch == self.epoch


@dataclass(frozen=True, slots=True)
class DeviceState:
    """State of a device: the four fields, and the counts that the rules need."""

    connectivity: Connectivity = Connectivity.OFFLINE
    health: Health = Health.UNKNOWN
    admin: Admin = Admin.ACTIVE
    lease: Lease = field(default_factory=Lease)
    losses: tuple[str, ...] = ()
    """Infrastructure failures since the device last proved itself, each with the id of the candidate that ran then.
    Empty if none ran."""
    quarantines: int = 0
    """Number of quarantines since the device last proved itself."""
    until_unix_secs: float = 0.0
    """End of the quarantine."""
    good_runs: int = 0
    """Measurements since the last failure."""

    @property
    def is_lost(self) -> bool:
        """True if the device does not answer and has :attr:`losses`."""
        return self.connectivity is Connectivity.OFFLINE and bool(self.losses)

    @property
    def word(self) -> str:
        """The state in one word, for views and metrics: the reason why the device gets no work, or ``good``."""
        if self.admin is not Admin.ACTIVE:
            return self.admin.value
        if self.health is Health.QUARANTINED:
            return self.health.value
        if self.connectivity is Connectivity.OFFLINE:
            return "lost" if self.is_lost else "joining"
        return self.health.value


LEASE_KINDS = ("leased", "released")
"""Kinds of events that change only the lease. There are two for every batch of measurements."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One change of a device's state."""

    device_id: str
    run_id: str
    kind: str
    """Name of the event."""
    reason: str
    """Reason in words."""
    state: DeviceState
    """State after the change."""
    unix_secs: float
    seq: int = 0
    """Number that the store assigns. 0 for an event that is not stored yet."""
