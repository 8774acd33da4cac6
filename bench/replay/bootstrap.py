"""Intervals by resampling tasks: the tasks of a set differ far more than the seeds of one task do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
INTERVAL = (0.05, 0.95)
"""Quantiles of the resamples: an interval holds 90% of them."""


@dataclass(frozen=True)
class Interval:
    """The geometric mean over some tasks of positive values, and what holds 90% of its bootstrap resamples."""

    mean: float
    low: float
    high: float

    def text(self, write: Callable[[float], str]) -> str:
        """``mean (low to high)``."""
        return f"{write(self.mean)} ({write(self.low)} to {write(self.high)})"


def over_tasks(values: Sequence[float]) -> Interval:
    """The geometric mean of ``values``, one of each task, with its interval; of one task nothing is known but itself.

    For a paired comparison, ``values`` are the ratios of two methods on each task.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    drawn = np.random.default_rng(0).integers(len(logs), size=(RESAMPLES, len(logs)))
    low, high = np.quantile(logs[drawn].mean(axis=1), INTERVAL)
    return Interval(*(float(np.exp(each)) for each in (logs.mean(), low, high)))


def relative(values: Mapping[str, float], base: Mapping[str, float]) -> Interval:
    """``values`` by task relative to those of ``base``, task by task."""
    return over_tasks([value / base[task] for task, value in values.items()])


def ratio(value: float) -> str:
    """A ratio with two decimals."""
    return f"{value:.2f}"
