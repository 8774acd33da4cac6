"""Allowance of the devices' time.

In every window of 24 hours, wherever it begins, a class uses at most its share of the device time: an action begins
only if the use of the last 24 hours and the longest time of the action fit into the share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_SECS = 86400.0


@dataclass(frozen=True, slots=True)
class UsedTime:
    """A period in which so many ``devices`` of a class were used, in unix seconds."""

    device_class: str
    began: float
    ended: float
    devices: int

    def secs_after(self, unix_secs: float) -> float:
        """Device seconds of the period that lie after this time."""
        return max(0.0, self.ended - max(self.began, unix_secs)) * self.devices


@dataclass(frozen=True, slots=True)
class Hours:
    """The part of each day in which devices may be used, in seconds since midnight. Its end may be before its begin."""

    begin_secs: float
    end_secs: float

    def left_secs(self, day_secs: float) -> float:
        """Seconds until it ends; 0 outside of it. ``day_secs``: since midnight."""
        length = (self.end_secs - self.begin_secs) % WINDOW_SECS
        since = (day_secs - self.begin_secs) % WINDOW_SECS
        return max(0.0, length - since)

    def opens_in_secs(self, day_secs: float) -> float:
        """Seconds until it begins; 0 within it."""
        return 0.0 if self.left_secs(day_secs) > 0 else (self.begin_secs - day_secs) % WINDOW_SECS


def used_secs(used: Iterable[UsedTime], device_class: str, now: float) -> float:
    """Device seconds of a class that were used in the last 24 hours."""
    return sum(each.secs_after(now - WINDOW_SECS) for each in used if each.device_class == device_class)


def left_secs(used: Iterable[UsedTime], device_class: str, devices: int, share: float, now: float) -> float:
    """Device seconds of a class of so many devices that may be used from now on."""
    return max(0.0, share * WINDOW_SECS * devices - used_secs(used, device_class, now))


def free_at(
    used: Iterable[UsedTime], device_class: str, devices: int, share: float, now: float, need_secs: float
) -> float:
    """Return the unix time from which on ``need_secs`` device seconds fit; infinite if they never do. ``used``: periods
    that follow one another."""
    excess = used_secs(used, device_class, now) + need_secs - share * WINDOW_SECS * devices
    if excess <= 0:
        return now
    for each in sorted((each for each in used if each.device_class == device_class), key=lambda each: each.began):
        part = each.secs_after(now - WINDOW_SECS)
        if part >= excess:
            return max(each.began, now - WINDOW_SECS) + excess / each.devices + WINDOW_SECS
        excess -= part
    return math.inf


def still_counting(used: Iterable[UsedTime], now: float) -> list[UsedTime]:
    """Return the used times that still count: those that end within the last 24 hours."""
    return [each for each in used if each.ended > now - WINDOW_SECS]
