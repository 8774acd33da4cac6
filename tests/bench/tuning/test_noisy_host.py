"""Tuning beside noise: how trials are counted, the noise itself, and the table."""

from __future__ import annotations

import itertools
import subprocess
import time

import pytest

from bench.processes import end_group
from bench.tuning import noisy_host
from bench.tuning.noisy_host import BENCHMARK, Noise, quiet_rate
from tests.helpers.waiting import wait_until


@pytest.mark.parametrize(
    ("trials", "noise", "rate"),
    [
        # One each second for a minute, from 0 to 60.
        ([float(at) for at in range(61)], [], 60.0),
        # None for half of it, and what came of noise is not counted.
        ([float(at) for at in range(61)], [(15.0, 45.0)], 60.0),
        # Half as many outside of the noise, which began before and ended after.
        ([float(at) for at in range(0, 61, 2)], [(-10.0, 20.0), (40.0, 99.0)], 27.0),
        ([5.0], [], None),
        ([0.0, 10.0], [(0.0, 10.0)], None),
    ],
)
def test_trials_are_counted_outside_of_the_noise(
    trials: list[float], noise: list[tuple[float, float]], rate: float | None
) -> None:
    assert quiet_rate(trials, noise) == pytest.approx(rate)


def test_the_noise_comes_and_goes_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[subprocess.Popen[bytes]] = []

    def end(child: subprocess.Popen[bytes]) -> None:
        end_group(child)
        ended.append(child)

    monkeypatch.setattr(noisy_host, "SPAN_SECS", (0.05, 0.1))
    monkeypatch.setattr(noisy_host, "end_group", end)
    before = time.time()
    with Noise(seed=1) as noise:
        wait_until(lambda: len(noise.spans) >= 2, "two spans of noise")
    assert len(ended) == len(noise.spans)
    assert all(child.returncode is not None for child in ended)
    assert all(before <= begin < end <= time.time() for begin, end in noise.spans)
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(noise.spans))


def test_its_table() -> None:
    secs = {"median": 0.004, "min": 0.003, "max": 0.005, "count": 9}
    details = {
        "model": "net",
        "noise_secs": 51.2,
        "trials_a_minute_in_quiet_time": {"quiet": 120.4, "noisy": None},
        "sides": {"quiet": {"secs": secs, "trials": 100}, "noisy": {"secs": secs, "trials": 80}},
    }
    text = BENCHMARK.table({"details": details})
    assert "| on the quiet machine | 4.00 (3.00 to 5.00) | 100 | 120 |" in text
    assert "| beside 51 s of noise | 4.00 (3.00 to 5.00) | 80 | none |" in text
