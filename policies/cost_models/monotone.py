"""From the scores of a rank model to log seconds, by a monotone fit on records.

A rank model's scores only order candidates. Acquisition functions need a mean and a deviation with a unit, so the
scores are mapped by a strictly increasing, piecewise linear function: the records are sorted by score, averaged in at
most ``BINS`` bins of equal size, neighbouring bins that are out of order are pooled (isotonic regression by pooling
adjacent violators), and the function runs through the bins that are left, its *knots*. (The isotonic regressions of
scikit-learn and SciPy give no knots of their own, and merge bins of equal scores at another time.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from policies.arrays import Floats

BINS = 12
LEAST_SLOPE = 1e-3
"""Log seconds per unit of score at least, so that the order of the scores is never lost."""


@dataclass(frozen=True, eq=False)
class MonotoneMap:
    """A strictly increasing map: linear between the knots, and straight outside of them."""

    at: Floats
    """Scores, ascending, ``(k,)``."""
    values: Floats
    """Log seconds, ascending, ``(k,)``."""
    slope: float
    """Slope outside the knots."""

    @classmethod
    def fit(cls, scores: Floats, log_secs: Floats) -> Self:
        """Fit to records, both ``(n,)`` and finite; slower candidates have larger scores. Raise ValueError if there is
        no record, or if the lengths differ.

        ``slope`` is that of the straight line of least squares, at least :data:`LEAST_SLOPE`. If the scores do not grow
        with the seconds at all, all bins are pooled: one knot, and a line of the least slope through it.
        """
        if len(scores) == 0 or len(scores) != len(log_secs):
            raise ValueError(f"cannot fit {len(scores)} scores to {len(log_secs)} times")
        order = np.argsort(scores, kind="stable")
        blocks: list[tuple[float, float, int]] = []  # mean score, mean log seconds, records
        for part in np.array_split(order, min(BINS, len(order))):
            block = (float(scores[part].mean()), float(log_secs[part].mean()), len(part))
            while blocks and (blocks[-1][1] >= block[1] or blocks[-1][0] >= block[0]):
                block = _pooled(blocks.pop(), block)
            blocks.append(block)
        centred = scores - scores.mean()
        spread = float(np.square(centred).sum())
        slope = float(centred @ (log_secs - log_secs.mean())) / spread if spread > 0 else 0.0
        at, values, _ = (np.array(column) for column in zip(*blocks, strict=True))
        return cls(at, values, max(slope, LEAST_SLOPE))

    def __call__(self, scores: Floats) -> Floats:
        """Log seconds of these scores, of the same shape."""
        inside = np.interp(scores, self.at, self.values)
        below = np.minimum(scores - self.at[0], 0.0)
        above = np.maximum(scores - self.at[-1], 0.0)
        return np.asarray(inside + self.slope * (below + above))


def _pooled(first: tuple[float, float, int], second: tuple[float, float, int]) -> tuple[float, float, int]:
    count = first[2] + second[2]
    share = second[2] / count
    return first[0] + share * (second[0] - first[0]), first[1] + share * (second[1] - first[1]), count
