"""The Prometheus endpoint of a run: ``http://HOST:PORT/metrics``. docs/metrics.md describes every metric.

Two sources feed it: each durable record (:meth:`Metrics.observe`: counters and histograms of this run), and snapshots
of the session (:meth:`Metrics.update`: gauges).

A file in the run's output folder keeps the last metrics (the textfile collector of node_exporter reads it).
:mod:`fleet_tune.runs.metrics_targets` writes the files through which Prometheus finds the endpoint while it is open.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    push_to_gateway,
    start_http_server,
    write_to_textfile,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.errors import UserError
from fleet_tune.base.results import DeviceTime, NetworkResult, ProcessRole, Progress, bound_by
from fleet_tune.base.stages import DURATION_BOUNDS
from fleet_tune.base.version import __version__
from fleet_tune.runs.device_metrics import DeviceWorkMetrics
from fleet_tune.runs.metrics_targets import publish_target
from fleet_tune.runs.prediction_quality import PredictionQuality
from fleet_tune.runs.stage_metrics import StageMetrics

LOOPBACK = "127.0.0.1"
TEXT_FILE = "metrics.prom"
PHASES = ("starting", "describing", "tuning", "finishing", "finished", "compiling", "ended")
PUSH_JOB = "fleet-tune"
_PUSH_SECS = 5.0
_LAST_TRIALS = 32
"""Number of last trials of a task by which the present cost model is judged."""


@dataclass(frozen=True)
class RunInfo:
    """Labels that identify a run."""

    network: str = ""
    run: str = ""
    """Id of the run."""
    method: str = ""
    seed: str = ""


class Metrics:
    """The metrics of one run, served until :meth:`close`.

    Args:
        port: the port; 0 takes a free one (see ``.port``). None if they are not served.
        host: address on which the endpoint listens.
        run: the run.
        folder: the folder in which the last metrics are kept; None if they are not kept.
        targets: the folder in which Prometheus looks for endpoints; None for none.

    Raises :class:`UserError` if the port is taken, if this user may not open it, or if ``host`` is not an address of
    this machine. May be used from any thread.
    """

    def __init__(
        self,
        port: int | None,
        host: str = LOOPBACK,
        run: RunInfo = RunInfo(),
        folder: Path | None = None,
        targets: Path | None = None,
    ) -> None:
        registry = CollectorRegistry()
        self._records = _RecordQueue(self._count)
        registry.register(self._records)  # before all others
        counted = CollectorRegistry()
        registry.register(_WithoutCreated(counted))
        labels = {**asdict(run), "version": __version__}
        info = Gauge("fleet_tune_run_info", "Always 1; the labels tell the run.", [*labels], registry=registry)
        info.labels(**labels).set(1)
        start = Gauge("fleet_tune_start_timestamp_seconds", "When the run began, since 1970.", registry=registry)
        start.set_to_current_time()
        self._last: Gauge | None = None
        self._phase = Gauge("fleet_tune_phase", "1 for the phase of the run.", ["phase"], registry=registry)
        self.enter("starting")
        self._registry = registry
        self._run = run
        self._folder = folder
        stages = StageMetrics()
        registry.register(stages)
        self._predictions = _PredictionMetrics()
        registry.register(self._predictions)
        self._work = DeviceWorkMetrics()
        registry.register(self._work)
        self._trials = _TrialMetrics(counted)
        self._latency = Gauge(
            "fleet_tune_network_latency_seconds",
            "Latency of a network as it was measured when it was compiled.",
            ["device_class", "variant"],
            registry=registry,
        )
        self._views = (
            _ThroughputMetrics(registry),
            _DeviceMetrics(registry, counted),
            _RestartMetrics(counted),
            _TaskMetrics(registry),
            _RuntimeMetrics(registry, folder),
            self._work,
            stages,
        )
        self.port: int | None = None
        self._served = contextlib.ExitStack()
        if port is None:
            return
        try:
            served = CollectorRegistry()
            served.register(registry)
            ProcessCollector(registry=served)
            server, thread = start_http_server(port, addr=host, registry=served)
        except OSError as error:
            raise port_error(port, error, host) from error
        for end in (thread.join, server.server_close, server.shutdown):
            self._served.callback(end)
        self.port = server.server_port
        if targets is not None:
            with contextlib.suppress(OSError):  # the address can be given to Prometheus in other ways
                address = f"{_reached_at(host)}:{self.port}"
                target = publish_target(targets, run.run, address, {"network": run.network})
                self._served.callback(target.unlink, missing_ok=True)

    def observe(self, record: Record) -> None:
        """Count a record that became durable in this run. A revision does not count as a trial."""
        if self._last is None:  # the metric is absent before the first record
            text = "When the last record of this run became durable, since 1970; absent before."
            self._last = Gauge("fleet_tune_last_record_timestamp_seconds", text, registry=self._registry)
        self._records.add(record)

    def _count(self, records: Sequence[Record], unix_secs: float) -> None:
        """Count records, the last of which became durable at ``unix_secs``."""
        if self._last is not None:
            self._last.set(unix_secs)
        for record in records:
            if not record.revision:
                self._trials.observe(record.measurement)
            self._predictions.observe(record)
            self._work.observe(record)

    def update(self, progress: Progress) -> None:
        """Show a snapshot of the session."""
        self._records.count()
        for view in self._views:
            view.update(progress)

    def enter(self, phase: str) -> None:
        """Show another phase of the run."""
        for each in PHASES:
            self._phase.labels(each).set(each == phase)

    def publish(self, networks: Sequence[NetworkResult]) -> None:
        """Show the latencies of the run's networks."""
        for network in networks:
            times = {
                "published": network.secs,
                "tuned": network.tuned_secs,
                "untuned": network.untuned_secs,
                "framework": network.framework_secs,
            }
            for which, secs in times.items():
                if secs is not None:
                    self._latency.labels(network.device_class, which).set(secs)

    def end(self) -> None:
        """Show that the run has ended."""
        self.enter("ended")
        text = "When the run ended, since 1970; absent before."
        Gauge("fleet_tune_end_timestamp_seconds", text, registry=self._registry).set_to_current_time()

    def close(self) -> None:
        """Write the last metrics into the folder, stop serving, and free the port."""
        if self._folder is not None:
            file = CollectorRegistry()
            # Labels tell the files of many runs apart; metrics of the process would collide with node_exporter's own.
            file.register(_Labelled(self._registry, {"network": self._run.network, "run": self._run.run}))
            with contextlib.suppress(OSError):  # the records matter, this file does not
                write_to_textfile(str(self._folder / TEXT_FILE), file)
        self._served.close()

    def push(self, gateway: str) -> None:
        """Send the metrics to a push gateway, ``HOST:PORT`` or its URL, where they replace the metrics of earlier runs
        of the network. Raises OSError if the gateway does not take them."""
        grouping = {"network": self._run.network or "module"}
        push_to_gateway(gateway, PUSH_JOB, self._registry, grouping, timeout=_PUSH_SECS)


