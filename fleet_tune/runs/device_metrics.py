"""Prometheus metrics of single devices: their work, their losses, and how long they were away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Summary

from fleet_tune.base.domain import Outcome, Record
from fleet_tune.base.results import Progress

_LOST, _GOOD = "lost", "good"


class DeviceWorkMetrics:
    """Counts what each device does. The series of a device end when it leaves the run.

    Args:
        counted: registry of counters and histograms.
        clock: time in seconds.
    """

    def __init__(self, counted: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trials = Counter(
            "fleet_tune_device_trials",
            "Trials of a device whose record is durable: ok, or failed.",
            ["device", "result"],
            registry=counted,
        )
        self._measured = Counter(
            "fleet_tune_device_measure_seconds", "Time that a device has measured.", ["device"], registry=counted
        )
        self._losses = Counter("fleet_tune_device_losses", "Losses of a device.", ["device"], registry=counted)
        # Buckets of each device would be most of what a large fleet exports.
        self._away = Summary(
            "fleet_tune_device_return_seconds",
            "Time from the loss of a device until it works again.",
            ["device"],
            registry=counted,
        )
        self._states: Mapping[str, str] = {}
        self._lost_at: dict[str, float] = {}
        self._known: set[str] = set()

    def observe(self, record: Record) -> None:
        """Count the record of a trial. A record without a device is that of a build that failed."""
        device, measurement = record.device_id, record.measurement
        if not device or record.revision:
            return
        self._add(device)
        self._trials.labels(device, "ok" if measurement.outcome is Outcome.OK else "failed").inc()
        self._measured.labels(device).inc(max(0.0, measurement.measure_secs))

    def update(self, progress: Progress) -> None:
        """Take note of the states in a snapshot."""
        for device, state in progress.devices.items():
            self._add(device)
            if state == _LOST and self._states.get(device) not in (None, _LOST):
                self._losses.labels(device).inc()
                self._lost_at[device] = self._clock()
            elif state == _GOOD and device in self._lost_at:
                self._away.labels(device).observe(self._clock() - self._lost_at.pop(device))
        self._states = dict(progress.devices)
        for device in self._known - progress.devices.keys():
            self._remove(device)

    def _add(self, device: str) -> None:
        """Show the series of a device at 0: a rate over a counter is right from its first event only then."""
        if device in self._known:
            return
        self._known.add(device)
        for result in ("ok", "failed"):
            self._trials.labels(device, result)
        for each in (self._measured, self._losses, self._away):
            each.labels(device)

    def _remove(self, device: str) -> None:
        self._known.discard(device)
        self._lost_at.pop(device, None)
        for result in ("ok", "failed"):
            self._trials.remove(device, result)
        for each in (self._measured, self._losses, self._away):
            each.remove(device)
