"""The estimated latency of a network, from the best of its tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallSecs:
    """Extra time of a call: it takes longer in a network than a kernel alone. Devices of a class have measured it."""

    secs: float
    """Mean over the kernels."""
    kernels: int
    """Number of kernels that ran in turn."""

    def replaces(self, known: CallSecs | None) -> bool:
        """Return true if this comes from more kernels, or from as many and is less: what disturbs adds to it."""
        return known is None or (-self.kernels, self.secs) < (-known.kernels, known.secs)

    def encoded(self) -> str:
        """Return it as text."""
        return f"{self.secs!r} of {self.kernels}"

    @classmethod
    def decoded(cls, text: str) -> CallSecs | None:
        """Return what :meth:`encoded` wrote; None for another text."""
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
    """Return the sum over the tasks of calls times best, and what calls take beyond that, in seconds. Tasks without a
    result are left out where they are small (:data:`SMALL_SHARE`); infinite where they are not, and where no task has a
    result.

    Args:
        tasks: of each task the calls in a run, the float operations of a call, and the seconds of its best kernel,
            infinite for none.
        call_secs: seconds that a call takes longer in a network than a kernel alone.
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
            # One without operations, which moves data alone, counts as large: nothing is known of its share.
            missing = missing if flop > 0 else math.inf
    return secs if known and missing <= SMALL_SHARE * operations else math.inf
