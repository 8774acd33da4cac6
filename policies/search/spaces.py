"""Spaces that a search proposes from: all candidates of a sketch, or those that a recorded dataset has of it.

A search on devices may propose any decision vector of a sketch. A search on a dataset (``bench replay``, the replay
device) has answers for measured candidates only: a :class:`policies.space.pools.Pool` lists them, and every generator
works on that list. A draft scores the pool's rows by its fitness and keeps the same share as in an open space, but
enough to choose a batch from. Annealing chains walk from row to row, and random candidates are random rows.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.arrays import Floats, Matrix
from policies.features.table import feature_names
from policies.search.annealing import AnnealingSettings, Chains
from policies.search.candidates import CandidateSet
from policies.search.draft import ENUMERATE_LIMIT, DraftSettings, Fitness, draft, evaluate
from policies.space.pools import Pool
from policies.space.sampling import (
    enumerate_all,
    mutate,
    row_keys,
    sample,
    space_size,
    unique_rows,
)

JUMP_SHARE = 0.1
"""Share of steps that go to any row: steps to neighbours alone may not reach all rows of a pool."""


def evaluate_rows(
    sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, fitness: Fitness | None = None
) -> CandidateSet:
    """Evaluate candidates (:func:`policies.search.draft.evaluate`), possibly none."""
    if len(matrix):
        return evaluate(sketch, matrix, device, fitness)
    none = np.empty(0)
    features = np.empty((0, len(feature_names(sketch, device))), dtype=np.float32)
    return CandidateSet.unpredicted(matrix, features, none, none)


def evaluated(pool: Pool, device: DeviceAbstraction) -> CandidateSet:
    """All rows of a pool in their order, with features and the analyzer's prediction; computed once for a device."""
    return pool.once(device, lambda: evaluate_rows(pool.sketch, pool.matrix, device))


class OpenSpace:
    """Every candidate of a sketch."""

    def __init__(self, sketch: Sketch, device: DeviceAbstraction) -> None:
        self.sketch = sketch
        self.device = device
        self.size = space_size(sketch)

    def nothing(self) -> CandidateSet:
        """No candidate."""
        return evaluate_rows(self.sketch, np.empty((0, self.sketch.width), dtype=np.int64), self.device)

    def draw(self, count: int, rng: np.random.Generator, excluded: Set[bytes]) -> CandidateSet:
        """Draw up to ``count`` distinct candidates uniformly, without those of the ``excluded`` keys.

        The result is smaller if draws repeat (in large spaces only): then call again.
        """
        if self.size <= ENUMERATE_LIMIT:
            drawn = rng.permutation(enumerate_all(self.sketch))
        else:
            drawn = sample(self.sketch, 2 * count + 8, rng)
            drawn = drawn[unique_rows(drawn)]
        unseen = [at for at, key in enumerate(row_keys(drawn)) if key not in excluded]
        return evaluate_rows(self.sketch, drawn[unseen[:count]], self.device)

    def draft(
        self,
        rng: np.random.Generator,
        settings: DraftSettings,
        fitness: Fitness | None,
        seeds: Matrix | None,
        excluded: Set[bytes],
        least: int,
    ) -> CandidateSet:
        """Draft candidates (:func:`policies.search.draft.draft`) without those of the ``excluded`` keys. The result has
        at least ``least`` candidates if the draft has met so many. The default fitness is the analyzer's."""
        return draft(self.sketch, self.device, rng, settings, fitness, seeds, excluded, least)

    def anneal(
        self,
        chains: Chains,
        rng: np.random.Generator,
        settings: AnnealingSettings,
        fitness: Fitness,
        keep: int,
        excluded: Set[bytes],
    ) -> CandidateSet:
        """The best ``keep`` candidates that annealing visits, without those of the ``excluded`` keys."""

        def energy(states: Matrix) -> Floats:
            return evaluate(self.sketch, states, self.device, fitness).log_secs

        best = chains.run(
            settings,
            lambda count, generator: sample(self.sketch, count, generator),
            lambda states, generator: mutate(self.sketch, states, generator, redraw_share=1.0),
            energy,
            rng,
            keep,
            excluded,
        )
        return evaluate_rows(self.sketch, best, self.device, fitness)


