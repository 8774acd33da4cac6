"""Rules of the service, and the time of a decision."""

from __future__ import annotations

from dataclasses import dataclass

from policies.retuning.allowance import Hours
from policies.retuning.benefit import DAY_SECS


@dataclass(frozen=True, slots=True)
class Subject:
    """A network that is kept tuned."""

    name: str
    calls_a_day: float
    classes: frozenset[str] | None = None
    """Device classes for which it is tuned. None: all."""


@dataclass(frozen=True)
class Rules:
    """Rules of the file; see :mod:`fleet_tune.base.config.retune_file`."""

    subjects: tuple[Subject, ...]
    devices: tuple[str, ...]
    share: float = 0.1
    hours: Hours | None = None
    span_secs: float = 600.0
    payback_days: float = 30.0
    files_every_secs: float = 60.0
    devices_every_secs: float = 21600.0
    slower: float = 0.05
    drift: float = 0.25
    again_secs: float = 900.0
    age_secs: float = 90 * DAY_SECS


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time."""

    unix_secs: float
    day_secs: float
    """Seconds since midnight of this machine's time."""
