"""The gain that further trials of a task promise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policies.search.acquisition import improvement_of_secs
from policies.search.candidates import CandidateSet


class PredictedGain:
    """The expected improvement (log ratio) of a task's best candidate. A batch may offer candidates of some sketches
    only, so that the last gain of each sketch counts.

    Args:
        sketches: number of sketches.
    """

    def __init__(self, sketches: int) -> None:
        self._of_sketches = np.full(sketches, math.inf)
        #: The largest gain of the sketches that had candidates left. Infinite before any success, and until each of
        #: these sketches has offered candidates since.
        self.largest = math.inf

    def note(self, offered: Sequence[CandidateSet], best_secs: float, are_open: NDArray[np.bool_]) -> None:
        """Take in the offered candidates of a batch with their predictions, none if nothing could be predicted.

        ``best_secs``: the incumbent, infinite without one. ``are_open``: true for sketches with candidates left.
        """
        if not any(map(len, offered)):
            return
        for each in offered:
            self._of_sketches[each.sketch] = best_gain(each, best_secs)
        self.largest = float(self._of_sketches[are_open].max(initial=0.0))


def best_gain(offered: CandidateSet, best_secs: float) -> float:
    """Largest expected improvement (log ratio) of the offered candidates over the incumbent; infinite without one, 0 if
    no candidate is offered."""
    if not math.isfinite(best_secs):
        return math.inf
    return float(improvement_of_secs(offered.mean, offered.deviation, best_secs).max(initial=0.0))
