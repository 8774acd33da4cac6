"""A run callback that serves the metrics of a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

from fleet_tune.base.domain import Record
from fleet_tune.base.results import NetworkResult, Progress
from fleet_tune.runs.metrics import Metrics, RunInfo
from fleet_tune.runs.metrics_targets import user_targets
from fleet_tune.runs.run_callback import RunCallback

_LOG = logging.getLogger(__name__)
_PUSH_EVERY_SECS = 15.0


class RunMetrics(RunCallback):
    """Serves the metrics of a run on a port, and sends them to a push gateway.

    Args:
        port: port on which they are served. None if they are not served.
        host: address on which they are served.
        gateway: push gateway; None for none.
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
        self._pushes = True
        self._ended = threading.Event()
        self._pushing = threading.Thread(target=self._push_on, args=(gateway,), name="metrics-push", daemon=True)

    def before(self) -> None:
        """Open the port. Raises UserError if it is taken."""
        self._metrics = Metrics(self._port, self._host, self._run, self._folder, user_targets())
        if self._gateway is not None:
            self._pushing.start()

    def _push_on(self, gateway: str) -> None:
        """Push every few seconds until the run ends."""
        while not self._ended.wait(_PUSH_EVERY_SECS):
            self._push(gateway)

    def _push(self, gateway: str) -> None:
        """Push. Only the first failure in a row is logged."""
        assert self._metrics is not None
        try:
            self._metrics.push(gateway)
            self._pushes = True
        except (OSError, HTTPException, ValueError) as error:  # the server may be no push gateway at all
            if self._pushes:
                _LOG.warning("the push gateway %s does not take the metrics: %s", gateway, error)
            self._pushes = False

    def on_record(self, record: Record) -> None:
        """Count the record."""
        if self._metrics is not None:
            self._metrics.observe(record)

    def on_phase(self, phase: str) -> None:
        """Set the phase."""
        if self._metrics is not None:
            self._metrics.enter(phase)

    def on_published(self, networks: Sequence[NetworkResult]) -> None:
        """Set the latencies."""
        if self._metrics is not None:
            self._metrics.publish(networks)

    def on_progress(self, progress: Progress) -> None:
        """Set the gauges."""
        if self._metrics is not None:
            self._metrics.update(progress)

    def close(self) -> None:
        """Free the port, and push for the last time."""
        if self._metrics is not None:
            self._metrics.end()
            if self._gateway is not None:
                self._ended.set()
                self._pushing.join()
                self._push(self._gateway)
            self._metrics.close()
