"""The state machine of a device's health: an event goes in, the new state and the reason come out.

A pure state machine over :class:`fleet_tune.base.device_state.DeviceState`; every time is handed in as unix seconds.

- A device gets work only while it is online, good and active (:func:`may_work`). Unknown and suspect mean that the
  probe comes first (:func:`needs_probe`).
- An infrastructure failure (the device was lost, or its probe failed) makes it suspect; the third since it
  last proved itself quarantines it. A quarantine ends by itself, after ``PROBATION_SECS * 2 ** (earlier quarantines)``,
  at most ``MAX_PROBATION_SECS``. The device is then on probation: the next failure quarantines it again, twice as long.
- ``PROOF_RUNS`` measurements without a failure prove it: its failures and quarantines are forgotten.
- If the process on our side that owns the device is ended, this is no failure of the device. The device joins again.
- A candidate that loses two devices is *poison* (:func:`is_poison`) and is blamed, not the devices: they are acquitted
  of these failures.
- A lease is given to a device that may work and that nobody holds; its epoch is one above the last. A lease ends by its
  release, or by the loss of the device; passing the deadline counts as a loss. Later results of that epoch are then
  old, and are refused.

The ``kind`` of an event is the word under which stores keep it (:attr:`fleet_tune.base.device_state.DeviceEvent.kind`):
it does not change when the class is renamed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from fleet_tune.base.device_state import Admin, Connectivity, DeviceState, Health, Lease

QUARANTINE_LOSSES = 3
PROBATION_SECS = 15.0
MAX_PROBATION_SECS = 960.0
PROOF_RUNS = 24
HOPELESS_QUARANTINES = 4
POISON_LOSSES = 2
PROBE_EVERY_SECS = 120.0
"""Interval between the probes of a device that works."""


class NotAllowedError(ValueError):
    """The event cannot happen in this state: the caller has not looked at the state, or holds an old lease."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The device answers, for the first time or again."""

    kind: ClassVar[str] = "joined"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProbePassed:
    """The probe ran."""

    kind: ClassVar[str] = "probe_passed"
    secs: float
    """Seconds of one run."""


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The device answers, but its probe does not run."""

    kind: ClassVar[str] = "probe_failed"
    detail: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The device does not answer any more."""

    kind: ClassVar[str] = "lost"
    detail: str
    candidate_id: str = ""
    """Candidate that it was running; empty for none."""


@dataclass(frozen=True, slots=True)
class OwnerEnded:
    """The process on our side that owns the device was ended, which says nothing about the device."""

    kind: ClassVar[str] = "interrupted"
    detail: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The device gave results that say nothing against it."""

    kind: ClassVar[str] = "measured"
    count: int


@dataclass(frozen=True, slots=True)
class Acquitted:
    """A candidate turned out to be poison: it caused the loss of the device."""

    kind: ClassVar[str] = "acquitted"
    candidate_id: str


@dataclass(frozen=True, slots=True)
class ProbationBegun:
    """The quarantine is over."""

    kind: ClassVar[str] = "probation_begun"


@dataclass(frozen=True, slots=True)
class Leased:
    """A run leases the device."""

    kind: ClassVar[str] = "leased"
    owner: str
    """Id of the run."""
    secs: float
    """Longest time of the work."""


@dataclass(frozen=True, slots=True)
class Released:
    """The work under a lease ended."""

    kind: ClassVar[str] = "released"
    epoch: int
    """Epoch of the lease."""


@dataclass(frozen=True, slots=True)
class AdminChanged:
    """A person changes the use of the device."""

    kind: ClassVar[str] = "ordered"
    admin: Admin
    """DRAINING, MAINTENANCE, RETIRED, or ACTIVE for "use it again"."""
    reason: str


Event = (
    Joined
    | ProbePassed
    | ProbeFailed
    | Lost
    | OwnerEnded
    | Measured
    | Acquitted
    | ProbationBegun
    | Leased
    | Released
    | AdminChanged
)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a device's state by an event."""

    state: DeviceState
    """State after the event."""
    reason: str
    stored: bool = True
    """True if the store keeps the change. It does not keep a mere count of measurements."""


def may_work(state: DeviceState) -> bool:
    """Return true if the device may be leased: online, good, active, and free."""
    return _usable(state) and state.health is Health.GOOD and not state.lease.held


def needs_probe(state: DeviceState) -> bool:
    """Return true if the probe must run before anything else does."""
    return _usable(state) and state.health in (Health.UNKNOWN, Health.SUSPECT)


