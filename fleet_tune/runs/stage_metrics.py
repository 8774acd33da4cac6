"""Prometheus metrics of the stages of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from fleet_tune.base.results import Progress
from fleet_tune.base.stages import DURATION_BOUNDS, DurationHistogram, StageProgress


class StageMetrics(Collector):
    """Shows the last snapshot of the stages. The scheduler's process counts; if it is started again, the counts begin
    at 0, like any counter of a restarted process."""

    def __init__(self) -> None:
        self._stages: Mapping[str, StageProgress] = {}

    def update(self, progress: Progress) -> None:
        """Show a snapshot."""
        self._stages = progress.stages

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a scrape."""
        count = CounterMetricFamily(
            "fleet_tune_stage_candidates", "Candidates of each stage, by what happened.", labels=["stage", "event"]
        )
        running = GaugeMetricFamily("fleet_tune_stage_in_progress", "Candidates in each stage now.", labels=["stage"])
        durations = HistogramMetricFamily(
            "fleet_tune_stage_seconds", "Time of a proposal, build, batch on a device, or commit.", labels=["stage"]
        )
        waits = HistogramMetricFamily(
            "fleet_tune_stage_wait_seconds", "Time that a candidate waits for the stage.", labels=["stage"]
        )
        for stage, progress in self._stages.items():
            for event in ("begun", "done", "failed", "returned"):
                count.add_metric([stage, event], getattr(progress, event))
            running.add_metric([stage], progress.in_progress)
            durations.add_metric([stage], _buckets(progress.durations), progress.durations.total_secs)
            waits.add_metric([stage], _buckets(progress.waits), progress.waits.total_secs)
        yield from (count, running, durations, waits)


def _buckets(histogram: DurationHistogram) -> list[tuple[str, float]]:
    """Return the cumulative count of each upper bound."""
    bounds = [*map(str, DURATION_BOUNDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
