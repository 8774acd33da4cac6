"""The state of a device as four separate fields, and the event of each change: what views show and the store keeps.

The fields are separate because they answer separate questions: does it answer (connectivity), can its results be
trusted (health), do people want it used (admin), who uses it now (lease). The rules by which they change are
:mod:`policies.measuring.health`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


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
    """Who uses the device until when. ``owner``: run id, empty while nobody does. ``epoch`` only grows, by one with
    every new lease; a result that carries an older one is refused."""

    owner: str = ""
    deadline_unix_secs: float = 0.0
    epoch: int = 0

    @property
    def held(self) -> bool:
        return bool(self.owner)

    def accepts(self, epoch: int) -> bool:
        """Return true if a result of this epoch counts."""
        return self.held and epoch == self.epoch


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The four fields, and what the rules count.

    ``losses``: infrastructure failures since the device last proved itself, each with the id of the candidate that ran
    then (empty where none did). ``quarantines``: how often it was quarantined since then. ``until_unix_secs``: end of
    the quarantine. ``good_runs``: measurements since the last failure.
    """

    connectivity: Connectivity = Connectivity.OFFLINE
    health: Health = Health.UNKNOWN
    admin: Admin = Admin.ACTIVE
    lease: Lease = field(default_factory=Lease)
    losses: tuple[str, ...] = ()
    quarantines: int = 0
    until_unix_secs: float = 0.0
    good_runs: int = 0

    @property
    def word(self) -> str:
        """The state in one word, for views and metrics: what keeps the device from work, or ``good``."""
        if self.admin is not Admin.ACTIVE:
            return self.admin.value
        if self.health is Health.QUARANTINED:
            return self.health.value
        if self.connectivity is Connectivity.OFFLINE:
            return "lost" if self.losses else "joining"
        return self.health.value


LEASE_KINDS = ("leased", "released")
"""Kinds of the events that change nothing but the lease: two for every batch of measurements."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One change of a device's state. ``kind``: the name of what happened, ``reason``: why, in words; ``state``: after
    the change; ``seq`` is given by the store (0 before)."""

    device_id: str
    run_id: str
    kind: str
    reason: str
    state: DeviceState
    unix_secs: float
    seq: int = 0
