"""Pools: a search on a recorded dataset gets the dataset's candidates and no others."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Sketch, Tile
from policies.arrays import Floats
from policies.search.annealing import AnnealingSettings, Chains
from policies.search.draft import DraftSettings
from policies.search.spaces import OpenSpace, PoolSpace, evaluated
from policies.space.pools import Pool
from policies.space.sampling import row_keys, sample, unique_rows

RNG = np.random.default_rng


def analyzer_alone(_: np.ndarray, __: np.ndarray, analytic: Floats) -> Floats:
    return analytic


@pytest.fixture
def pool(tiled: Sketch) -> Pool:
    matrix = sample(tiled, 500, RNG(3))
    return Pool(tiled, matrix[unique_rows(matrix)][:400])


@pytest.fixture
def space(pool: Pool, cpu: DeviceAbstraction) -> PoolSpace:
    return PoolSpace(pool, cpu)


def test_a_pool_is_evaluated_once_for_a_device(pool: Pool, cpu: DeviceAbstraction, gpu: DeviceAbstraction) -> None:
    first = evaluated(pool, cpu)
    assert len(first.matrix) == len(pool)
    assert evaluated(pool, cpu) is first
    assert evaluated(pool, gpu) is not first


def test_draft_keeps_the_best_eighth(pool: Pool, space: PoolSpace, cpu: DeviceAbstraction) -> None:
    drafted = space.draft(RNG(0), DraftSettings(), analyzer_alone, None, frozenset(), 0)
    assert len(drafted.matrix) == 50  # 512 of 1024 x 4 is an eighth of the 400 rows
    known = evaluated(pool, cpu)
    feasible = np.sort(known.log_secs[np.isfinite(known.log_secs)])
    assert drafted.log_secs[0] == feasible[0]
    assert (np.diff(drafted.log_secs) >= 0).all()
    assert set(row_keys(drafted.matrix)) <= set(pool.keys)
    # Those that are excluded make room for the next best.
    excluded = set(row_keys(drafted.matrix))
    second = space.draft(RNG(0), DraftSettings(), analyzer_alone, None, excluded, 0)
    assert len(second.matrix) == 50
    assert excluded.isdisjoint(row_keys(second.matrix))


def test_a_draft_keeps_what_a_batch_is_chosen_from(pool: Pool, space: PoolSpace, cpu: DeviceAbstraction) -> None:
    """A sixteenth of a pool of 400 is 25: less than a round of 64, which must not be filled up at random."""
    settings = DraftSettings(size=512, population=2048, generations=4)
    assert len(space.draft(RNG(0), settings, analyzer_alone, None, frozenset(), 0).matrix) == 25
    drafted = space.draft(RNG(0), settings, analyzer_alone, None, frozenset(), 64)
    known = evaluated(pool, cpu)
    allowed = np.sort(known.log_secs[np.isfinite(known.log_secs)])
    assert drafted.log_secs.tolist() == allowed[:64].tolist()  # the best, whatever their tiles are
    rest = set(pool.keys) - set(row_keys(drafted.matrix[:40]))
    last = space.draft(RNG(0), settings, analyzer_alone, None, set(pool.keys) - rest, 64)
    assert last.log_secs.tolist() == allowed[40:104].tolist()


def test_a_draft_in_the_open_goes_on_to_what_is_next(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    settings = DraftSettings(size=32, population=128, generations=2)
    everything = DraftSettings(size=128, population=128, generations=2)
    space = OpenSpace(tiled, cpu)
    ranked = space.draft(RNG(0), everything, analyzer_alone, None, frozenset(), 0)
    excluded = set(row_keys(ranked.matrix[:30]))
    assert len(space.draft(RNG(0), settings, analyzer_alone, None, excluded, 0).matrix) == 2
    found = space.draft(RNG(0), settings, analyzer_alone, None, excluded, 20)
    assert found.matrix.tolist() == ranked.matrix[30:50].tolist()


def test_random_rows_exhaust_the_pool(pool: Pool, space: PoolSpace) -> None:
    seen: set[bytes] = set()
    while len(seen) < len(pool):
        drawn = space.draw(37, RNG(len(seen)), seen)
        assert len(drawn.matrix) == min(37, len(pool) - len(seen))
        seen |= set(row_keys(drawn.matrix))
    assert seen == set(pool.keys)
    assert len(space.draw(5, RNG(0), seen).matrix) == 0


def test_chains_walk_the_pool_to_its_best_row(pool: Pool, space: PoolSpace, cpu: DeviceAbstraction) -> None:
    found = space.anneal(Chains(), RNG(0), AnnealingSettings(), analyzer_alone, 20, frozenset())
    assert set(row_keys(found.matrix)) <= set(pool.keys)
    assert len(unique_rows(found.matrix)) == 20
    known = evaluated(pool, cpu)
    best = np.sort(known.log_secs)[:20]
    assert found.log_secs.tolist() == best.tolist()
    excluded = set(row_keys(found.matrix[:1]))
    again = space.anneal(Chains(), RNG(0), AnnealingSettings(), analyzer_alone, 20, excluded)
    assert excluded.isdisjoint(row_keys(again.matrix))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_tiny_pools(rows: int, tiled: Sketch, cpu: DeviceAbstraction) -> None:
    space = PoolSpace(Pool(tiled, sample(tiled, 50, RNG(1))[unique_rows(sample(tiled, 50, RNG(1)))][:rows]), cpu)
    settings = AnnealingSettings(chains=4, steps=10)
    found = space.anneal(Chains(), RNG(0), settings, lambda _, __, analytic: np.zeros(len(analytic)), 5, frozenset())
    assert len(found.matrix) <= rows
    assert len(space.draft(RNG(0), DraftSettings(), analyzer_alone, None, frozenset(), 8).matrix) <= rows
    assert len(space.draw(5, RNG(0), frozenset()).matrix) == rows


def test_a_fitness_that_is_no_number_ranks_last(space: PoolSpace) -> None:
    def odd(_: np.ndarray, __: np.ndarray, analytic: Floats) -> Floats:
        return np.where(np.arange(len(analytic)) % 2 == 0, np.nan, analytic)

    drafted = space.draft(RNG(0), DraftSettings(), odd, None, frozenset(), 0)
    assert np.isfinite(drafted.log_secs).all()
    nothing = space.anneal(
        Chains(), RNG(0), AnnealingSettings(), lambda _, __, analytic: np.full(len(analytic), np.nan), 5, frozenset()
    )
    assert len(nothing.matrix) == 0


def test_open_space_has_the_same_methods(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    space = OpenSpace(tiled, cpu)
    assert space.size == 161 * 161 * 7 * 4  # 2^8 in four parts: C(11, 3), less 3 + 1 with a last part above 64
    drawn = space.draw(20, RNG(0), frozenset())
    seen = set(row_keys(drawn.matrix))
    assert len(seen) == 20
    assert seen.isdisjoint(row_keys(space.draw(20, RNG(0), seen).matrix))
    settings = AnnealingSettings(chains=32, steps=40)
    found = space.anneal(Chains(), RNG(0), settings, analyzer_alone, 10, seen)
    assert len(unique_rows(found.matrix)) == 10
    assert (np.diff(found.log_secs) >= 0).all()
    assert found.log_secs[-1] < np.median(drawn.log_secs)
    small = DraftSettings(size=32, population=64, generations=2)
    drafted = space.draft(RNG(0), small, analyzer_alone, None, set(row_keys(found.matrix)), 0)
    assert set(row_keys(found.matrix)).isdisjoint(row_keys(drafted.matrix))


def test_an_open_space_that_is_small(cpu: DeviceAbstraction) -> None:
    sketch = Sketch(0, "r", "t", (Tile(8, 2, 8), Choice("unroll", (0, 16, 64))), (), "undescribed")
    space = OpenSpace(sketch, cpu)
    found = space.anneal(
        Chains(), RNG(0), AnnealingSettings(chains=16), lambda _, __, analytic: np.zeros(len(analytic)), 50, frozenset()
    )
    assert len(unique_rows(found.matrix)) == len(found.matrix) == 12
