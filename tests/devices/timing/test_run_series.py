"""Series of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from devices.timing.run_series import calm_secs


def _runs_of(*series_secs: float) -> tuple[list[int], Callable[[int], Sequence[float]]]:
    """Return the lengths of the series so far, and runs whose series have these medians, each with one slow run."""
    lengths: list[int] = []

    def run(runs: int) -> list[float]:
        lengths.append(runs)
        secs = series_secs[min(len(lengths), len(series_secs)) - 1]
        return [10 * secs, *[secs] * (runs - 1)] if runs > 2 else [secs] * runs

    return lengths, run


@pytest.mark.parametrize(
    ("first_secs", "lengths"),
    [
        (1e-7, [20_000] * 10),  # more runs in a series say nothing more
        (1e-3, [300] * 10),
        (12e-3, [25] * 10),
        (0.1, [20]),  # of 30 runs
        (0.05, [20] * 3),
        (0.7, [4]),
        (5.0, [1]),
    ],
)
def test_series_fill_the_budget(first_secs: float, lengths: list[int]) -> None:
    found, run = _runs_of(first_secs)
    assert calm_secs(run, first_secs, 3.0) == pytest.approx(first_secs)
    assert found == lengths


def test_the_least_median_counts() -> None:
    _, run = _runs_of(0.014, 0.012, 0.015, 0.013)
    assert calm_secs(run, 0.012, 3.0) == 0.012
