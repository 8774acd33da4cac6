"""The metrics endpoint of a run as a companion."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from fleet_tune.base.domain import Record
from fleet_tune.base.results import Progress
from fleet_tune.runs.companion import Companion, OngoingTuning
from fleet_tune.runs.metrics import Metrics, RunInfo
from fleet_tune.runs.metrics_targets import user_targets

_LOG = logging.getLogger(__name__)
_PUSH_EVERY_SECS = 15.0


class RunMetrics(Companion):
    """Serves the metrics of a run on a port, and sends them to a push gateway.

    Args:
        port: port on which they are served; None: they are not.
        host: address on which they are served.
        gateway: push gateway; None: none.
        run: the run.
        folder: output folder of the run.
    """

    failure = "the metrics are not pushed any more"

    def __init__(
        self,
        port: int | None,
        host: str,
        gateway: str | None,
        run: RunInfo,
        folder: Path,
    ) -> None:
        self._port, self._host, self._gateway, self._run, self._folder = port, host, gateway, run, folder
        self._metrics: Metrics | None = None
        self._problem = ""

    def before(self) -> None:
        """Open the port. Raises UserError where it is taken."""
        self._metrics = Metrics(self._port, self._host, self._run, self._folder, user_targets())

    async def during(self, tuning: OngoingTuning) -> None:
        """Push every few seconds. Tells the first failure in a row."""
        while self._gateway is not None:
            problem = await asyncio.to_thread(self._push)
            if problem and not self._problem:
                tuning.session.notice(problem, False)
            self._problem = problem
            await asyncio.sleep(_PUSH_EVERY_SECS)

    def _push(self) -> str:
        """Push. Return the problem in one line; empty for none."""
        if self._metrics is None or self._gateway is None:
            return ""
        try:
            self._metrics.push(self._gateway)
        except OSError as error:
            return f"the push gateway {self._gateway} does not take the metrics: {error}"
        return ""

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
        """Free the port, and push for the last time."""
        if self._metrics is not None:
            problem = self._push()
            if problem and not self._problem:
                _LOG.warning("%s", problem)
            self._metrics.close()
