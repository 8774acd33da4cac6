"""The Prometheus endpoint of a run: ``http://127.0.0.1:PORT/metrics``. docs/metrics.md describes every metric.

Two sources feed it: durable records as they come (:meth:`Metrics.observe`: counters and histograms of this run), and
snapshots of the session (:meth:`Metrics.update`: gauges).
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, start_http_server
from prometheus_client.registry import Collector

from fleet_tune.base.domain import Outcome, Record
from fleet_tune.base.errors import UserError
from fleet_tune.base.results import DeviceTime, ProcessRole, Progress, bound_by
from fleet_tune.base.version import __version__

ADDRESS = "127.0.0.1"
_BUILD_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60)
_MEASURE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """Serves the metrics of one run on loopback until :meth:`close`. ``port`` 0 takes a free one (see ``.port``).

    Raises :class:`UserError` where the port is taken or not allowed to this user. May be used from any thread.
    """

    def __init__(self, port: int) -> None:
        registry = CollectorRegistry()
        counted = CollectorRegistry()
        registry.register(_WithoutCreated(counted))
        info = Gauge("fleet_tune_info", "Always 1; the label tells the version.", ["version"], registry=registry)
        info.labels(__version__).set(1)
        self._trials = Counter(
            "fleet_tune_trials", "Trials of this run whose record is durable.", ["outcome"], registry=counted
        )
        for outcome in Outcome:  # a rate over a counter is right from its first trial only if 0 was scraped before
            self._trials.labels(outcome.value)
        self._build = Histogram(
            "fleet_tune_build_seconds", "Time to build a candidate.", buckets=_BUILD_BUCKETS, registry=counted
        )
        self._measure = Histogram(
            "fleet_tune_measure_seconds",
            "Time to measure a candidate on its device.",
            buckets=_MEASURE_BUCKETS,
            registry=counted,
        )
        self._rate = Gauge("fleet_tune_trials_per_second", "Trials made durable per second, lately.", registry=registry)
        self._elapsed = Gauge("fleet_tune_elapsed_seconds", "Time since the run began.", registry=registry)
        self._devices = Gauge("fleet_tune_devices", "Devices by state.", ["state"], registry=registry)
        self._device_changes = Counter(
            "fleet_tune_device_changes", "Changes of devices in this run, other than leases.", registry=counted
        )
        self._device_changes_seen = 0
        self._restarts = Counter(
            "fleet_tune_process_restarts",
            "Processes of this run that were lost and started again.",
            ["process"],
            registry=counted,
        )
        self._restarts_seen = dict.fromkeys(ProcessRole, 0)
        for role in ProcessRole:  # 0 is scraped before the first one, as above
            self._restarts.labels(role.value)
        self._vitals = {
            "temperature_celsius": Gauge(
                "fleet_tune_device_temperature_celsius",
                "Temperature of a device; absent where it is not offered.",
                ["device"],
                registry=registry,
            ),
            "clock_hertz": Gauge(
                "fleet_tune_device_clock_hertz",
                "Clock of a device; absent where it is not offered.",
                ["device"],
                registry=registry,
            ),
            "speed": Gauge(
                "fleet_tune_device_speed",
                "Speed of a device, 1 while it is as fast as usual.",
                ["device"],
                registry=registry,
            ),
        }
        self._queues = Gauge("fleet_tune_queue_length", "Items that wait, by queue.", ["queue"], registry=registry)
        self._device_time = Gauge(
            "fleet_tune_device_time_ratio",
            "Share of the time of a class's devices, lately, by what they did with it.",
            ["device_class", "use"],
            registry=registry,
        )
        self._bound = Gauge(
            "fleet_tune_bound",
            "1 for what bounds a device class now, 0 for what else might.",
            ["device_class", "use"],
            registry=registry,
        )
        task_labels = ["task", "name", "device_class"]
        self._task_trials = Gauge(
            "fleet_tune_task_trials", "Trials of a task, earlier runs included.", task_labels, registry=registry
        )
        self._task_best = Gauge(
            "fleet_tune_task_best_seconds",
            "Run time of a task's best verified candidate; absent while there is none.",
            task_labels,
            registry=registry,
        )
        self._network_best = Gauge(
            "fleet_tune_network_best_seconds",
            "Estimated latency of the network: sum of weight times best over its tasks; absent until each has one.",
            ["device_class"],
            registry=registry,
        )
        try:
            self._server, self._thread = start_http_server(port, addr=ADDRESS, registry=registry)
        except OSError as error:
            raise port_error(port, error) from error
        self.port: int = self._server.server_port

    def observe(self, record: Record) -> None:
        """Counts a record that was made durable in this run; a revision is no trial."""
        if record.revision:
            return
        measurement = record.measurement
        self._trials.labels(measurement.outcome.value).inc()
        # 0 says that the trial did not come so far.
        if measurement.build_secs > 0:
            self._build.observe(measurement.build_secs)
        if measurement.measure_secs > 0:
            self._measure.observe(measurement.measure_secs)

    def update(self, progress: Progress) -> None:
        """Shows a snapshot of the session."""
        self._rate.set(progress.records_per_sec)
        self._elapsed.set(progress.elapsed_secs)
        states: dict[str, int] = {}
        for state in progress.devices.values():
            states[state] = states.get(state, 0) + 1
        _set_all(self._devices, states)
        self._device_changes.inc(progress.device_changes - self._device_changes_seen)
        self._device_changes_seen = progress.device_changes
        for role, seen in self._restarts_seen.items():
            times = progress.restarts.get(role.value, 0)
            self._restarts.labels(role.value).inc(max(0, times - seen))
            self._restarts_seen[role] = max(times, seen)
        for device, vitals in progress.vitals.items():
            for name, value in vitals.items():
                if name in self._vitals:
                    self._vitals[name].labels(device).set(value)
        _set_all(self._queues, progress.queues)
        for device_class, shares in progress.device_time.items():
            for use in DeviceTime:
                self._device_time.labels(device_class, use.value).set(shares.get(use, 0.0))
                self._bound.labels(device_class, use.value).set(bound_by(shares) == use)
        for task in progress.tasks:
            labels = (task.task_id, task.name, task.device_class)
            self._task_trials.labels(*labels).set(task.trials)
            if math.isfinite(task.best_secs):
                self._task_best.labels(*labels).set(task.best_secs)
        for device_class, secs in progress.network_secs.items():
            if math.isfinite(secs):
                self._network_best.labels(device_class).set(secs)

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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


def port_error(port: int, error: OSError) -> UserError:
    advice = "give another port with --metrics-port"
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} of {ADDRESS} is taken by another program", advice)
    reason = os.strerror(error.errno) if error.errno else str(error)
    return UserError(f"cannot serve metrics on port {port} of {ADDRESS}: {reason}", advice)
