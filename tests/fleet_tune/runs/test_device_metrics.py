"""Metrics of single devices."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.results import Progress
from fleet_tune.runs.device_metrics import DeviceWorkMetrics
from tests.helpers.records import make_record
from tests.helpers.tasks import make_candidate


def record(device: str, number: int, outcome: Outcome = Outcome.OK, secs: float = 0.5) -> Record:
    times = (1e-3,) if outcome is Outcome.OK else ()
    measured = Measurement(outcome, times, measure_secs=secs)
    return replace(make_record(make_candidate("w@zen5", number), measured, f"{device}{number}"), device_id=device)


def progress(**devices: str) -> Progress:
    return Progress("tuning", 1.0, None, None, 0, 0, {}, 0.0, {}, devices, ())


def test_work_is_counted_by_device() -> None:
    registry = CollectorRegistry()
    metrics = DeviceWorkMetrics()
    registry.register(metrics)
    metrics.update(progress(a="good", b="good"))
    metrics.observe(record("a", 1))
    metrics.observe(record("a", 2, secs=0.25))
    metrics.observe(record("b", 3, Outcome.RUN_ERROR, 0.0))
    metrics.observe(record("", 4, Outcome.BUILD_ERROR, 0.0))
    metrics.observe(replace(record("a", 5), revision=1))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("fleet_tune_device_trials_total", device="a", result="ok") == 2
    assert value("fleet_tune_device_trials_total", device="b", result="failed") == 1
    assert value("fleet_tune_device_trials_total", device="b", result="ok") == 0
    assert value("fleet_tune_device_trials_total", device="", result="failed") is None
    assert value("fleet_tune_device_measure_seconds_total", device="a") == 0.75


def test_losses_and_returns_are_counted_and_series_end_with_the_device() -> None:
    registry, now = CollectorRegistry(), [0.0]
    metrics = DeviceWorkMetrics(lambda: now[0])
    registry.register(metrics)
    for at, state in ((0.0, "joining"), (1.0, "lost"), (2.0, "good"), (10.0, "lost"), (12.0, "lost"), (17.0, "good")):
        now[0] = at
        metrics.update(progress(a=state))
    assert registry.get_sample_value("fleet_tune_device_losses_total", {"device": "a"}) == 2
    assert registry.get_sample_value("fleet_tune_device_return_seconds_sum", {"device": "a"}) == 8.0
    assert registry.get_sample_value("fleet_tune_device_return_seconds_count", {"device": "a"}) == 2
    metrics.update(progress(b="good"))
    assert registry.get_sample_value("fleet_tune_device_losses_total", {"device": "a"}) is None
    assert registry.get_sample_value("fleet_tune_device_losses_total", {"device": "b"}) == 0