def may_return(state: DeviceState) -> bool:
    """Return true if the device is worth waiting for, however long: it works, or will be retried by itself. False for a
    device that people took out, that does not answer, or that failed its probation ``HOPELESS_QUARANTINES`` times."""
    if state.admin is not Admin.ACTIVE:
        return False
    if state.health is Health.QUARANTINED:
        return state.quarantines < HOPELESS_QUARANTINES
    return state.connectivity is Connectivity.ONLINE


def is_poison(losses: int) -> bool:
    """Return true if a candidate that ran while this many devices were lost is to blame, and not the devices."""
    return losses >= POISON_LOSSES


def may_try(lost_on: Collection[str], device_id: str, usable: Collection[str]) -> bool:
    """Return true if a candidate that lost the devices ``lost_on`` may be tried on ``device_id``: on another device if
    one of its class is ``usable``, on the same device if there is no other."""
    return device_id not in lost_on or not set(usable) - set(lost_on)


def probation_secs(quarantines: int) -> float:
    """Length of a quarantine after ``quarantines`` earlier ones: 15 s, 30 s, 60 s, ... 960 s."""
    return float(min(MAX_PROBATION_SECS, PROBATION_SECS * 2.0 ** min(quarantines, 30)))


def restored(state: DeviceState, admin: Admin, now_unix_secs: float) -> DeviceState:
    """The state at the start of a run, from the last state that an earlier run kept and from the use that people want
    now (``admin``).

    Nothing is known about a device that was not watched: it is offline, and unknown unless it was quarantined. Its
    lease is free (whoever held it is gone). The epoch is kept, so that the next one is higher. A device that was being
    drained when the last run ended is in maintenance: nobody uses it. A quarantine ends at most ``MAX_PROBATION_SECS``
    from now: the clock may have been set back since."""
    return replace(
        state,
        connectivity=Connectivity.OFFLINE,
        health=state.health if state.health is Health.QUARANTINED else Health.UNKNOWN,
        admin=Admin.MAINTENANCE if admin is Admin.DRAINING else admin,
        lease=Lease(epoch=state.lease.epoch),
        until_unix_secs=min(state.until_unix_secs, now_unix_secs + MAX_PROBATION_SECS),
    )


def step(state: DeviceState, event: Event, now_unix_secs: float) -> Change:
    """Return the state after ``event`` with the reason. An event that changes nothing gives the same state, which is
    not stored.

    Raise :class:`NotAllowedError` for a lease of a device that may not work, and for the release of an old epoch.
    """
    change = _step(state, event, now_unix_secs)
    return change if change.state != state else Change(state, change.reason, stored=False)


def _step(state: DeviceState, event: Event, now: float) -> Change:
    match event:
        case Joined(detail):
            if state.connectivity is Connectivity.ONLINE:
                return Change(state, "it answers as before")
            health = Health.SUSPECT if state.losses else Health.UNKNOWN
            if state.health is Health.QUARANTINED:
                health = Health.QUARANTINED
            joined = replace(state, connectivity=Connectivity.ONLINE, health=health)
            return Change(joined, f"it answers{_of(detail)}: probe first")
        case ProbePassed(secs):
            if not needs_probe(state):
                return Change(state, f"the probe runs in {secs * 1e3:.3g} ms")
            good = replace(state, health=Health.GOOD)
            return Change(good, f"the probe runs in {secs * 1e3:.3g} ms")
        case ProbeFailed(detail):
            return _failed(_free(state), "", f"the probe fails{_of(detail)}", now)
        case Lost(detail, candidate_id):
            if state.connectivity is Connectivity.OFFLINE:
                return Change(state, f"it does not answer{_of(detail)}")
            gone = replace(_free(state), connectivity=Connectivity.OFFLINE)
            return _failed(gone, candidate_id, f"it does not answer{_of(detail)}", now)
        case OwnerEnded(detail):
            if state.connectivity is Connectivity.OFFLINE:
                return Change(state, f"it does not answer{_of(detail)}")
            gone = replace(_free(state), connectivity=Connectivity.OFFLINE)
            return Change(gone, f"the process that owns it was ended{_of(detail)}")
        case Measured(count):
            good_runs = state.good_runs + count
            if good_runs < PROOF_RUNS or not (state.losses or state.quarantines):
                return Change(replace(state, good_runs=min(good_runs, PROOF_RUNS)), "measured", stored=False)
            proved = replace(state, losses=(), quarantines=0, good_runs=PROOF_RUNS)
            return Change(proved, f"{PROOF_RUNS} measurements without a failure: earlier ones are forgotten")
        case Acquitted(candidate_id):
            return _acquitted(state, candidate_id)
        case ProbationBegun():
            if state.health is not Health.QUARANTINED or now < state.until_unix_secs:
                return Change(state, "not quarantined, or not for long enough")
            # One failure short of the next quarantine.
            losses = state.losses[1 - QUARANTINE_LOSSES :]
            on_probation = replace(state, health=Health.SUSPECT, until_unix_secs=0.0, losses=losses)
            return Change(on_probation, "the quarantine is over: on probation, probe first")
        case Leased(owner, secs):
            if not may_work(state):
                raise NotAllowedError(
                    f"a device that is {state.word} cannot be leased" if not state.lease.held else "held"
                )
            if not owner or secs <= 0:
                raise NotAllowedError(f"a lease needs an owner and a positive time, got {owner!r} and {secs}")
            lease = Lease(owner, now + secs, state.lease.epoch + 1)
            return Change(replace(state, lease=lease), f"leased to run {owner} for {secs:.0f} s")
        case Released(epoch):
            if not state.lease.held or epoch != state.lease.epoch:
                raise NotAllowedError(f"lease {epoch} is not the one in force ({state.lease})")
            return Change(_free(state), "its work is done")
        case AdminChanged(admin, reason):
            return _ordered(state, admin, reason)


