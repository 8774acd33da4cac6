"""Bootstrap intervals over tasks. Tasks are resampled, not seeds: tasks differ far more than the seeds of one task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
INTERVAL = (0.05, 0.95)
"""Quantiles that bound an interval: it holds 90% of the resamples."""


@dataclass(frozen=True)
class Interval:
    """The geometric mean of positive values over some tasks, and the interval that holds 90% of its bootstrap
    resamples."""

    mean: float
    low: float
    high: float

    def text(self, write: Callable[[float], str]) -> str:
        """Return ``mean (low to high)``; ``write`` formats a value."""
        return f"{write(self.mean)} ({write(self.low)} to {write(self.high)})"


def over_tasks(values: Sequence[float]) -> Interval:
    """Return the geometric mean of ``values``, one for each task, with its interval. With a single task the interval is
    the value itself.

    For a paired comparison, ``values`` are the ratios of two methods on each task.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    drawn = np.random.default_rng(0).integers(len(logs), size=(RESAMPLES, len(logs)))
    low, high = np.quantile(logs[drawn].mean(axis=1), INTERVAL)
    return Interval(*(float(np.exp(each)) for each in (logs.mean(), low, high)))


def relative(values: Mapping[str, float], base: Mapping[str, float]) -> Interval:
    """Return :func:`over_tasks` of the ratios of ``values`` to ``base``, task by task."""
    return over_tasks([value / base[task] for task, value in values.items()])


def ratio(value: float) -> str:
    """Return a ratio with two decimals."""
    return f"{value:.2f}"
