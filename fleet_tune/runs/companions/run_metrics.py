"""The metrics endpoint of a run as a companion."""

from __future__ import annotations

from pathlib import Path

from fleet_tune.base.domain import Record
from fleet_tune.base.results import Progress
from fleet_tune.runs.companion import Companion
from fleet_tune.runs.metrics import Metrics, RunInfo


class RunMetrics(Companion):
    """Serves the metrics of a run on a port."""

    failure = "the metrics are not served any more"

    def __init__(self, port: int, host: str, run: RunInfo, folder: Path) -> None:
        self._port, self._host, self._run, self._folder = port, host, run, folder
        self._metrics: Metrics | None = None

    def before(self) -> None:
        """Open the port. Raises UserError where it is taken."""
        self._metrics = Metrics(self._port, self._host, self._run, self._folder)

    def on_record(self, record: Record) -> None:
        """Count the record."""
        if self._metrics is not None:
            self._metrics.observe(record)

    def on_phase(self, phase: str) -> None:
        """Set the phase."""
        if self._metrics is not None:
            self._metrics.enter(phase)

    def on_progress(self, progress: Progress) -> None:
        """Set the gauges."""
        if self._metrics is not None:
            self._metrics.update(progress)

    def close(self) -> None:
        """Free the port."""
        if self._metrics is not None:
            self._metrics.close()
