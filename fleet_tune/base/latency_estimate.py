"""The estimated latency of a network, from the best of its tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallSecs:
    """Extra time of a call: a kernel takes longer in a network than alone. Devices of a class have measured it."""

    secs: float
    """Mean over the kernels."""
    kernels: int
    """Number of kernels that ran in turn."""

    def replaces(self, known: CallSecs | None) -> bool:
        """Return true if this value is to replace ``known``: it comes from more kernels, or from as many and is
        smaller. (Disturbances only add time.)"""
        return known is None or (-self.kernels, self.secs) < (-known.kernels, known.secs)

    def encoded(self) -> str:
        """Return this value as text."""
        return f"{self.secs!r} of {self.kernels}"

    @classmethod
    def decoded(cls, text: str) -> CallSecs | None:
        """Return the value that :meth:`encoded` wrote; ``None`` for any other text."""
        try:
            secs, kernels = text.split(" of ")
            found = cls(float(secs), int(kernels))
        except ValueError:
            return None
        return found if 0 <= found.secs < math.inf else None


SMALL_SHARE = 0.05
"""Share of the network's operations that tasks without a result may have together. Their first trials come late, since
they can save little."""


def estimated_secs(tasks: Iterable[tuple[float, float, float]], call_secs: float = 0.0) -> float:
    """Return the estimated latency in seconds: the sum over the tasks of their calls times (seconds of the best kernel
    plus ``call_secs``). A task without a result only adds the ``call_secs`` of its calls. The latency is infinite if no
    task has a result, or if the tasks without one are not small (:data:`SMALL_SHARE`).

    Args:
        tasks: for each task the calls in a run, the float operations of a call, and the seconds of its best kernel
            (infinite if it has none).
        call_secs: seconds by which a kernel takes longer in a network than alone.
    """
    secs = operations = missing = 0.0
    known = False
    for weight, flop, best_secs in tasks:
        operations += weight * flop
        secs += weight * call_secs
        if math.isfinite(best_secs):
            secs += weight * best_secs
            known = True
        else:
            missing += weight * flop
            # A task without operations only moves data. It counts as large, because its share is unknown.
            missing = missing if flop > 0 else math.inf
    return secs if known and missing <= SMALL_SHARE * operations else math.inf
