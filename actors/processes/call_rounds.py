"""Rounds of kernels on a device, from which the extra time of a call in a network follows
(:mod:`devices.timing.kernel_round`)."""

from __future__ import annotations

import math

from fleet_tune.base.latency_estimate import CallSecs

# Rounds of a series, and batches from one to the next.
_ROUNDS = 3
_PAUSE = 8


class CallRounds:
    """Rounds of the incumbents of a device: when they are due, and the extra time of a call that they show.

    It does so in series: a first one, and others each time that there are twice as many incumbents, or twice as many
    batches, as before. A series has three rounds with batches in between, and the least counts: others may use the
    caches and the memory of the host for some seconds, which the probe does not tell.
    """

    def __init__(self) -> None:
        self._kernels = 0  # of the series
        self._batches = 0
        self._began = 0  # batch with which the series began
        self._left = 0  # rounds to come
        self._pause = 0  # batches until the next one
        self._least_secs = math.inf

    def is_due(self, kernels: int) -> bool:
        """Return true if so many incumbents are to run in a round with this batch; to be asked once for a batch."""
        self._batches += 1
        self._pause = max(0, self._pause - 1)
        if kernels < max(1, self._kernels):
            return False
        if kernels >= 2 * self._kernels or (not self._left and self._batches >= 2 * self._began):
            self._kernels, self._began = kernels, self._batches
            self._left, self._pause, self._least_secs = _ROUNDS, 0, math.inf
        if not self._left or self._pause:
            return False
        self._left, self._pause = self._left - 1, _PAUSE
        return True

    def timed(self, secs: float) -> CallSecs | None:
        """Take in the seconds of a call from the round. Return what is new."""
        if secs >= self._least_secs:
            return None
        self._least_secs = secs
        return CallSecs(secs, self._kernels)
