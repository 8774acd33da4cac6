"""The Prometheus endpoint of a run: ``http://HOST:PORT/metrics``. docs/metrics.md describes every metric.

Two sources feed it: durable records as they come (:meth:`Metrics.observe`: counters and histograms of this run), and
snapshots of the session (:meth:`Metrics.update`: gauges).

Two files in the run's output folder go with it: one by which Prometheus finds the endpoint while it is there (file_sd),
and one with the last metrics, which stays (the textfile collector of node_exporter reads it).
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    start_http_server,
    write_to_textfile,
)
from prometheus_client.registry import Collector

from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.errors import UserError
from fleet_tune.base.results import DeviceTime, ProcessRole, Progress, bound_by
from fleet_tune.base.version import __version__

LOOPBACK = "127.0.0.1"
TARGETS_FILE = "metrics-targets.json"
TEXT_FILE = "metrics.prom"
PHASES = ("starting", "describing", "tuning", "finishing", "finished", "compiling")
_BUCKETS = (*(factor * 10.0**power for power in range(-4, 2) for factor in (1, 2, 5)), 100.0)


@dataclass(frozen=True)
class RunInfo:
    """Labels that tell a run from others."""

    network: str = ""
    run: str = ""
    """Id of the run."""
    method: str = ""
    seed: str = ""


class Metrics:
    """Serves the metrics of one run until :meth:`close`.

    Args:
        port: 0 takes a free one (see ``.port``).
        host: address on which it listens.
        run: the run.
        folder: where its two files are kept; None: nowhere.

    Raises :class:`UserError` where the port is taken or not allowed to this user, or the host has no such address. May
    be used from any thread.
    """

    def __init__(self, port: int, host: str = LOOPBACK, run: RunInfo = RunInfo(), folder: Path | None = None) -> None:
        registry = CollectorRegistry()
        counted = CollectorRegistry()
        registry.register(_WithoutCreated(counted))
        ProcessCollector(registry=registry)
        labels = {**asdict(run), "version": __version__}
        info = Gauge("fleet_tune_run_info", "Always 1; the labels tell the run.", [*labels], registry=registry)
        info.labels(**labels).set(1)
        start = Gauge("fleet_tune_start_timestamp_seconds", "When the run began, since 1970.", registry=registry)
        start.set_to_current_time()
        self._last: Gauge | None = None
        self._phase = Gauge("fleet_tune_phase", "1 for the phase of the run.", ["phase"], registry=registry)
        self.enter("starting")
        self._registry = registry
        self._folder = folder
        self._trials = _TrialMetrics(counted)
        self._views = (
            _ThroughputMetrics(registry),
            _DeviceMetrics(registry, counted),
            _RestartMetrics(counted),
            _TaskMetrics(registry),
        )
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise port_error(port, error, host) from error
        self.port: int = self._server.server_port
        if folder is not None:
            targets = [{"targets": [f"{host}:{self.port}"], "labels": {"network": run.network}}]
            with contextlib.suppress(OSError):  # Prometheus can be told the address otherwise
                (folder / TARGETS_FILE).write_text(json.dumps(targets))

    def observe(self, record: Record) -> None:
        """Counts a record that was made durable in this run; a revision is no trial."""
        if self._last is None:  # absent before the first one
            text = "When the last record of this run became durable, since 1970; absent before."
            self._last = Gauge("fleet_tune_last_record_timestamp_seconds", text, registry=self._registry)
        self._last.set_to_current_time()
        if not record.revision:
            self._trials.observe(record.measurement)

    def update(self, progress: Progress) -> None:
        """Shows a snapshot of the session."""
        for view in self._views:
            view.update(progress)

    def enter(self, phase: str) -> None:
        """Shows another phase of the run."""
        for each in PHASES:
            self._phase.labels(each).set(each == phase)

    def close(self) -> None:
        """Stops serving, frees the port, and leaves the last metrics in the folder."""
        if self._folder is not None:
            with contextlib.suppress(OSError):  # the records are what counts
                write_to_textfile(str(self._folder / TEXT_FILE), self._registry)
                (self._folder / TARGETS_FILE).unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _TrialMetrics:
    """Outcomes and times of trials."""

    def __init__(self, counted: CollectorRegistry) -> None:
        self._trials = Counter(
            "fleet_tune_trials", "Trials of this run whose record is durable.", ["outcome"], registry=counted
        )
        for outcome in Outcome:  # a rate over a counter is right from its first trial only if 0 was scraped before
            self._trials.labels(outcome.value)
        self._build = Histogram(
            "fleet_tune_build_seconds", "Time to build a candidate.", buckets=_BUCKETS, registry=counted
        )
        self._measure = Histogram(
            "fleet_tune_measure_seconds",
            "Time to measure a candidate on its device.",
            buckets=_BUCKETS,
            registry=counted,
        )

    def observe(self, measurement: Measurement) -> None:
        """Counts the measurement of a trial."""
        self._trials.labels(measurement.outcome.value).inc()
        # 0 says that the trial did not come so far.
        if measurement.build_secs > 0:
            self._build.observe(measurement.build_secs)
        if measurement.measure_secs > 0:
            self._measure.observe(measurement.measure_secs)


class _ThroughputMetrics:
    """Speed of the run and its queues."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rate = Gauge("fleet_tune_trials_per_second", "Trials made durable per second, lately.", registry=registry)
        self._queues = Gauge("fleet_tune_queue_length", "Items that wait, by queue.", ["queue"], registry=registry)

    def update(self, progress: Progress) -> None:
        """Shows a snapshot."""
        self._rate.set(progress.records_per_sec)
        _set_all(self._queues, progress.queues)


