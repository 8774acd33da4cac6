"""What every generator of candidates promises, through the search that it works for, in the open and on pools.

One method stands for each generator, with a light cost model: what is not the generator's own is the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Sketch, Tile
from policies.search import generators
from policies.search.annealing import AnnealingSettings
from policies.search.generators import AnnealingGenerator, Generator
from policies.search.methods import method_named
from policies.search.search import Observation, Proposal, TaskSearch
from policies.space.pools import Pool
from policies.space.sampling import enumerate_all, is_valid, sample, space_size, unique_rows

FLOP = 2.0 * 256**3
METHODS = {
    "draft": "fleet",
    "genetic": "ansor",
    "latent": "pruner:boosted",
    "annealing": "autotvm",
    "random": "random",
}
Key = tuple[int, tuple[int, ...]]

every_generator = pytest.mark.parametrize("generator", METHODS)


def test_every_generator_is_here() -> None:
    offering = {
        each
        for each in vars(generators).values()
        if isinstance(each, type) and hasattr(each, "offer") and each is not Generator
    }
    assert {type(method_named(name).generator) for name in METHODS.values()} == offering


def keys(proposals: Iterable[Proposal]) -> list[Key]:
    return [(proposal.sketch, proposal.decisions) for proposal in proposals]


def outcomes(proposals: Iterable[Proposal]) -> list[Observation]:
    """A bowl in the logarithms of the decisions; one candidate in seven fails."""
    observed = []
    for proposal in proposals:
        decisions = np.array(proposal.decisions)
        secs = 1e-3 * math.exp(0.2 * float(np.square(np.log2(1.0 + decisions) - 2.0).mean()))
        observed.append(
            Observation(proposal.sketch, proposal.decisions, math.inf if decisions.sum() % 7 == 0 else secs)
        )
    return observed


class Bench:
    """A space of candidates, and searches in it by one generator."""

    def __init__(self, sketches: Sequence[Sketch], device: DeviceAbstraction, pooled: bool) -> None:
        rng = np.random.default_rng(1)
        self.sketches = sketches
        self.device = device
        self.pools: list[Pool] | None = None
        if pooled:
            drawn = [sample(sketch, 150, rng) for sketch in sketches]
            self.pools = [Pool(sketch, rows[unique_rows(rows)]) for sketch, rows in zip(sketches, drawn, strict=True)]

    def search(self, generator: str, seed: int = 0) -> TaskSearch:
        method = method_named(METHODS[generator])
        if isinstance(method.generator, AnnealingGenerator):  # short chains, so that the tests are fast
            method = replace(method, generator=AnnealingGenerator(AnnealingSettings(chains=16, steps=12, patience=8)))
        return TaskSearch(self.sketches, FLOP, self.device, method, np.random.default_rng(seed), self.pools)

    def exists(self, proposal: Proposal) -> bool:
        if self.pools is not None:
            return proposal.decisions in set(map(tuple, self.pools[proposal.sketch].matrix.tolist()))
        return bool(is_valid(self.sketches[proposal.sketch], np.array([proposal.decisions]))[0])


@pytest.fixture(params=["open", "pools"])
def bench(request: pytest.FixtureRequest, tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction) -> Bench:
    return Bench((tiled, blocked), cpu, request.param == "pools")


def small_sketches() -> tuple[Sketch, ...]:
    """10 * 2 and 3 candidates."""
    decisions = (Tile(8, 3, 8), Choice("unroll", (0, 16)))
    return (
        Sketch(0, "small", "small", decisions, (), "nothing to describe"),
        Sketch(1, "choice", "choice", (Choice("number", (1, 2, 3)),), (), "nothing to describe"),
    )


def run(search: TaskSearch, batches: int, size: int) -> list[Proposal]:
    """Everything proposed while the batch before is always left pending, with a model from the second batch on."""
    proposed: list[Proposal] = []
    waiting: list[Proposal] = []
    for _ in range(batches):
        batch = search.propose(size)
        search.observe(outcomes(waiting))
        if search.observed:
            search.use_model(search.train(seed=0))
        waiting = batch
        proposed += batch
    return proposed


@every_generator
def test_what_it_offers_exists_and_is_neither_measured_nor_pending(generator: str, bench: Bench) -> None:
    search = bench.search(generator)
    proposed = run(search, batches=4, size=12)
    assert len(proposed) == 48
    assert len(set(keys(proposed))) == 48
    assert all(bench.exists(proposal) for proposal in proposed)
    assert all(proposal.predicted_secs > 0 and proposal.reason for proposal in proposed)
    assert (search.observed, search.pending) == (36, 12)


@every_generator
def test_it_never_gives_more_than_asked_for(generator: str, bench: Bench) -> None:
    search = bench.search(generator)
    for size in (0, 1, 7, 2):
        assert len(search.propose(size)) == size
        assert len(search.propose(0)) == 0
    with pytest.raises(ValueError, match="-1"):
        search.propose(-1)


@every_generator
def test_with_a_model_it_has_something_to_offer(generator: str, bench: Bench) -> None:
    """So that random candidates, which fill up a batch, cannot hide a generator that offers nothing."""
    search = bench.search(generator)
    run(search, batches=3, size=16)
    chosen = [proposal for proposal in search.propose(16) if proposal.reason != "random"]
    assert (not chosen) == (generator == "random")


@every_generator
def test_it_follows_from_the_seed_and_what_it_was_told(generator: str, bench: Bench) -> None:
    first = run(bench.search(generator, seed=3), batches=3, size=10)
    assert run(bench.search(generator, seed=3), batches=3, size=10) == first
    # A draft scores every row of a pool, and takes the best: it draws nothing there.
    drawn = generator != "draft" or bench.pools is None
    assert (keys(run(bench.search(generator, seed=4), batches=3, size=10)) != keys(first)) == drawn


@every_generator
def test_a_space_is_exhausted_exactly(generator: str, cpu: DeviceAbstraction) -> None:
    sketches = small_sketches()
    total = int(sum(space_size(sketch) for sketch in sketches))
    search = Bench(sketches, cpu, pooled=False).search(generator)
    proposed = run(search, batches=2, size=9)
    assert len(proposed) == 18
    last = search.propose(9)
    assert len(last) == total - 18
    assert search.exhausted
    assert search.propose(9) == []
    everything = {(sketch.index, tuple(row)) for sketch in sketches for row in enumerate_all(sketch).tolist()}
    assert set(keys([*proposed, *last])) == everything
    # What was only pending may be proposed again; what was measured may not.
    search.release(last)
    assert sorted(keys(search.propose(9))) == sorted(keys(last))
