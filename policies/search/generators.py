"""Generators of candidates, behind one interface.

A generator offers candidates of one sketch that are neither measured nor pending; :mod:`policies.search.batch` selects
among them. It holds settings only; the state of a task is a :class:`SearchState`. The space
(:mod:`policies.search.spaces`) is the whole sketch or a pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.analysis.equation_1 import equation_1_log_secs
from policies.arrays import Floats, Matrix
from policies.search.acquisition import Acquisition
from policies.search.annealing import AnnealingSettings, Chains
from policies.search.candidates import CandidateSet
from policies.search.draft import DraftSettings, Fitness
from policies.search.fitness import Equation1Fitness
from policies.search.prediction import Predictor
from policies.search.spaces import Space
from policies.search.task_records import TaskRecords
from policies.space.sampling import row_keys

SEEDS = 16
"""Best measured candidates of a sketch, from which a genetic search starts again. Set by hand."""


@dataclass(frozen=True)
class SearchState:
    """State of one task's search that generators work on."""

    spaces: Sequence[Space]
    """The space of each sketch."""
    chains: Sequence[Chains]
    """Annealing chains of each sketch; they persist from batch to batch."""
    records: TaskRecords
    """Measured and pending candidates."""
    predictor: Predictor
    """Predictions from the records."""
    acquisition: Acquisition
    """The method's acquisition."""
    rng: np.random.Generator
    """Source of all random numbers."""


class Generator(Protocol):
    """Offers candidates of one sketch."""

    @property
    def name(self) -> str:
        """The reason that a proposal gives while nothing has succeeded."""
        ...

    @property
    def with_analyzer(self) -> bool:
        """True if predictions use the calibrated analyzer: see :class:`policies.search.prediction.Predictor`."""
        ...

    def offer(self, search: SearchState, sketch: int, sketches: int, count: int) -> CandidateSet:
        """Return distinct candidates, neither measured nor pending, the best first by the generator's own measure.

        ``sketches``: number of sketches that share this batch; their generators together take about the time of one.
        ``count``: number of candidates that are enough to choose from. The result is smaller if the space has no more,
        and empty if the generator needs a model and there is none yet: then the batch is random.
        """
        ...


@dataclass(frozen=True)
class DraftGenerator:
    """A genetic search on the method's predictions (Pruner's draft, informed by the records).

    They are those of the calibrated analyzer; once there is a model, the mean of the two, or those of the model alone
    (:attr:`policies.search.trainer.Training.alone`, as in ``fleet``).
    """

    name: ClassVar[str] = "draft"
    with_analyzer: ClassVar[bool] = True
    settings: DraftSettings = field(default_factory=DraftSettings)

    def offer(self, search: SearchState, sketch: int, sketches: int, count: int) -> CandidateSet:
        """See :class:`Generator`; the draft's size is that of its settings, but ``count`` at least."""
        fitness = search.predictor.fitness(sketch)
        return _drafted(search, sketch, self.settings.shared_by(sketches), fitness, count)


@dataclass(frozen=True)
class GeneticGenerator:
    """A genetic search on the model alone (Ansor's evolutionary search); nothing is offered until there is one."""

    name: ClassVar[str] = "genetic"
    with_analyzer: ClassVar[bool] = False
    settings: DraftSettings = field(default_factory=DraftSettings)

    def offer(self, search: SearchState, sketch: int, sketches: int, count: int) -> CandidateSet:
        """See :class:`Generator`. No other model verifies its candidates. From a pool it keeps as many as in an open
        space, so that an acquisition other than the prediction has a choice."""
        if not search.predictor.has_model:
            return search.spaces[sketch].nothing()
        settings = self.settings.shared_by(sketches)
        return _drafted(search, sketch, settings, search.predictor.fitness(sketch), max(count, settings.size))


@dataclass(frozen=True)
class LatentGenerator:
    """Pruner's latent schedule explorer: a genetic search on the uncalibrated analyzer, and random candidates beside
    its draft (algorithm 1, line 10). The model verifies all of them.

    On CUDA it also breeds from candidates that ask too much of registers or shared memory: the paper's penalties count,
    and do not rule them out. It offers candidates that are worth building.
    """

    name: ClassVar[str] = "latent"
    with_analyzer: ClassVar[bool] = False
    settings: DraftSettings = field(default_factory=DraftSettings)
    initial: int = 0
    """Random candidates beside a whole draft of ``settings.size``; proportionally fewer beside a smaller one."""
    published: bool = False
    """True if the analyzer is equation 1 as published (:mod:`policies.analysis.equation_1`)."""

    def offer(self, search: SearchState, sketch: int, sketches: int, count: int) -> CandidateSet:
        """See :class:`Generator`; the draft's size is that of its settings, but ``count`` at least."""
        space = search.spaces[sketch]
        settings = replace(self.settings.shared_by(sketches), penalised=space.device.kind == "cuda")
        equation_1 = Equation1Fitness(space.sketch, space.device, settings.penalised) if self.published else None
        drafted = _drafted(search, sketch, settings, equation_1, count)
        wanted = math.ceil(self.initial * len(drafted.matrix) / self.settings.size)
        if wanted:
            drawn = space.draw(wanted, search.rng, search.records.tried_keys(sketch) | set(row_keys(drafted.matrix)))
            drafted = drafted.followed_by(drawn.take(np.flatnonzero(np.isfinite(drawn.log_secs))))
        if equation_1 is not None:
            # Until there is a model, this analyzer also replaces its prediction, not our analyzer.
            analytic = np.full(len(drafted.matrix), np.nan)
            if space.sketch.statements:
                analytic = equation_1_log_secs(space.sketch, drafted.matrix, space.device)
            drafted = replace(drafted, analytic_log_secs=analytic)
        return drafted


def _drafted(
    search: SearchState, sketch: int, settings: DraftSettings, fitness: Fitness | None, least: int
) -> CandidateSet:
    records = search.records
    best = records.best_rows(sketch, SEEDS)
    return search.spaces[sketch].draft(search.rng, settings, fitness, best, records.tried_keys(sketch), least)


@dataclass(frozen=True)
class AnnealingGenerator:
    """Simulated annealing (AutoTVM); nothing is offered until there is a first model.

    The energy is the acquisition's, from the model's prediction: the predicted log seconds, or minus AdaTune's
    expected improvement.
    """

    name: ClassVar[str] = "annealing"
    with_analyzer: ClassVar[bool] = False
    settings: AnnealingSettings = field(default_factory=AnnealingSettings)

    def offer(self, search: SearchState, sketch: int, sketches: int, count: int) -> CandidateSet:
        """See :class:`Generator`."""
        space = search.spaces[sketch]
        if not search.predictor.has_model:
            return space.nothing()
        best_secs = search.records.best_secs

        def energy(matrix: Matrix, features: NDArray[np.float32], analytic: Floats) -> Floats:
            return search.acquisition.energy(*search.predictor.predict(sketch, matrix, features, analytic), best_secs)

        settings = self.settings.shared_by(sketches)
        return space.anneal(
            search.chains[sketch], search.rng, settings, energy, count, search.records.tried_keys(sketch)
        )


@dataclass(frozen=True)
class RandomGenerator:
    """Offers nothing: every candidate of the batch is a random one of the whole space."""

    name: ClassVar[str] = "random"
    with_analyzer: ClassVar[bool] = False

    def offer(self, search: SearchState, sketch: int, sketches: int, count: int) -> CandidateSet:  # noqa: ARG002
        """See :class:`Generator`."""
        return search.spaces[sketch].nothing()
