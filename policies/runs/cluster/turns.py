"""Turns on devices that several runs of a cluster use: by priority, then in fair shares by weight.

Each run repeats its requests for the devices that it wants or has. A request that is not repeated expires, so that a
killed run holds nothing for long. Shares are fair among the devices of a pool, which are of one class. They are first
of all shares of the number of devices, since a run that takes over a device has to connect to it again. If the devices
cannot be divided evenly, runs take turns by start-time fair queueing (Goyal, Vin and Cheng, 1996): a run's virtual time
grows by the seconds that it holds devices, divided by its weight, and the run with the least virtual time goes first. A
run that comes to a pool starts with at least the least virtual time of the runs in it, so that time in which a run
wanted nothing is not saved up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

TURN_SECS = 10.0
"""Lead in virtual time at which a run hands a device over, in seconds."""
SILENT_SECS = 15.0
"""Age at which a request that was not repeated expires."""
_EXPIRY_EVERY_SECS = 1.0


@dataclass(frozen=True, slots=True)
class RunShare:
    """A run among those that share a cluster."""

    run_id: str
    title: str
    """Name of the run for people."""
    priority: int = 0
    """A run with a higher priority always goes first."""
    weight: float = 1.0
    """Weight of the run among the runs of its priority, above 0."""


@dataclass(frozen=True, slots=True)
class TurnStatus:
    """The answer to a run's request for a device."""

    granted: bool
    """True if the run may use the device."""
    yield_after_use: bool = False
    """True if another run is due: it should have the device as soon as the work under way there has ended."""
    yield_when_idle: bool = False
    """True if another run waits: it should have the device if no work is under way there."""
    holder: str = ""
    """Title of the run that has the device, if it is not granted."""


@dataclass(slots=True)
class _Claim:
    run: RunShare
    since: float
    """When the run first requested the device."""
    repeated: float
    """When the run last requested it."""


@dataclass(slots=True)
class _Device:
    pool: str
    held: _Claim | None = None
    waiting: dict[str, _Claim] = field(default_factory=dict)
    """Claims of the other runs, by run id."""


@dataclass(slots=True)
class _Pool:
    """The runs that share the devices of a class, by run id."""

    virtual_secs: dict[str, float] = field(default_factory=dict)
    """Virtual time, also of runs that have just released their last device."""
    held: Counter[str] = field(default_factory=Counter)
    """Number of devices that a run holds."""
    claims: Counter[str] = field(default_factory=Counter)
    """Number of devices that a run holds or waits for."""
    weights: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    """When the last claim of a run ended."""


class TurnArbiter:
    """Decides which run has each device of a cluster. Devices have a name that is the same for every run; every ``now``
    is in seconds."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._pools: dict[str, _Pool] = {}
        self._now = 0.0
        self._last_expiry = 0.0

    @property
    def holders(self) -> Mapping[str, str]:
        """The id of the run that has each device."""
        return {name: each.held.run.run_id for name, each in self._devices.items() if each.held is not None}

    def request(self, run: RunShare, device: str, pool: str, now: float) -> TurnStatus:
        """Request a device that a run wants, or has and may go on to use. ``pool``: name of the pool of devices among
        which shares are fair. If runs name different pools for a device, the first run that requested it decides."""
        self._pass(now)
        known = self._devices.setdefault(device, _Device(pool))
        self._pools.setdefault(known.pool, _Pool()).weights[run.run_id] = run.weight
        claim = known.held
        if claim is None or claim.run.run_id != run.run_id:
            claim = known.waiting.get(run.run_id)
        if claim is None:
            claim = known.waiting[run.run_id] = _Claim(run, self._now, self._now)
            self._enter(known.pool, run.run_id)
        claim.repeated, claim.run = self._now, run
        self._grant(known)
        held = known.held
        assert held is not None
        if held is not claim:
            return TurnStatus(False, holder=held.run.title)
        is_due = any(self._is_due(known.pool, run, each.run) for each in known.waiting.values())
        return TurnStatus(True, yield_after_use=is_due, yield_when_idle=bool(known.waiting))

    def release(self, run_id: str, device: str, now: float) -> None:
        """End the claim of a run on a device."""
        self._pass(now)
        known = self._devices.get(device)
        if known is not None:
            self._leave(device, known, run_id)

    def _pass(self, now: float) -> None:
        """Count the time since the last call, and now and then drop claims and runs that have expired."""
        secs, self._now = max(0.0, now - self._now), max(now, self._now)
        for pool in self._pools.values():
            for run_id, devices in pool.held.items():
                pool.virtual_secs[run_id] += secs * devices / pool.weights[run_id]
        if self._now - self._last_expiry < _EXPIRY_EVERY_SECS:
            return
        self._last_expiry = self._now
        for name, device in list(self._devices.items()):
            claims = [*device.waiting.values(), *([device.held] if device.held is not None else [])]
            for claim in claims:
                if self._is_expired(claim.repeated):
                    self._leave(name, device, claim.run.run_id)
        for pool_name, pool in list(self._pools.items()):
            for run_id in [run_id for run_id, at in pool.ended.items() if self._is_expired(at)]:
                for by_run in (pool.ended, pool.virtual_secs, pool.weights):
                    by_run.pop(run_id, None)
            if not pool.virtual_secs:
                del self._pools[pool_name]

    def _is_expired(self, at: float) -> bool:
        return self._now - at > SILENT_SECS

    def _enter(self, name: str, run_id: str) -> None:
        pool = self._pools[name]
        pool.ended.pop(run_id, None)
        if not pool.claims[run_id]:
            least = min((pool.virtual_secs[each] for each, claims in pool.claims.items() if claims), default=0.0)
            pool.virtual_secs[run_id] = max(least, pool.virtual_secs.get(run_id, 0.0))
        pool.claims[run_id] += 1

    def _leave(self, name: str, device: _Device, run_id: str) -> None:
        pool = self._pools[device.pool]
        if device.held is not None and device.held.run.run_id == run_id:
            device.held = None
            pool.held -= Counter({run_id: 1})
        elif device.waiting.pop(run_id, None) is None:
            return
        pool.claims -= Counter({run_id: 1})
        if not pool.claims[run_id]:
            pool.ended[run_id] = self._now
        self._grant(device)
        if device.held is None:
            del self._devices[name]

    def _grant(self, device: _Device) -> None:
        """Grant a free device to the first of the runs that wait."""
        if device.held is not None or not device.waiting:
            return
        pool = self._pools[device.pool]

        def rank(claim: _Claim) -> tuple[float, float, float, float]:
            run_id = claim.run.run_id
            share = pool.held[run_id] / claim.run.weight
            return -claim.run.priority, pool.virtual_secs[run_id], share, claim.since

        first = min(device.waiting.values(), key=rank)
        device.held = device.waiting.pop(first.run.run_id)
        pool.held[first.run.run_id] += 1

    def _is_due(self, name: str, holder: RunShare, other: RunShare) -> bool:
        """Return true if a device of ``holder`` should go to ``other``, which waits for it."""
        if other.priority != holder.priority:
            return other.priority > holder.priority
        pool = self._pools[name]
        after, before = (pool.held[other.run_id] + 1) / other.weight, pool.held[holder.run_id] / holder.weight
        ahead_secs = pool.virtual_secs[holder.run_id] - pool.virtual_secs[other.run_id]
        return ahead_secs >= (0.0 if after < before else TURN_SECS)
