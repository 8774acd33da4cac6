"""The context of a run: the values that its three steps share."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_tune.base.config.request import RunRequest
from fleet_tune.runs.companion import Companion
from fleet_tune.runs.companions.shared_store import SharedStore
from fleet_tune.runs.interruption import Interruption
from fleet_tune.runs.progress_reporter import ProgressReporter


@dataclass(frozen=True)
class RunContext:
    """The values that the steps of one run share."""

    request: RunRequest
    run_id: str
    interruption: Interruption
    reporter: ProgressReporter
    store: SharedStore
    """The store that several runs share. A run may go without one."""
    companions: tuple[Companion, ...]
    """All companions of the run, the store among them."""
