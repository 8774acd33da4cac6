"""The runs of a tuning in one folder. A resumed tuning counts the time of all its runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.kept_lines import KeptLines
from fleet_tune.base.results import Progress

_EVERY_SECS = 1.0
_TUNING = ("describing", "tuning", "finishing")
"""Phases of a run that count as tuning. MetaSchedule's time likewise starts at its first design space."""


class TuningRuns:
    """Start and duration of each run, kept in ``path``. The duration of a killed run is known to about a second.

    ``clock`` returns seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._kept = KeptLines(path)
        self._clock = clock
        self._key = ""
        self._run: dict[str, Any] = {}
        self._tuning_from: float | None = None

    @property
    def begins(self) -> list[float]:
        """Start of each run in seconds since 1970, oldest first."""
        return [float(run["began"]) for run in self._kept.found.values()]

    @property
    def tuning_secs(self) -> float:
        """Seconds of tuning of all runs together."""
        return float(sum(run["tuning_secs"] for run in self._kept.found.values()))

    @property
    def elapsed_secs(self) -> float:
        """Seconds of all runs together, each from its start to its end."""
        return float(sum(run["secs"] for run in self._kept.found.values()))

    @property
    def reason(self) -> str:
        """Why the last run compiled no network; empty if it did, or if there is no run."""
        runs = list(self._kept.found.values())
        return str(runs[-1]["reason"]) if runs else ""

    def begin(self) -> None:
        """Start a run."""
        self._key = f"run {len(self._kept.found) + 1}"
        self._tuning_from = None
        self._run = {"began": self._clock(), "secs": 0.0, "tuning_secs": 0.0, "reason": "it was cut"}
        self._kept.add(self._key, self._run)

    def note(self, progress: Progress) -> None:
        """Note the progress of the run, and write it at most once a second."""
        if progress.phase in _TUNING:
            if self._tuning_from is None:
                self._tuning_from = progress.elapsed_secs
            self._run = {**self._run, "tuning_secs": progress.elapsed_secs - self._tuning_from}
        if self._clock() - self._run["began"] - self._run["secs"] >= _EVERY_SECS:
            self._keep()

    def end(self, reason: str) -> None:
        """End the run; ``reason``: why it compiled no network, if it did not."""
        self._run = {**self._run, "reason": reason}
        self._keep()

    def _keep(self) -> None:
        self._run = {**self._run, "secs": self._clock() - self._run["began"]}
        self._kept.add(self._key, self._run)
