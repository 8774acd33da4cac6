"""The context of a run: the values that its three steps share."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_tune.base.config.request import RunRequest
from fleet_tune.runs.callbacks.shared_store import SharedStore
from fleet_tune.runs.interruption import Interruption
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.run_callback import RunCallback


@dataclass(frozen=True)
class RunContext:
    """The values that the steps of one run share."""

    request: RunRequest
    run_id: str
    interruption: Interruption
    reporter: ProgressReporter
    store: SharedStore
    """The store that several runs share. A run may go without one."""
    callbacks: tuple[RunCallback, ...]
    """All callbacks of the run, the store among them."""
