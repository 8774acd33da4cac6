"""Latent schedule explorer (Pruner section 4.1): a genetic search over decision matrices on a cheap fitness.

Nothing is scheduled or lowered: a generation is a few dozen numpy calls. The fitness is predicted log seconds: the
analyzer's with the calibration's correction before there is a model, then the model's (``fleet``), the model's alone
(``ansor``), or the plain analyzer's (``pruner``).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import analyse, feasible
from policies.arrays import Floats, Matrix
from policies.features.table import symbolic_features
from policies.search.candidates import CandidateSet
from policies.search.fitness import CalibratedFitness, Equation1Fitness, analyzer_log_secs
from policies.search.fitness import Fitness as Fitness
from policies.space.sampling import crossover, enumerate_all, mutate, row_keys, sample, space_size, unique_rows
from policies.space.variants import of_few_variants, with_few_places

VARIANT_ROWS = 16
"""Candidates for each variant of a sketch in a generation of our draft; the papers' drafts have no such bound. Each
variant has its own description, and evaluating one candidate of it takes about as long as evaluating so many. So if a
sketch has many variants, a generation has few of them; the next draft has others."""
LEAST_SIZE = 128
"""Candidates that a draft keeps at least, however many sketches share the batch. Set by hand."""
ENUMERATE_LIMIT = 2048
"""Spaces up to this size are enumerated instead of searched: set by hand, less than a search evaluates."""


@dataclass(frozen=True)
class DraftSettings:
    """Settings of a genetic search.

    The defaults are those of ``fleet``, set by hand. The papers' methods have settings of their own: 2,048 in 4
    generations in Ansor's code, 1,536 in 3 in Pruner's, mutation 0.85 in both. All methods share ``elite_share``, the
    squared ranks of parents, and the share of mutants of seeds in a first generation (a quarter); these are set by
    hand.
    """

    size: int = 512
    """Candidates that it keeps."""
    population: int = 1024
    """Candidates of a generation."""
    generations: int = 4
    mutation: float = 0.85
    """Share of the children that are mutated."""
    elite_share: float = 0.25
    """Share of a generation that the parents are drawn from."""
    variant_rows: int = VARIANT_ROWS
    """Mean number of candidates for each variant of a sketch in a generation; 1 for no bound."""
    penalised: bool = False
    """True if a draft on the analyzer alone also breeds from candidates that ask too much of a memory: they are
    penalised, not ruled out (Pruner). The draft keeps only candidates that are worth building, if it found any."""

    def __post_init__(self) -> None:
        if min(self.size, self.population - 1, self.generations, self.variant_rows) < 1:
            raise ValueError(f"a draft needs a candidate, two parents and a generation at least, got {self}")

    @property
    def most_variants(self) -> int:
        """Largest number of variants of a sketch in a generation."""
        return max(self.population // self.variant_rows, 2)

    @property
    def kept_share(self) -> float:
        """Share of the candidates evaluated in an open space that a draft keeps."""
        return min(self.size / (self.population * self.generations), 1.0)

    def shared_by(self, sketches: int) -> DraftSettings:
        """Settings for one of several sketches drafted together, so that a batch takes about the time of one."""
        share = max(sketches, 1)
        return replace(
            self,
            size=max(self.size // share, min(self.size, LEAST_SIZE)),
            population=max(self.population // share, min(self.population, 2 * LEAST_SIZE)),
        )


def evaluate(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, fitness: Fitness | None = None) -> CandidateSet:
    """Score candidates in their order. Those the analyzer calls infeasible score plus infinity."""
    if sketch.described:
        analysis = analyse(sketch, matrix, device)
        features = symbolic_features(sketch, matrix, device, analysis)
        analytic = np.log(analysis.latency_secs)
        allowed = analysis.feasible
    else:
        features = symbolic_features(sketch, matrix, device)
        analytic = np.full(len(matrix), np.nan)
        allowed = np.ones(len(matrix), dtype=bool)
    scores = np.nan_to_num(analytic, nan=0.0) if fitness is None else fitness(matrix, features, analytic)
    return CandidateSet.unpredicted(matrix, features, analytic, np.where(allowed, scores, np.inf))


def scores(
    sketch: Sketch,
    matrix: Matrix,
    device: DeviceAbstraction,
    fitness: Fitness | None = None,
    *,
    penalised: bool = False,
) -> Floats:
    """The fitness alone, ``(n,)``: ``evaluate(...).log_secs`` in float32, without the features if the fitness does not
    need them.

    ``penalised``: see :class:`DraftSettings`.
    """
    if isinstance(fitness, CalibratedFitness | Equation1Fitness):
        return fitness.log_secs(sketch, matrix, device)
    if fitness is None and sketch.described:
        return analyzer_log_secs(sketch, matrix, device, penalised=penalised)
    return evaluate(sketch, matrix, device, fitness).log_secs


def draft(
    sketch: Sketch,
    device: DeviceAbstraction,
    rng: np.random.Generator,
    settings: DraftSettings | None = None,
    fitness: Fitness | None = None,
    seeds: Matrix | None = None,
    excluded: Set[bytes] = frozenset(),
    least: int = 0,
) -> CandidateSet:
    """Return the best ``settings.size`` distinct feasible candidates found, without those of the ``excluded`` keys, the
    best first.

    ``seeds`` (k, d): known good candidates; they and their mutants join the first generation. If fewer than ``least``
    are left without the excluded ones, the next best are added. The result has fewer than ``size`` candidates if the
    space is small, and infeasible ones only if nothing feasible was found at all. A score that is not a number counts
    as infeasible.
    """
    settings = settings or DraftSettings()
    if space_size(sketch) <= ENUMERATE_LIMIT:
        fresh = enumerate_all(sketch)
        generations = 1
    else:
        fresh = random_generation(sketch, settings, rng)
        if seeds is not None and len(seeds):
            fresh = np.concatenate([seeds, _mutants(sketch, seeds, settings, rng), fresh[: -settings.population // 4]])
        fresh = fresh[unique_rows(fresh)]
        generations = settings.generations

    score = scores(sketch, fresh, device, fitness, penalised=settings.penalised)
    candidates, score = _ordered(fresh, score)
    for _ in range(generations - 1):
        most = max(settings.size, settings.population)
        candidates, score = candidates[:most], score[:most]
        children = _children(sketch, candidates, settings, rng)
        rows = unique_rows(np.concatenate([candidates, children]))
        children = children[rows[rows >= len(candidates)] - len(candidates)]
        bred = scores(sketch, children, device, fitness, penalised=settings.penalised)
        candidates, score = _ordered(np.concatenate([candidates, children]), np.concatenate([score, bred]))
    if settings.penalised:
        built = feasible(sketch, candidates, device)
        if built.any():
            candidates, score = candidates[built], score[built]
    chosen = _without(candidates, np.arange(min(settings.size, len(candidates))), excluded, least)
    return replace(evaluate(sketch, candidates[chosen], device), log_secs=score[chosen])


def _without(ordered: Matrix, chosen: NDArray[np.intp], excluded: Set[bytes], least: int) -> NDArray[np.intp]:
    """The chosen rows without those of the excluded keys. If fewer than ``least`` are left, the best of the other rows
    are added."""
    if not excluded:
        return chosen
    known = np.array([key in excluded for key in row_keys(ordered)], dtype=bool)
    kept: NDArray[np.intp] = chosen[~known[chosen]]
    if len(kept) >= least:
        return kept
    others = np.setdiff1d(np.flatnonzero(~known), kept, assume_unique=True)
    filled: NDArray[np.intp] = np.sort(np.concatenate([kept, others[: least - len(kept)]]))
    return filled


def random_generation(sketch: Sketch, settings: DraftSettings, rng: np.random.Generator) -> Matrix:
    """A first generation: random candidates, of few variants."""
    return with_few_places(sketch, sample(sketch, settings.population, rng), settings.most_variants, rng)


def _mutants(sketch: Sketch, seeds: Matrix, settings: DraftSettings, rng: np.random.Generator) -> Matrix:
    """Mutants of known good candidates, for a quarter of a generation."""
    count = settings.population // 4
    mutants = mutate(sketch, seeds[rng.integers(len(seeds), size=_bred(sketch, settings, count))], rng)
    return of_few_variants(sketch, mutants, settings.most_variants)[:count]


def _children(sketch: Sketch, ordered: Matrix, settings: DraftSettings, rng: np.random.Generator) -> Matrix:
    """A generation bred from candidates that are ordered, the best first: children are crossed, and most of them
    mutated."""
    count = _bred(sketch, settings, settings.population)
    elite = max(int(settings.elite_share * len(ordered)), 2)
    # Squared uniform draws: the best parents are picked more often, without scaling the fitness.
    ranks = (np.square(rng.random((2, count))) * min(elite, len(ordered))).astype(np.int64)
    children = crossover(sketch, ordered[ranks[0]], ordered[ranks[1]], rng)
    mutated = rng.random(count) < settings.mutation
    children[mutated] = mutate(sketch, children[mutated], rng)
    return of_few_variants(sketch, children, settings.most_variants)[: settings.population]


def _bred(sketch: Sketch, settings: DraftSettings, count: int) -> int:
    """Number of children to breed for ``count``: twice as many if a generation keeps only few of a sketch's variants,
    because about half of the children are then dropped."""
    return 2 * count if len(sketch.variants) > settings.most_variants else count


def _ordered(matrix: Matrix, score: Floats) -> tuple[Matrix, Floats]:
    """Feasible candidates with their scores, the best first; all candidates if none is feasible."""
    usable = np.flatnonzero(np.isfinite(score))
    rows = usable if len(usable) else np.arange(len(score))
    order = rows[np.argsort(score[rows], kind="stable")]
    return matrix[order], score[order]
