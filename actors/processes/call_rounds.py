"""Rounds of kernels on a device, from which the extra time of a call in a network follows
(:mod:`devices.timing.kernel_round`)."""

from __future__ import annotations

from fleet_tune.base.latency_estimate import CallSecs

_PAUSE = 8
"""Batches from one round to the next."""


class CallRounds:
    """Rounds of the incumbents of a device: when they are due, and the extra time of a call that they show.

    A round is due every few batches, and each time that the number of incumbents has doubled. The result is the least
    extra time of the rounds that had at least half as many kernels as the last one. It is the least because on a
    virtual machine extra time comes and goes for some seconds or minutes: the host moves the processors to cores with
    separate caches, or other guests use the caches.
    """

    def __init__(self) -> None:
        self._pause = 0  # batches until the next round
        self._most = 0  # incumbents of a round so far
        self._rounds: list[CallSecs] = []
        self._told: CallSecs | None = None

    def is_due(self, kernels: int) -> bool:
        """Return true if ``kernels`` incumbents are to run in a round with this batch. To be called once for each
        batch."""
        self._pause -= 1
        if not kernels or (self._pause > 0 and kernels < 2 * self._most):
            return False
        self._pause, self._most = _PAUSE, max(self._most, kernels)
        return True

    def timed(self, secs: float, kernels: int) -> CallSecs | None:
        """Take in the extra seconds of a call from a round of ``kernels``. Return the result if it has changed,
        otherwise None."""
        # An older round of fewer kernels and more seconds never counts again.
        self._rounds = [each for each in self._rounds if each.secs < secs or each.kernels > kernels]
        self._rounds.append(CallSecs(secs, kernels))
        least_secs = min(each.secs for each in self._rounds if 2 * each.kernels >= kernels)
        known, self._told = self._told, CallSecs(least_secs, kernels)
        return None if self._told == known else self._told
