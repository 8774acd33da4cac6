"""The metrics endpoint of a run as a companion."""

from __future__ import annotations

from fleet_tune.base.domain import Record
from fleet_tune.base.results import Progress
from fleet_tune.runs.companion import Companion
from fleet_tune.runs.metrics import Metrics


class RunMetrics(Companion):
    """Serves the metrics of a run on a port."""

    failure = "the metrics are not served any more"

    def __init__(self, port: int) -> None:
        self._port = port
        self._metrics: Metrics | None = None

    def before(self) -> None:
        """Open the port. Raises UserError where it is taken."""
        self._metrics = Metrics(self._port)

    def on_record(self, record: Record) -> None:
        """Count the record."""
        if self._metrics is not None:
            self._metrics.observe(record)

    def on_progress(self, progress: Progress) -> None:
        """Set the gauges."""
        if self._metrics is not None:
            self._metrics.update(progress)

    def close(self) -> None:
        """Free the port."""
        if self._metrics is not None:
            self._metrics.close()