class PoolSpace:
    """The candidates of a pool, with the methods of :class:`OpenSpace`."""

    def __init__(self, pool: Pool, device: DeviceAbstraction) -> None:
        self.sketch = pool.sketch
        self._pool = pool
        self.device = device
        self.size = len(pool)

    def nothing(self) -> CandidateSet:
        """No candidate."""
        return evaluated(self._pool, self.device).take(np.empty(0, dtype=np.intp))

    def _scored(self, fitness: Fitness | None) -> CandidateSet:
        """All rows with their fitness, by default the analyzer's; infinite where the analyzer rules a row out, as in an
        open space."""
        candidates = evaluated(self._pool, self.device)
        if fitness is None:
            return candidates
        scores = fitness(candidates.matrix, candidates.features, candidates.analytic_log_secs)
        return replace(candidates, log_secs=np.where(np.isfinite(candidates.log_secs), scores, np.inf))

    def _unseen(self, excluded: Set[bytes]) -> NDArray[np.intp]:
        return np.array([row for row, key in enumerate(self._pool.keys) if key not in excluded], dtype=np.intp)

    def draw(self, count: int, rng: np.random.Generator, excluded: Set[bytes]) -> CandidateSet:
        """``count`` random rows that are not excluded; fewer only if fewer are left."""
        unseen = self._unseen(excluded)
        return evaluated(self._pool, self.device).take(rng.permutation(unseen)[:count])

    def draft(
        self,
        rng: np.random.Generator,
        settings: DraftSettings,
        fitness: Fitness | None,
        seeds: Matrix | None,
        excluded: Set[bytes],
        least: int,
    ) -> CandidateSet:
        """The best rows by fitness that are not excluded.

        Their number is the share ``size / (population * generations)`` of the pool, which a draft in an open space
        keeps of the evaluated candidates, but at least ``least``: a share of a small pool may be less than a batch.
        Neither ``rng`` nor ``seeds`` is used: every row is scored.
        """
        del rng, seeds
        unseen = self._unseen(excluded)
        scored = self._scored(fitness).take(unseen)
        usable = np.flatnonzero(np.isfinite(scored.log_secs))
        rows = usable if len(usable) else np.arange(len(unseen))
        rows = rows[np.argsort(scored.log_secs[rows], kind="stable")]
        kept = max(math.ceil(settings.kept_share * len(self._pool)), least)
        return scored.take(rows[:kept])

    def anneal(
        self,
        chains: Chains,
        rng: np.random.Generator,
        settings: AnnealingSettings,
        fitness: Fitness,
        keep: int,
        excluded: Set[bytes],
    ) -> CandidateSet:
        """The best ``keep`` rows that annealing visits, without the excluded ones."""
        if not len(self._pool):
            return evaluated(self._pool, self.device)
        scored = self._scored(fitness)
        neighbours = self._pool.neighbours

        def draw(count: int, generator: np.random.Generator) -> Matrix:
            return generator.integers(len(self._pool), size=(count, 1))

        def walk(states: Matrix, generator: np.random.Generator) -> Matrix:
            moved = draw(len(states), generator)
            if neighbours.shape[1]:
                near = neighbours[states[:, 0], generator.integers(neighbours.shape[1], size=len(states))]
                jump = generator.random(len(states)) < JUMP_SHARE
                moved = np.where(jump, moved[:, 0], near)[:, None]
            return moved

        rows = {self._pool.row_of[key] for key in excluded if key in self._pool.row_of}
        passed = {np.array([row], dtype=np.int64).tobytes() for row in rows}
        best = chains.run(settings, draw, walk, lambda states: scored.log_secs[states[:, 0]], rng, keep, passed)
        return scored.take(best[:, 0])


Space = OpenSpace | PoolSpace
