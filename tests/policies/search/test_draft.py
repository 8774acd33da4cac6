"""The genetic draft: valid, distinct, sorted, feasible, better than as many random candidates, reproducible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Location, Sketch, Tile
from policies.analysis.analyzer import feasible
from policies.analysis.equation_1 import equation_1_log_secs
from policies.search.draft import DraftSettings, draft, evaluate, scores
from policies.search.fitness import Equation1Fitness
from policies.space.sampling import is_valid, sample, space_size, unique_rows
from policies.space.variants import chosen_variants

SMALL = DraftSettings(size=128, population=256, generations=4)


@pytest.mark.parametrize("name", ["tiled", "blocked"])
def test_draft(name: str, request: pytest.FixtureRequest, cpu: DeviceAbstraction) -> None:
    sketch: Sketch = request.getfixturevalue(name)
    found = draft(sketch, cpu, np.random.default_rng(0), SMALL)
    assert found.matrix.shape == (128, sketch.width)
    assert is_valid(sketch, found.matrix).all()
    assert len(unique_rows(found.matrix)) == 128
    assert (np.diff(found.log_secs) >= 0).all()
    assert np.isfinite(found.log_secs).all()
    alone = evaluate(sketch, found.matrix, cpu)
    assert alone.log_secs == pytest.approx(found.log_secs)
    random = evaluate(sketch, sample(sketch, 1024, np.random.default_rng(1)), cpu)
    assert found.log_secs[0] <= random.log_secs.min() + 1e-9
    assert np.median(found.log_secs) < np.median(random.log_secs[np.isfinite(random.log_secs)])


def test_draft_is_reproducible(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    first = draft(blocked, cpu, np.random.default_rng(7), SMALL)
    second = draft(blocked, cpu, np.random.default_rng(7), SMALL)
    assert first.matrix.tolist() == second.matrix.tolist()


def of_many_variants(blocked: Sketch) -> Sketch:
    """Sixty variants, of which the last one is without the statement beside the main one: the fastest."""
    count = 60
    place = Location("relu", tuple(range(-1, count - 1)))
    variants = (blocked.statements,) * (count - 1) + (blocked.statements[:1],)
    return replace(blocked, decisions=(*blocked.decisions, place), variants=variants, variant_of=tuple(range(count)))


def test_a_generation_has_few_variants(
    blocked: Sketch, cpu: DeviceAbstraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each variant of a generation is evaluated by itself, which takes as long for a few candidates as for many."""
    sketch = of_many_variants(blocked)
    evaluated: list[tuple[int, int]] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        matrix = arguments[1]
        evaluated.append((len(matrix), len(set(chosen_variants(sketch, matrix).tolist()))))
        return scores(*arguments, **options)

    monkeypatch.setattr("policies.search.draft.scores", counted)
    drafted: set[int] = set()
    for seed in range(40):
        found = draft(sketch, cpu, np.random.default_rng(seed), SMALL)
        assert is_valid(sketch, found.matrix).all()
        drafted |= set(chosen_variants(sketch, found.matrix).tolist())
    assert max(variants for _, variants in evaluated) <= SMALL.most_variants == 16
    assert min(count for count, _ in evaluated) > SMALL.population / 2  # though few of what is bred are left
    assert len(drafted) == 60  # other drafts have others
    evaluated.clear()
    draft(sketch, cpu, np.random.default_rng(0), replace(SMALL, variant_rows=1))
    assert evaluated[0][1] > 50


def test_the_best_of_many_variants_is_found_and_kept(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    sketch = of_many_variants(blocked)
    cpu = replace(cpu, l2_bytes=8 << 20)  # whatever a variant holds there, it keeps
    rng = np.random.default_rng(0)
    seeds, fastest, secs = None, [], []
    for _ in range(30):  # as proposals come after one another
        found = draft(sketch, cpu, rng, SMALL, seeds=seeds)
        seeds = found.matrix[:8]
        fastest.append(int(chosen_variants(sketch, found.matrix[:1])[0]))
        secs.append(float(found.log_secs[0]))
    assert fastest[-1] == 59
    assert fastest[fastest.index(59) :] == [59] * (30 - fastest.index(59))
    assert secs == sorted(secs, reverse=True)


def test_draft_starts_again_from_seeds(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    best = draft(blocked, cpu, np.random.default_rng(0), SMALL).matrix[:4]
    once = DraftSettings(size=64, population=64, generations=1)
    found = draft(blocked, cpu, np.random.default_rng(1), once, seeds=best)
    kept = {tuple(row) for row in found.matrix.tolist()}
    assert all(tuple(row) in kept for row in best.tolist())


def test_small_space_is_enumerated(cpu: DeviceAbstraction) -> None:
    sketch = Sketch(0, "r", "t", (Tile(8, 2, 8), Choice("unroll", (0, 16))), (), "undescribed")
    found = draft(sketch, cpu, np.random.default_rng(0), SMALL)
    assert len(found.matrix) == space_size(sketch) == 8
    assert np.isnan(found.analytic_log_secs).all()


def test_fitness_replaces_the_analyzer(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    found = draft(tiled, cpu, np.random.default_rng(0), SMALL, lambda _, __, analytic: -analytic)
    assert (np.diff(found.log_secs) >= 0).all()
    assert found.log_secs == pytest.approx(-found.analytic_log_secs)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="two parents"):
        DraftSettings(population=1)


def test_pruners_draft_breeds_from_what_asks_too_much_of_a_memory(threads: Sketch, gpu: DeviceAbstraction) -> None:
    """Section 4.1: the penalties say what exceeds a level, and nothing is refused before it is measured."""
    # 320 rows and columns of 64 values in shared memory: 80 KiB of 48. And 4,096 threads, which no penalty knows.
    rows = np.array([[1, 1, 32, 8, 1, 4, 1, 16, 2, 2, 4, 64, 0], [1, 1, 64, 4, 1, 4, 1, 64, 1, 1, 32, 8, 0]])
    assert np.isinf(scores(threads, rows, gpu)).tolist() == [True, True]
    assert np.isinf(scores(threads, rows, gpu, penalised=True)).tolist() == [False, True]
    settings = replace(SMALL, penalised=True)
    found = draft(threads, gpu, np.random.default_rng(0), settings)
    assert feasible(threads, found.matrix, gpu).all()
    assert np.isfinite(found.log_secs).all()
    published = Equation1Fitness(threads, gpu, penalised=True)
    assert np.isinf(scores(threads, rows, gpu, published)).tolist() == [False, True]
    by_equation_1 = draft(threads, gpu, np.random.default_rng(0), settings, published)
    assert feasible(threads, by_equation_1.matrix, gpu).all()
    expected = equation_1_log_secs(threads, by_equation_1.matrix, gpu)
    np.testing.assert_allclose(by_equation_1.log_secs, expected)
    assert by_equation_1.log_secs.tolist() == sorted(by_equation_1.log_secs.tolist())
    # In its first generation it has met both kinds.
    drawn = sample(threads, SMALL.population, np.random.default_rng(0))
    bred = np.isfinite(scores(threads, drawn, gpu, penalised=True))
    assert (bred & ~feasible(threads, drawn, gpu)).any()
