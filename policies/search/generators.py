"""Where candidates come from: the generators that a preset chooses from, behind one interface.

A generator offers candidates of one sketch that are neither measured nor pending; :mod:`policies.search.batch` selects
among them. Which space it offers from, the whole sketch or a pool, is the space's business
(:mod:`policies.search.pools`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policies.analysis.quantities import Floats
from policies.search.acquisition import ACQUISITIONS
from policies.search.annealing import Chains
from policies.search.draft import Drafted
from policies.search.methods import Preset
from policies.search.pools import Space
from policies.search.prediction import Predictor
from policies.search.task_records import TaskRecords
from policies.space.sampling import Matrix

SEEDS = 16
"""Best measured candidates of a sketch, from which a genetic search starts again."""


class Generator(Protocol):
    """Offers candidates of one sketch."""

    def offer(self, sketch: int, sketches: int, count: int) -> Drafted:
        """Distinct candidates, neither measured nor pending, the best first by the generator's own measure.

        ``sketches``: how many sketches share this batch, so that it takes about the time of one; ``count``: how many
        will be taken at most. Fewer come back where the space has no more, and none where the generator knows nothing
        to go by: then the batch is random.
        """
        ...


@dataclass(frozen=True)
class Search:
    """What generators work on: the parts of one task's search."""

    spaces: Sequence[Space]
    records: TaskRecords
    predictor: Predictor
    preset: Preset
    rng: np.random.Generator


class GeneticGenerator:
    """A genetic search on the predictor's mean: Pruner's draft with the analyzer's say, Ansor's without.

    Without it nothing is offered until there is a first model.
    """

    def __init__(self, search: Search) -> None:
        self._search = search

    def offer(self, sketch: int, sketches: int, count: int) -> Drafted:
        """See :class:`Generator`."""
        del count  # the draft's size is the preset's
        search = self._search
        space, known = search.spaces[sketch], search.records.known(sketch)
        if search.preset.generator == "genetic" and not search.predictor.has_model:
            return space.nothing()
        return space.draft(
            search.rng,
            search.preset.draft.shared_by(sketches),
            search.predictor.fitness(sketch),
            search.records.best_rows(sketch, SEEDS),
            known,
        )


class LatentGenerator:
    """Pruner's latent schedule explorer: a genetic search on the analyzer alone, as it is before any record."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def offer(self, sketch: int, sketches: int, count: int) -> Drafted:
        """See :class:`Generator`."""
        del count  # the draft's size is the preset's
        search = self._search
        return search.spaces[sketch].draft(
            search.rng,
            search.preset.draft.shared_by(sketches),
            None,
            search.records.best_rows(sketch, SEEDS),
            search.records.known(sketch),
        )


class AnnealingGenerator:
    """Simulated annealing (AutoTVM); nothing is offered until there is a first model.

    The energy is minus what the acquisition function makes of the model's prediction: the predicted log seconds, or
    AdaTune's expected improvement. The chains of a sketch persist from batch to batch.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._chains = [Chains() for _ in search.spaces]

    def offer(self, sketch: int, sketches: int, count: int) -> Drafted:
        """See :class:`Generator`."""
        search = self._search
        space, known = search.spaces[sketch], search.records.known(sketch)
        if not search.predictor.has_model:
            return space.nothing()
        best_secs = search.records.best_secs

        def energy(matrix: Matrix, features: NDArray[np.float32], analytic: Floats) -> Floats:
            mean, deviation = search.predictor.predict(sketch, matrix, features, analytic)
            if search.preset.acquisition == "mean":
                return mean
            return -ACQUISITIONS[search.preset.acquisition](mean, deviation, best_secs)

        settings = search.preset.annealing.shared_by(sketches)
        keep = math.ceil(count * (search.preset.top_factor or 1.0))
        return space.anneal(self._chains[sketch], search.rng, settings, energy, keep, known)


class RandomGenerator:
    """Offers nothing: every candidate of the batch is a random one of the whole space."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def offer(self, sketch: int, sketches: int, count: int) -> Drafted:
        """See :class:`Generator`."""
        del sketches, count
        return self._search.spaces[sketch].nothing()


def make_generator(search: Search) -> Generator:
    """The generator that the preset names."""
    if search.preset.generator == "annealing":
        return AnnealingGenerator(search)
    if search.preset.generator == "latent":
        return LatentGenerator(search)
    if search.preset.generator == "random":
        return RandomGenerator(search)
    return GeneticGenerator(search)