class _RecordQueue(Collector):
    """Records that came since the last scrape or snapshot. They are counted together at the next one. Counted one by
    one, each record would find the metrics' code and data evicted from the caches.

    Args:
        count: counts records. Its second argument is the time of the last one, in seconds since 1970.
    """

    def __init__(self, count: Callable[[Sequence[Record], float], None]) -> None:
        self._count = count
        self._coming: deque[Record] = deque()
        self._last_unix_secs = 0.0
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        """Take in a record."""
        self._coming.append(record)
        self._last_unix_secs = time.time()

    def count(self) -> None:
        """Count the records that have come."""
        with self._lock:
            records = [self._coming.popleft() for _ in range(len(self._coming))]
            if records:
                self._count(records, self._last_unix_secs)

    def collect(self) -> Iterator[Metric]:
        """Count the records that have come, before the other metrics are collected."""
        self.count()
        yield from ()


class _TrialMetrics:
    """Outcomes and times of trials."""

    def __init__(self, counted: CollectorRegistry) -> None:
        self._trials = Counter(
            "fleet_tune_trials", "Trials of this run whose record is durable.", ["outcome"], registry=counted
        )
        for outcome in Outcome:  # a rate over a counter is right from its first trial only if 0 was scraped before
            self._trials.labels(outcome.value)
        self._build = Histogram(
            "fleet_tune_build_seconds", "Time to build a candidate.", buckets=DURATION_BOUNDS, registry=counted
        )
        self._measure = Histogram(
            "fleet_tune_measure_seconds",
            "Time to measure a candidate on its device.",
            buckets=DURATION_BOUNDS,
            registry=counted,
        )

    def observe(self, measurement: Measurement) -> None:
        """Count the measurement of a trial."""
        self._trials.labels(measurement.outcome.value).inc()
        # 0: the trial did not reach this stage.
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
        """Show a snapshot."""
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
        """Show a snapshot."""
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
        for role in ProcessRole:  # 0 must be scraped before the first restart, as for trials
            self._restarts.labels(role.value)

    def update(self, progress: Progress) -> None:
        """Show a snapshot."""
        for role, seen in self._seen.items():
            times = progress.restarts.get(role.value, 0)
            self._restarts.labels(role.value).inc(max(0, times - seen))
            self._seen[role] = max(times, seen)