def _usable(state: DeviceState) -> bool:
    return state.connectivity is Connectivity.ONLINE and state.admin is Admin.ACTIVE


def _failed(state: DeviceState, candidate_id: str, reason: str, now: float) -> Change:
    losses = (*state.losses, candidate_id)
    failed = replace(state, losses=losses, good_runs=0)
    if state.health is Health.QUARANTINED:
        return Change(failed, reason)
    if len(losses) < QUARANTINE_LOSSES:
        return Change(replace(failed, health=Health.SUSPECT), f"{reason} (failure {len(losses)})")
    secs = probation_secs(state.quarantines)
    quarantined = replace(
        failed, health=Health.QUARANTINED, quarantines=state.quarantines + 1, until_unix_secs=now + secs
    )
    return Change(quarantined, f"{reason}: quarantined for {secs:.0f} s (time {quarantined.quarantines})")


def _acquitted(state: DeviceState, candidate_id: str) -> Change:
    losses = tuple(lost for lost in state.losses if lost != candidate_id)
    if not candidate_id or losses == state.losses:
        return Change(state, "not lost by this candidate")
    # If no loss is left, the device's quarantines were unjust too.
    quarantines = state.quarantines if losses else 0
    acquitted = replace(state, losses=losses, quarantines=quarantines)
    reason = f"lost by the fault of candidate {candidate_id[:12]}, which is poison"
    if state.health is Health.QUARANTINED and len(losses) < QUARANTINE_LOSSES:
        acquitted = replace(acquitted, health=Health.SUSPECT, quarantines=max(0, quarantines - 1), until_unix_secs=0.0)
        reason = f"{reason}: out of quarantine, probe first"
    return Change(acquitted, reason)


def _ordered(state: DeviceState, admin: Admin, reason: str) -> Change:
    if admin is Admin.ACTIVE:
        idle = state.admin is Admin.ACTIVE and state.health is not Health.QUARANTINED
        if idle:
            return Change(state, "in use already")
        # Whoever resumes a device vouches for it; the probe still decides.
        resumed = replace(
            state, admin=admin, health=Health.UNKNOWN, losses=(), quarantines=0, until_unix_secs=0.0, good_runs=0
        )
        return Change(resumed, f"resumed{_of(reason)}: probe first")
    if admin is Admin.DRAINING:
        if state.admin in (Admin.MAINTENANCE, Admin.RETIRED):
            return Change(state, f"in {state.admin} already")
        if not state.lease.held:
            return Change(replace(state, admin=Admin.MAINTENANCE), f"drained{_of(reason)}: it had nothing to do")
        return Change(replace(state, admin=admin), f"draining{_of(reason)}")
    return Change(replace(state, admin=admin), f"{admin}{_of(reason)}")


def _free(state: DeviceState) -> DeviceState:
    """Return the state without its lease. A device that was being drained is then in maintenance."""
    admin = Admin.MAINTENANCE if state.admin is Admin.DRAINING else state.admin
    return replace(state, lease=Lease(epoch=state.lease.epoch), admin=admin)


def _of(detail: str) -> str:
    return f" ({detail})" if detail else ""
