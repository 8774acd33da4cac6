"""The pace of a run: how long its steps have taken lately, and how much work should therefore be under way (Little's
law).

A device is kept busy by two batches, one on it and one ready for it, and by the candidates on their way to it: as many
as it measures in the seconds that a proposal and a build take. So the work under way for a class grows with the number
and the speed of its devices. A batch is as long as a window should be in seconds, however slow the device is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from policies.runs.plan import InFlightLimits

# Assumed seconds of a proposal and of a build while none has ended.
_FIRST_SECS = 0.5
# Weights of the last observation.
_OF_DEVICE, _OF_CLASS, _OF_STAGE = 0.3, 0.1, 0.1
# Number of grants that make up the work under way: a smaller grant is based on more recent results.
_GRANTS = 8


_DEVICES_A_SEARCHER = 64


def searchers(devices: int) -> int:
    """Return the number of searchers for this number of ``devices``, if there are as many tasks and cores."""
    return max(1, math.ceil(devices / _DEVICES_A_SEARCHER))


def builders_at_first(devices: int) -> int:
    """Return the number of builders that this number of ``devices`` may keep busy before their speed is known."""
    return Pace(InFlightLimits(), ("",)).under_way("", devices)


class Pace:
    """Moving averages of the seconds of each step. The average of a class stands for a device that has measured nothing
    yet."""

    def __init__(self, flow: InFlightLimits, classes: Iterable[str]) -> None:
        self._flow = flow
        self._first_secs = flow.target_batch_secs / flow.first_batch
        self._device_secs: dict[str, float] = {}
        self._class_secs: dict[str, float] = {}
        self._propose_secs: dict[str, float] = {}
        self._build_secs: dict[str, float] = {}
        for device_class in classes:
            self.add(device_class)

    def add(self, device_class: str) -> None:
        """Add a class of which nothing is known."""
        self._propose_secs[device_class] = self._build_secs[device_class] = _FIRST_SECS

    # What was seen ---------------------------------------------------------------------------------------------------

    def proposed(self, device_class: str, secs: float) -> None:
        """Note the seconds of a proposal for a task of this class."""
        self._propose_secs[device_class] += _OF_STAGE * (secs - self._propose_secs[device_class])

    def built(self, device_class: str, secs: float) -> None:
        """Note the seconds of a build, without its time in the queue."""
        self._build_secs[device_class] += _OF_STAGE * (secs - self._build_secs[device_class])

    def measured(self, device_id: str, device_class: str, candidates: int, secs: float) -> None:
        """Note the seconds of a batch of this number of ``candidates`` on the device."""
        if candidates < 1 or not secs > 0:
            return
        each = secs / candidates
        for known, name, share in (
            (self._device_secs, device_id, _OF_DEVICE),
            (self._class_secs, device_class, _OF_CLASS),
        ):
            before = known.setdefault(name, each)
            known[name] = before + share * (each - before)

    # What follows ----------------------------------------------------------------------------------------------------

    def candidate_secs(self, device_class: str) -> float:
        """Return the seconds of a candidate on a device of this class."""
        return self._class_secs.get(device_class, self._first_secs)

    def batch(self, device_id: str, device_class: str) -> int:
        """Return the number of candidates with which a window of the device comes nearest to its intended length, at
        least 1."""
        return self._fitting(self._device_secs.get(device_id, self.candidate_secs(device_class)))

    def least_batch(self, device_class: str) -> int:
        """Return the least number of candidates with which a batch begins while more are being built."""
        return min(self._flow.min_batch, self._fitting(self.candidate_secs(device_class)))

    def under_way(self, device_class: str, devices: int) -> int:
        """Return the number of candidates that may be under way for a class of which this number of ``devices`` can
        work."""
        # One grant more than is needed: a grant comes as a whole, and is asked for only when there is room for all of
        # it.
        needed = self._needed(device_class, devices)
        return max(self._flow.in_flight, needed + self._grant_of(needed))

    def grant(self, device_class: str, devices: int) -> int:
        """Return the number of candidates to ask for at once: an eighth of what is needed, within the limits of a
        grant."""
        return self._grant_of(self._needed(device_class, devices))

    def _grant_of(self, needed: int) -> int:
        most = max(self._flow.min_grant, self._flow.max_grant)
        return min(most, max(self._flow.min_grant, needed // _GRANTS))

    def _needed(self, device_class: str, devices: int) -> int:
        if device_class not in self._class_secs:
            return devices * self._flow.first_batch  # with more, a slow device would be busy for long
        secs = self.candidate_secs(device_class)
        on_the_way = (self._propose_secs[device_class] + self._build_secs[device_class]) / secs
        return math.ceil(devices * (2 * self._fitting(secs) + on_the_way))

    def _fitting(self, secs: float) -> int:
        return min(self._flow.max_batch, max(1, math.ceil(self._flow.target_batch_secs / secs - 0.5)))
