"""The Prometheus endpoint of the service. A scrape gets its present state. docs/metrics.md describes every metric."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fleet_tune.retuning.service import Service
from fleet_tune.retuning.step_runner import StepRunner
from fleet_tune.runs.metrics import LOOPBACK, port_error
from policies.retuning import allowance

_OF = ("network", "device_class")


class RetuneMetrics(Collector):
    """Serves the metrics of a service until :meth:`close`. ``port`` 0 takes a free port. Raises :class:`UserError` if
    the port is taken, or the host is not an address of this machine."""

    def __init__(self, service: Service, steps: StepRunner, port: int, host: str = LOOPBACK) -> None:
        self._service = service
        self._steps = steps
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise port_error(port, error, host) from error
        self.port: int = self._server.server_port

    def collect(self) -> Iterator[Metric]:
        service, now = self._service, self._steps.moment().unix_secs
        retuner, state = service.retuner, service.state
        latency = _gauge("latency_seconds", "Latency of the current version when it was published.", _OF)
        version = _gauge("version", "Number of the current version.", _OF)
        saved = _gauge("next_hour_saved_seconds", "What an hour of a device is expected to save of a call.", _OF)
        a_day = _gauge("next_hour_saved_seconds_per_day", "The same of all calls of a day.", _OF)
        rolled_back = _gauge("rolled_back", "1 where an older version than the newest is the current one.", _OF)
        failures = _gauge("failures", "Runs that failed in a row.", _OF)
        bound = _gauge("bound_seconds", "Within what a trigger is acted on, if devices answer and nothing fails.", _OF)
        unreadable = _gauge("unreadable", "1 where the network's file cannot be read.", _OF[:1])
        for name in retuner.view.subjects:
            unreadable.add_metric([name], name in state.file_problems)
        pending = _gauge("pending_since_timestamp_seconds", "When a trigger was seen that waits.", (*_OF, "trigger"))
        for each in retuner.view.active():
            labels = [each.network, each.device_class]
            failures.add_metric(labels, each.failures)
            bound.add_metric(labels, retuner.valuation.bound_secs(each))
            for trigger in list(each.pending):
                pending.add_metric([*labels, str(trigger.trigger)], trigger.since)
            if each.version is not None:
                version.add_metric(labels, each.version)
                rolled_back.add_metric(labels, service.repository.is_rolled_back(*labels))
            if each.secs is not None:
                value = retuner.valuation.next_hour(each, now)
                latency.add_metric(labels, each.secs)
                saved.add_metric(labels, value.saved_secs)
                a_day.add_metric(labels, value.saved_secs_a_day)
        used = _gauge("used_ratio", "Share of its devices' time that was used in the last 24 hours.", _OF[1:])
        classes: dict[str, int] = {}
        for device in list(state.devices):
            if device.device_class:
                classes[device.device_class] = classes.get(device.device_class, 0) + 1
        for name, count in classes.items():
            secs = allowance.used_secs(list(state.used), name, now)
            used.add_metric([name], secs / (allowance.WINDOW_SECS * count))
        devices = _gauge("devices", "Devices by whether they answered when they were asked last.", ("state",))
        lost = sum(1 for device in list(state.devices) if device.problem)
        devices.add_metric(["good"], len(state.devices) - lost)
        devices.add_metric(["lost"], lost)
        share = _gauge("share_ratio", "Share of its devices' time that may be used.", ())
        share.add_metric([], retuner.rules.share)
        late = _gauge("late_seconds", "By how much what it does takes longer than it may.", ())
        late.add_metric([], service.late_secs(now))
        yield from (latency, version, rolled_back, saved, a_day, failures, unreadable, pending, bound, used, share)
        yield from (devices, late)
        for name, text, count in (
            ("published", "Versions that were published.", state.published),
            ("hook_failures", "Publishes whose hook failed.", state.hook_failures),
        ):
            yield CounterMetricFamily(f"fleet_tune_retune_{name}", text, value=count)

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fleet_tune_retune_{name}", text, labels=labels)
