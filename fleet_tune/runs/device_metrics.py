"""Prometheus metrics of single devices: their work, their losses, and the time that they were away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from fleet_tune.base.domain import Outcome, Record
from fleet_tune.base.results import Progress

_LOST, _GOOD = "lost", "good"


@dataclass
class _Counts:
    """Work and losses of a device. All begin at 0: only then is a rate over a counter right from its first event."""

    ok: int = 0
    failed: int = 0
    measure_secs: float = 0.0
    losses: int = 0
    returns: int = 0
    away_secs: float = 0.0
    lost_at: float | None = None
    """Time at which the device was lost; None while it is not away."""


class DeviceWorkMetrics(Collector):
    """Counts what each device does. The series of a device end when it leaves the run.

    It counts in plain numbers and makes metrics of them only for a scrape, because most records come between two
    scrapes and a fleet has many devices.

    Args:
        clock: time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, _Counts] = {}
        self._states: Mapping[str, str] = {}

    def observe(self, record: Record) -> None:
        """Count the record of a trial. Revisions, and records of failed builds, which have no device, do not count."""
        device, measurement = record.device_id, record.measurement
        if not device or record.revision:
            return
        counts = self._counts.setdefault(device, _Counts())
        if measurement.outcome is Outcome.OK:
            counts.ok += 1
        else:
            counts.failed += 1
        counts.measure_secs += max(0.0, measurement.measure_secs)

    def update(self, progress: Progress) -> None:
        """Take note of the states of devices in a snapshot."""
        for device, state in progress.devices.items():
            counts = self._counts.setdefault(device, _Counts())
            if state == _LOST and self._states.get(device) not in (None, _LOST):
                counts.losses += 1
                counts.lost_at = self._clock()
            elif state == _GOOD and counts.lost_at is not None:
                counts.returns += 1
                counts.away_secs += self._clock() - counts.lost_at
                counts.lost_at = None
        self._states = dict(progress.devices)
        for device in self._counts.keys() - progress.devices.keys():
            del self._counts[device]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a scrape."""
        trials = CounterMetricFamily(
            "fleet_tune_device_trials",
            "Trials of a device whose record is durable: ok, or failed.",
            labels=["device", "result"],
        )
        measured = CounterMetricFamily(
            "fleet_tune_device_measure_seconds", "Time that a device has measured.", labels=["device"]
        )
        losses = CounterMetricFamily("fleet_tune_device_losses", "Losses of a device.", labels=["device"])
        # A summary, no histogram: the buckets of all devices would be most of the metrics of a large fleet.
        away = SummaryMetricFamily(
            "fleet_tune_device_return_seconds",
            "Time from the loss of a device until it works again.",
            labels=["device"],
        )
        for device, counts in list(self._counts.items()):  # the run goes on counting in its own thread
            trials.add_metric([device, "ok"], counts.ok)
            trials.add_metric([device, "failed"], counts.failed)
            measured.add_metric([device], counts.measure_secs)
            losses.add_metric([device], counts.losses)
            away.add_metric([device], counts.returns, counts.away_secs)
        yield from (trials, measured, losses, away)
