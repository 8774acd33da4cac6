"""Deadlines of the work on a device: the longest time of a batch or a shoot-out."""

from __future__ import annotations

from collections.abc import Iterable

# Seconds to load a kernel onto a device, or to unload it, beside what the rule allows for its runs.
_LOAD_SECS = 5.0
# The two kernels of a duel are loaded and unloaded.
_LOADS = 4
# A candidate is measured, and once more to confirm that it is the new incumbent.
_MEASUREMENTS = 2
# A duel begins no pair past the timeout, and each of the two runs of its last pair may take twice that: 1 + 2 + 2.
_DUEL_TIMEOUTS = 5
ROUND_LOAD_SECS = 5.0
"""Time to load the kernels that run in a round after a batch."""
# An oracle runs on up to three sets of inputs, and once more with twice the time if the time was not enough: 1 + 2.
_ORACLE_RUNS = 3
_ORACLE_TRIES = 1 + 2


def oracle_secs(patience_secs: float, run_secs: float) -> float:
    """Return the longest time that a device tries to run an oracle.

    Args:
        patience_secs: the device's ``oracle_secs``, which it has beside the time of its operations.
        run_secs: the longest run on one set of inputs in seconds.
    """
    return _ORACLE_TRIES * (patience_secs + _ORACLE_RUNS * run_secs)


def batch_secs(window_secs: float, limits: Iterable[float], oracles: Iterable[float]) -> float:
    """Return the longest time of a batch.

    Args:
        window_secs: the longest wait for a quiet window.
        limits: the timeout of each of its candidates in seconds.
        oracles: :func:`oracle_secs` of each of its tasks.
    """
    each_secs = list(limits)
    measuring_secs = sum((_MEASUREMENTS + _DUEL_TIMEOUTS) * secs + _LOADS * _LOAD_SECS for secs in each_secs)
    round_secs = ROUND_LOAD_SECS + _LOAD_SECS + 2 * max(each_secs, default=0.0) + 10.0
    return window_secs + measuring_secs + round_secs + sum(oracles)


def shoot_out_secs(window_secs: float, finalists: int, timeout_secs: float, oracle: float) -> float:
    """Return the longest time of a shoot-out.

    Args:
        window_secs: the longest wait for a quiet window.
        finalists: number of finalists.
        timeout_secs: the timeout of each measurement.
        oracle: :func:`oracle_secs` of the task; a process that has just begun runs the task's oracle first.
    """
    measuring_secs = finalists * (_DUEL_TIMEOUTS * timeout_secs + _LOADS * _LOAD_SECS)
    return window_secs + measuring_secs + oracle