class _DeviceMetrics:
    """States, hardware readings and use of devices."""

    def __init__(self, registry: CollectorRegistry, counted: CollectorRegistry) -> None:
        self._devices = Gauge("fleet_tune_devices", "Devices by state.", ["state"], registry=registry)
        self._changes = Counter(
            "fleet_tune_device_changes", "Changes of devices in this run, other than leases.", registry=counted
        )
        self._changes_seen = 0

        def of_device(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["device"], registry=registry)

        self._vitals = {
            "temperature_celsius": of_device(
                "fleet_tune_device_temperature_celsius",
                "Temperature of a device; absent where it is not offered.",
            ),
            "clock_hertz": of_device(
                "fleet_tune_device_clock_hertz", "Clock of a device; absent where it is not offered."
            ),
            "speed": of_device("fleet_tune_device_speed", "Speed of a device, 1 while it is as fast as usual."),
        }
        self._time = Gauge(
            "fleet_tune_device_time_ratio",
            "Share of the time of a class's devices, lately, by what they did with it.",
            ["device_class", "use"],
            registry=registry,
        )
        self._limit = Gauge(
            "fleet_tune_limited_by",
            "1 for what limits a device class now, 0 for what else might.",
            ["device_class", "use"],
            registry=registry,
        )

    def update(self, progress: Progress) -> None:
        """Shows a snapshot."""
        _set_all(self._devices, Tally(progress.devices.values()))
        self._changes.inc(progress.device_changes - self._changes_seen)
        self._changes_seen = progress.device_changes
        for name, gauge in self._vitals.items():
            known = {device: vitals[name] for device, vitals in progress.vitals.items() if name in vitals}
            _remove_others(gauge, known)
            for device, value in known.items():
                gauge.labels(device).set(value)
        for device_class, shares in progress.device_time.items():
            for use in DeviceTime:
                self._time.labels(device_class, use.value).set(shares.get(use, 0.0))
                self._limit.labels(device_class, use.value).set(bound_by(shares) == use)


class _RestartMetrics:
    """Restarts of the run's processes."""

    def __init__(self, counted: CollectorRegistry) -> None:
        self._restarts = Counter(
            "fleet_tune_process_restarts",
            "Processes of this run that were lost and started again.",
            ["process"],
            registry=counted,
        )
        self._seen = dict.fromkeys(ProcessRole, 0)
        for role in ProcessRole:  # 0 is scraped before the first one, as of trials
            self._restarts.labels(role.value)

    def update(self, progress: Progress) -> None:
        """Shows a snapshot."""
        for role, seen in self._seen.items():
            times = progress.restarts.get(role.value, 0)
            self._restarts.labels(role.value).inc(max(0, times - seen))
            self._seen[role] = max(times, seen)


class _TaskMetrics:
    """Trials and best times of tasks, and of the network that is made of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["task", "device_class"]
        self._trials = Gauge(
            "fleet_tune_task_trials", "Trials of a task, earlier runs included.", labels, registry=registry
        )
        self._best = Gauge(
            "fleet_tune_task_best_seconds",
            "Run time of a task's best verified candidate; absent while there is none.",
            labels,
            registry=registry,
        )
        self._network_best = Gauge(
            "fleet_tune_network_best_seconds",
            "Estimated latency: sum of weight times best over tasks; absent until those without are small.",
            ["device_class"],
            registry=registry,
        )

    def update(self, progress: Progress) -> None:
        """Shows a snapshot."""
        for task in progress.tasks:
            labels = (task.name, task.device_class)
            self._trials.labels(*labels).set(task.trials)
            if math.isfinite(task.best_secs):
                self._best.labels(*labels).set(task.best_secs)
        for device_class, secs in progress.network_secs.items():
            if math.isfinite(secs):
                self._network_best.labels(device_class).set(secs)


class _WithoutCreated(Collector):
    """The metrics of another registry, without the ``_created`` series that the client library adds to each counter and
    histogram: a scrape knows the time of a restart without them, and the library's own switch is process-wide."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _set_all(gauge: Gauge, values: Mapping[str, int]) -> None:
    """Sets the children of a gauge with one label; a child that is not among ``values`` any more stays, at 0."""
    shown = {label for metric in gauge.collect() for sample in metric.samples for label in sample.labels.values()}
    for label in shown - values.keys():
        gauge.labels(label).set(0)
    for label, value in values.items():
        gauge.labels(label).set(value)


def _remove_others(gauge: Gauge, known: Iterable[str]) -> None:
    """Remove the children of a gauge with one label that are not ``known`` any more."""
    shown = {label for metric in gauge.collect() for sample in metric.samples for label in sample.labels.values()}
    for label in shown - set(known):
        gauge.remove(label)


def port_error(port: int, error: OSError, host: str = LOOPBACK) -> UserError:
    """Return the error where a port cannot be served."""
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} of {host} is taken by another program", "give another port with --metrics-port")
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    advice = "give another port with --metrics-port"
    if host != LOOPBACK:
        advice += ", or an address of this machine with --metrics-host"
    return UserError(f"cannot serve metrics on port {port} of {host}: {reason}", advice)
