"""Whose turn a device is, where several runs of one cluster use it: by priority, then in fair shares by weight.

Each run says again and again which devices it wants or has; what it does not say any more is over, so that a run that
was killed holds nothing for long. Shares hold among the devices of a pool, which are of one class: first by number, for
whoever takes over a device connects anew; where that does not come out even, in turns, by start-time fair queueing
(Goyal, Vin and Cheng, 1996). There a run's virtual time grows by the seconds that it has devices, divided by its
weight; the least goes first, and who comes to a pool begins with the least of those who are there: time in which
somebody wanted nothing is not saved up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

TURN_SECS = 10.0
"""In turns, a device changes hands when its run is ahead by so much virtual time."""
SILENT_SECS = 15.0
"""Who says nothing for so long has nothing and wants nothing."""
_LOOK_SECS = 1.0  # for those who are silent


@dataclass(frozen=True, slots=True)
class RunShare:
    """A run. ``title``: what people know it by. A higher ``priority`` goes first, always; ``weight``: of its share
    among those of its priority, above 0."""

    run_id: str
    title: str
    priority: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a run is told of a device. ``mine``: it may use it; ``wanted``: another one should have it as soon as what
    it does there has ended; ``awaited``: another one should have it if nothing is done there. ``behind``: the title of
    the run that has it, where it is not this one's turn."""

    mine: bool
    wanted: bool = False
    awaited: bool = False
    behind: str = ""


@dataclass(slots=True)
class _Want:
    party: RunShare
    since: float
    heard: float


@dataclass(slots=True)
class _Device:
    pool: str
    holder: _Want | None = None
    waiting: dict[str, _Want] = field(default_factory=dict)  # by run id


@dataclass(slots=True)
class _Pool:
    """By run id. ``spent``: virtual seconds, also of those that have just let go of their last device; ``held`` and
    ``claims``: numbers of devices that are held, and of those that are held or wanted, where there are any. ``left``:
    when the last claim ended."""

    spent: dict[str, float] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    weights: dict[str, float] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)


class Turns:
    """The devices of a cluster by a name that is the same for every run. Every ``now`` is in seconds."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._pools: dict[str, _Pool] = {}
        self._now = 0.0
        self._looked = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no run has or wants a device."""
        return not self._devices

    @property
    def holders(self) -> Mapping[str, str]:
        """The run id of each device that somebody has."""
        return {name: each.holder.party.run_id for name, each in self._devices.items() if each.holder is not None}

    def ask(self, party: RunShare, device: str, pool: str, now: float) -> Turn:
        """``party`` wants the device, or has it and may go on to use it. ``pool``: the devices among which shares are
        fair. Those of the first who asks while nobody else has or wants the device count."""
        self._pass(now)
        known = self._devices.setdefault(device, _Device(pool))
        self._pools.setdefault(known.pool, _Pool()).weights[party.run_id] = party.weight
        want = known.holder
        if want is None or want.party.run_id != party.run_id:
            want = known.waiting.get(party.run_id)
        if want is None:
            want = known.waiting[party.run_id] = _Want(party, self._now, self._now)
            self._enter(known.pool, party.run_id)
        want.heard, want.party = self._now, party
        self._give(known)
        holder = known.holder
        assert holder is not None
        if holder is not want:
            return Turn(False, behind=holder.party.title)
        is_due = any(self._is_due(known.pool, party, each.party) for each in known.waiting.values())
        return Turn(True, wanted=is_due, awaited=bool(known.waiting))

    def let_go(self, run_id: str, device: str, now: float) -> None:
        """The run neither has nor wants the device any more."""
        self._pass(now)
        known = self._devices.get(device)
        if known is not None:
            self._leave(device, known, run_id)

    def _pass(self, now: float) -> None:
        """Count the time since the last call, and now and then forget who is silent or has left."""
        secs, self._now = max(0.0, now - self._now), max(now, self._now)
        for pool in self._pools.values():
            for run_id, devices in pool.held.items():
                pool.spent[run_id] += secs * devices / pool.weights[run_id]
        if self._now - self._looked < _LOOK_SECS:
            return
        self._looked = self._now
        for name, device in list(self._devices.items()):
            wants = [*device.waiting.values(), *([device.holder] if device.holder is not None else [])]
            for want in wants:
                if self._is_long_ago(want.heard):
                    self._leave(name, device, want.party.run_id)
        for pool_name, pool in list(self._pools.items()):
            for run_id in [run_id for run_id, at in pool.left.items() if self._is_long_ago(at)]:
                for by_run in (pool.left, pool.spent, pool.weights):
                    by_run.pop(run_id, None)
            if not pool.spent:
                del self._pools[pool_name]

    def _is_long_ago(self, at: float) -> bool:
        return self._now - at > SILENT_SECS

    def _enter(self, name: str, run_id: str) -> None:
        pool = self._pools[name]
        pool.left.pop(run_id, None)
        if not pool.claims[run_id]:
            least = min((pool.spent[each] for each, claims in pool.claims.items() if claims), default=0.0)
            pool.spent[run_id] = max(least, pool.spent.get(run_id, 0.0))
        pool.claims[run_id] += 1

    def _leave(self, name: str, device: _Device, run_id: str) -> None:
        pool = self._pools[device.pool]
        if device.holder is not None and device.holder.party.run_id == run_id:
            device.holder = None
            pool.held -= Counter({run_id: 1})
        elif device.waiting.pop(run_id, None) is None:
            return
        pool.claims -= Counter({run_id: 1})
        if not pool.claims[run_id]:
            pool.left[run_id] = self._now
        self._give(device)
        if device.holder is None:
            del self._devices[name]

    def _give(self, device: _Device) -> None:
        """A free device goes to the first of those who wait."""
        if device.holder is not None or not device.waiting:
            return
        pool = self._pools[device.pool]

        def rank(want: _Want) -> tuple[float, float, float, float]:
            run_id = want.party.run_id
            share = pool.held[run_id] / want.party.weight
            return -want.party.priority, pool.spent[run_id], share, want.since

        first = min(device.waiting.values(), key=rank)
        device.holder = device.waiting.pop(first.party.run_id)
        pool.held[first.party.run_id] += 1

    def _is_due(self, name: str, holder: RunShare, other: RunShare) -> bool:
        """Whether a device of ``holder`` is the turn of ``other``, who waits for it."""
        if other.priority != holder.priority:
            return other.priority > holder.priority
        pool = self._pools[name]
        after, before = (pool.held[other.run_id] + 1) / other.weight, pool.held[holder.run_id] / holder.weight
        ahead_secs = pool.spent[holder.run_id] - pool.spent[other.run_id]
        return ahead_secs >= (0.0 if after < before else TURN_SECS)
