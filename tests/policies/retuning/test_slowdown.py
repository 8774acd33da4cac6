"""Whether a network is slower than it was, by pairs with the probe."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.measuring.duel import MAX_PAIRS
from policies.retuning.slowdown import Baseline, Finding, Timed, baseline, found, has_recovered, lost_log

THEN = Baseline(10e-3, 1e-3)


def _pairs(network: float, probe: float, noise: float, seed: int) -> list[Timed]:
    rng = np.random.default_rng(seed)
    factors = np.exp(noise * rng.standard_normal((MAX_PAIRS, 2)))
    return [Timed(network * a, probe * b) for a, b in factors]


def _found(network: float, probe: float, noise: float = 0.01, seed: int = 0) -> Finding:
    pairs = _pairs(network, probe, noise, seed)
    for count in range(1, MAX_PAIRS + 1):
        finding = found(pairs[:count], THEN, 0.05, 0.25)
        if finding is not None:
            return finding
    raise AssertionError("twelve pairs decide")


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.1])
def test_a_network_as_fast_as_it_was_is_hardly_ever_called_slower(noise: float) -> None:
    findings = [_found(10e-3, 1e-3, noise, seed) for seed in range(300)]
    assert sum(each is not Finding.FINE for each in findings) <= 3


def test_what_is_slower_beside_the_probe_is_found() -> None:
    assert _found(12e-3, 1e-3) is Finding.SLOWER
    assert _found(10.2e-3, 1e-3) is Finding.FINE  # within the bound


def test_a_device_that_is_slower_altogether_has_drifted() -> None:
    assert _found(14e-3, 1.4e-3) is Finding.DRIFTED
    assert _found(11e-3, 1.1e-3) is Finding.FINE


def test_a_baseline_that_was_taken_while_it_was_slow_is_known_by_what_comes_after() -> None:
    assert has_recovered(_pairs(6e-3, 1e-3, 0.02, 0), THEN, 0.05)
    assert not has_recovered(_pairs(9.7e-3, 1e-3, 0.02, 0), THEN, 0.05)
    assert not any(has_recovered(_pairs(10e-3, 1e-3, 0.1, seed), THEN, 0.05) for seed in range(100))


def test_what_was_lost_counts_beside_the_probe() -> None:
    assert lost_log([Timed(24e-3, 2e-3)], THEN) == pytest.approx(math.log(1.2))
    assert lost_log([Timed(5e-3, 1e-3)], THEN) == 0.0
    assert baseline([Timed(1.0, 4.0), Timed(3.0, 2.0), Timed(2.0, 3.0)]) == Baseline(2.0, 3.0)
