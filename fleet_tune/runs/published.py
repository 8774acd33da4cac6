"""The third value of a run: the published networks of its device classes."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_tune.base.results import NetworkResult, Progress
from fleet_tune.runs.tuned import Tuned


@dataclass(frozen=True)
class Published:
    """A run that is over."""

    tuned: Tuned
    networks: tuple[NetworkResult, ...]
    """One result for each device class. Empty if nothing was compiled."""
    progress: Progress | None
    """The last snapshot, with the records that were stored while networks were compiled."""
