"""The state of a device as four separate fields, and the event of each change: what views show and the store keeps.

The fields are separate because they answer separate questions: does it answer (connectivity), can its results be
trusted (health), do people want it used (admin), who uses it now (lease). The rules by which they change are
:mod:`policies.measuring.health`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

HOT = "hot"
"""Among the readings of a device's hardware, 1 while heat lowers its clock, 0 while it does not."""


class Connectivity(enum.StrEnum):
    """Connectivity of a device: does it answer?"""

    ONLINE = "online"
    OFFLINE = "offline"


class Health(enum.StrEnum):
    """Trust in a device. Only a GOOD one gets work. The others run the probe first; a QUARANTINED one waits for its
    probation before that."""

    UNKNOWN = "unknown"
    GOOD = "good"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


class Admin(enum.StrEnum):
    """Wish of an administrator for the device. A DRAINING one finishes what it runs and is then in MAINTENANCE."""

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
    """Number of the lease. It only grows, by one with every new lease; a result of an older one is refused."""

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
    """Number of quarantines since then."""
    until_unix_secs: float = 0.0
    """End of the quarantine."""
    good_runs: int = 0
    """Measurements since the last failure."""

    @property
    def is_lost(self) -> bool:
        """True if it has worked and does not answer."""
        return self.connectivity is Connectivity.OFFLINE and bool(self.losses)

    @property
    def word(self) -> str:
        """The state in one word, for views and metrics: what keeps the device from work, or ``good``."""
        if self.admin is not Admin.ACTIVE:
            return self.admin.value
        if self.health is Health.QUARANTINED:
            return self.health.value
        if self.connectivity is Connectivity.OFFLINE:
            return "lost" if self.is_lost else "joining"
        return self.health.value


LEASE_KINDS = ("leased", "released")
"""Kinds of the events that change nothing but the lease: two for every batch of measurements."""


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
    """Number that the store gives. 0 before."""
