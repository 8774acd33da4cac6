"""Greedy selection of a batch: diverse, and away from pending candidates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats


def neighbourhood_discount(points: Floats, centres: Floats, radius: float) -> Floats:
    """Factor in [0, 1] for every point: ``prod_c (1 - exp(-|p - c|^2 / (2 radius^2)))`` over the centres, ``(n,)``.

    0 at a centre, near 1 a few radii away. Points ``(n, d)``, centres ``(m, d)``; no centre, or a radius of 0, gives 1.
    """
    if radius < 0:
        raise ValueError(f"the radius cannot be negative, got {radius}")
    if len(centres) == 0 or radius * radius == 0:  # also for a radius so small that its square is 0
        return np.ones(len(points))
    squared = (
        np.square(points).sum(axis=1)[:, None] + np.square(centres).sum(axis=1)[None, :] - 2.0 * points @ centres.T
    )
    near = np.exp(-np.maximum(squared, 0.0) / (2.0 * radius * radius))
    return np.asarray(np.prod(1.0 - near, axis=1))


def greedy(
    scores: Floats,
    components: NDArray[np.int64],
    points: Floats,
    count: int,
    alpha: float,
    radius: float,
    covered: NDArray[np.int64] | None = None,
) -> list[int]:
    """Indices of at most ``count`` candidates, the best first: AutoTVM equation 3 and a local discount.

    Maximises greedily ``sum_s score(s) + alpha * sum_j |union_s {s_j}|``: each choice adds its (normalised) score
    and ``alpha / m`` for each of its ``m`` components that no chosen candidate has yet; a score shrinks near candidates
    that were chosen before it. ``components`` ``(n, m)``; ``covered`` ``(k, m)``: components of pending candidates,
    which count as chosen. Scores that are NaN or not positive rank last, by their diversity alone; infinite ones first.
    """
    if count < 0:
        raise ValueError(f"cannot select {count} candidates")
    total = len(scores)
    if total == 0 or count == 0:
        return []
    clean = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=0.0, posinf=np.inf, neginf=0.0)
    finite = clean[np.isfinite(clean)]
    largest = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    value = np.where(np.isinf(clean), 2.0, np.maximum(clean, 0.0) / largest)
    width = max(components.shape[1], 1)
    fresh = np.ones(components.shape, dtype=bool)
    if covered is not None and len(covered):
        for column in range(components.shape[1]):
            fresh[:, column] = ~np.isin(components[:, column], covered[:, column])
    available = np.ones(total, dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(count, total):
        objective = value + alpha * fresh.sum(axis=1) / width
        objective[~available] = -np.inf
        best = int(objective.argmax())
        chosen.append(best)
        available[best] = False
        fresh &= components != components[best]
        value = value * neighbourhood_discount(points, points[best : best + 1], radius)
    return chosen
