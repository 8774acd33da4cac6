"""A genetic algorithm without a cost model on recorded candidates: the black box of AutoTVM's figure 4.

The population is the best measured candidates. A child takes each decision from one of two parents of a sketch, or
changes one of them at random; what is measured in its place is the candidate nearest to it that is recorded and was not
measured yet (:attr:`policies.space.pools.Pool.neighbours` has the same distance), for a child itself is hardly ever
recorded. The paper names no numbers: the population is as large as a round, and a tenth of the children is changed, as
in TVM's tuner of that time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import Sketch
from policies.arrays import Matrix
from policies.search.allocation import Arms
from policies.search.candidates import CandidateSet
from policies.search.exploration import FixedEpsilon
from policies.search.generators import SearchState
from policies.search.methods import Method, method_named
from policies.space.sampling import crossover, decision_ids, log_coordinates, mutate

POPULATION = 64
MUTATION = 0.1


@dataclass(frozen=True)
class FittestSketches:
    """Each trial goes to the sketch of one of the best measured candidates, drawn at random; to any sketch before."""

    name: ClassVar[str] = "fittest"
    joint: ClassVar[bool] = False

    def shares(self, arms: Arms, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """See :class:`policies.search.allocation.SketchAllocation`."""
        costs = [(cost, at) for at, by_key in enumerate(arms.records.costs) for cost in by_key.values()]
        fittest = [at for cost, at in sorted(costs)[:POPULATION] if math.isfinite(cost)] or range(len(arms.left))
        wanted = np.bincount(rng.choice(fittest, size=count), minlength=len(arms.left))
        return np.minimum(wanted, arms.left).astype(np.int64)


@dataclass(frozen=True)
class OffspringGenerator:
    """Children of the best measured candidates of a sketch; nothing before there are any. For pools alone."""

    name: ClassVar[str] = "offspring"
    with_analyzer: ClassVar[bool] = False

    def offer(self, search: SearchState, sketch: int, sketches: int, count: int) -> CandidateSet:  # noqa: ARG002
        """See :class:`policies.search.generators.Generator`."""
        records, space, rng = search.records, search.spaces[sketch], search.rng
        parents = records.best_rows(sketch, POPULATION)
        if parents is None:
            return space.nothing()
        left = space.draw(space.size, rng, records.tried_keys(sketch))
        mother, father = (parents[rng.integers(len(parents), size=count)] for _ in range(2))
        children = crossover(space.sketch, mother, father, rng)
        changed = rng.random(count) < MUTATION
        children[changed] = mutate(space.sketch, children[changed], rng)
        return left.take(nearest(space.sketch, children, left.matrix))


def nearest(sketch: Sketch, wanted: Matrix, there: Matrix) -> NDArray[np.intp]:
    """Choose for each row of ``wanted`` one of ``there``, each only once and as long as there are any: the one that
    differs in the fewest decisions, of these the one at the least distance of log coordinates."""
    ids, others = decision_ids(sketch, wanted), decision_ids(sketch, there)
    points, places = log_coordinates(sketch, wanted), log_coordinates(sketch, there)
    differing = (ids[:, None, :] != others[None, :, :]).sum(axis=2)
    apart = np.sqrt(np.square(points[:, None, :] - places[None, :, :]).sum(axis=2))
    distance = differing + apart / (1.0 + apart.max(initial=0.0))
    chosen: list[int] = []
    for row in distance[: len(there)]:
        row[chosen] = np.inf
        chosen.append(int(row.argmin()))
    return np.array(chosen, dtype=np.intp)


def genetic_method() -> Method:
    """AutoTVM's figure 4, GA: rounds of 64 as all of its methods have."""
    return replace(
        method_named("random"),
        name="genetic",
        source="a genetic algorithm on measured costs alone, AutoTVM figure 4",
        sketches=FittestSketches(),
        generator=OffspringGenerator(),
        exploration=FixedEpsilon(0.0),
        batch=POPULATION,
    )
