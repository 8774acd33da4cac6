"""A genetic algorithm without a cost model on recorded candidates: the black-box method of AutoTVM's figure 4.

The population consists of the best measured candidates. A child takes each decision from one of two parents of the same
sketch; some children are then mutated at random. A child itself is hardly ever recorded, so the nearest recorded
candidate that is not measured yet is measured in its place (:attr:`policies.space.pools.Pool.neighbours` has a similar
distance). The paper gives no numbers. As in TVM's tuner of that time, the population is as large as a round, and a
tenth of the children is mutated.
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
    """Each trial goes to the sketch of one of the best measured candidates, drawn at random. Before a candidate has
    succeeded, it goes to any sketch."""

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
    """Children of the best measured candidates of a sketch; nothing if there are none yet. Only for pools."""

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
    """Return for each row of ``wanted`` the nearest row of ``there``, each row only once, until all are taken. Nearest
    is the row that differs in the fewest decisions; among equals, the one at the least distance in log coordinates."""
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
    """Return GA of AutoTVM's figure 4, with rounds of 64 like all methods of the paper."""
    return replace(
        method_named("random"),
        name="genetic",
        source="a genetic algorithm on measured costs alone, AutoTVM figure 4",
        sketches=FittestSketches(),
        generator=OffspringGenerator(),
        exploration=FixedEpsilon(0.0),
        batch=POPULATION,
    )