class _TaskMetrics:
    """Trials and best times of tasks, and the estimated time of the network."""

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
            "Estimated latency: best times of the tasks, and what calls take; absent until those without are small.",
            ["device_class"],
            registry=registry,
        )

    def update(self, progress: Progress) -> None:
        """Show a snapshot."""
        for task in progress.tasks:
            labels = (task.name, task.device_class)
            self._trials.labels(*labels).set(task.trials)
            if math.isfinite(task.best_secs):
                self._best.labels(*labels).set(task.best_secs)
        for device_class, secs in progress.network_secs.items():
            if math.isfinite(secs):
                self._network_best.labels(device_class).set(secs)


class _RuntimeMetrics:
    """The scheduler's loop, the cost model and the size of the record store."""

    def __init__(self, registry: CollectorRegistry, folder: Path | None) -> None:
        self._registry = registry
        self._folder = folder
        self._lag = Gauge(
            "fleet_tune_scheduler_lag_seconds",
            "Longest delay of the scheduler's event loop in the last half minute.",
            registry=registry,
        )
        self._store = Gauge("fleet_tune_store_bytes", "Size of the run's record store.", registry=registry)
        self._trained: Gauge | None = None

    def update(self, progress: Progress) -> None:
        """Show a snapshot."""
        self._lag.set(progress.loop_lag_secs)
        if self._folder is not None:
            self._store.set(sum(_size(self._folder / name) for name in ("records.db", "records.db-wal")))
        if progress.model_unix_secs is not None:
            if self._trained is None:  # the metric is absent before the first model
                text = "When a cost model was last trained, since 1970; absent before."
                self._trained = Gauge("fleet_tune_model_timestamp_seconds", text, registry=self._registry)
            self._trained.set(progress.model_unix_secs)


class _PredictionMetrics(Collector):
    """Quality of the predictions, computed at each scrape instead of after each record."""

    def __init__(self) -> None:
        self._quality = PredictionQuality(_LAST_TRIALS)
        self._classes: set[str] = set()
        self._lock = threading.Lock()

    def observe(self, record: Record) -> None:
        """Take in a record."""
        with self._lock:
            self._quality.observe(record)
            self._classes.add(record.task_id.rpartition("@")[2])

    def collect(self) -> Iterator[Metric]:
        correlation = GaugeMetricFamily(
            "fleet_tune_prediction_rank_correlation",
            "Rank correlation of predicted and measured run times, of each task's last trials; absent before there are "
            "enough.",
            labels=["device_class"],
        )
        with self._lock:  # only for the copy: the run waits for this lock when a record comes
            quality, classes = self._quality.copy(), sorted(self._classes)
        for device_class in classes:
            known = quality.of_class(device_class)
            if known is not None:
                correlation.add_metric([device_class], known)
        yield correlation


class _Labelled(Collector):
    """The metrics of another registry. Samples get additional labels, unless they have labels of these names."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in metric.samples]
            yield metric


class _WithoutCreated(Collector):
    """The metrics of another registry, without the ``_created`` series that the client library adds to each counter and
    histogram. Prometheus notices a restart without them. The library's own switch would affect the whole process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _reached_at(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on ``host``."""
    if host in ("0.0.0.0", ""):
        return LOOPBACK
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _size(path: Path) -> int:
    """Return the size of a file in bytes, 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _set_all(gauge: Gauge, values: Mapping[str, int]) -> None:
    """Set the children of a gauge with one label. A child that is no longer among ``values`` stays, at 0."""
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
    """Return the error for a port that cannot be opened."""
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} of {host} is taken by another program", "give another port with --metrics-port")
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    advice = "give another port with --metrics-port"
    if host != LOOPBACK:
        advice += ", or an address of this machine with --metrics-host"
    return UserError(f"cannot serve metrics on port {port} of {host}: {reason}", advice)
