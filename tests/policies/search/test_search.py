"""The search of a task on a synthetic device that differs from the analyzer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.errors import UserError
from fleet_tune.base.sketch import Choice, Sketch, Tile
from policies.analysis.analyzer import analyse, feasible
from policies.search.annealing import AnnealingSettings
from policies.search.batch import Selection
from policies.search.draft import ENUMERATE_LIMIT
from policies.search.generators import AnnealingGenerator
from policies.search.methods import METHOD_NAMES, method_named
from policies.search.search import Observation, Proposal, TaskSearch
from policies.space.sampling import is_valid, sample, space_size

FLOP = 2.0 * 256**3
FAILS = 97  # about one candidate of this many fails


@pytest.fixture
def sketches(tiled: Sketch, blocked: Sketch) -> tuple[Sketch, ...]:
    return (tiled, blocked)


class SyntheticDevice:
    """Run times that follow other rules than the analyzer's: its own effects of vectors, accumulators and order."""

    def __init__(self, sketches: tuple[Sketch, ...], device: DeviceAbstraction) -> None:
        self.sketches = sketches
        self.device = device

    def secs(self, sketch: int, matrix: np.ndarray) -> np.ndarray:
        known = analyse(self.sketches[sketch], matrix, self.device)
        terms = known.terms
        factor = 1.3 + 0.35 * np.abs(np.log2(terms["accumulators"]) - 3.6)
        factor = factor + 0.25 * np.abs(np.log2(terms["vector"]) - 5.0)
        factor = factor * (1.0 + 0.15 * (np.log2(matrix[:, 1]) % 2))
        factor = factor * (1.0 + 0.08 * np.sin(matrix @ np.arange(1, matrix.shape[1] + 1)))
        secs = known.latency_secs**0.85 * 1e-4**0.15 * factor
        fails = (matrix @ np.arange(3, matrix.shape[1] + 3)) % FAILS == 0
        return np.where(fails, math.inf, secs)

    def observe(self, proposals: list[Proposal]) -> list[Observation]:
        secs: dict[int, float] = {}
        for at in range(len(self.sketches)):
            mine = [k for k, p in enumerate(proposals) if p.sketch == at]
            if mine:
                values = self.secs(at, np.array([proposals[k].decisions for k in mine]))
                secs.update(zip(mine, values.tolist(), strict=True))
        return [Observation(p.sketch, p.decisions, secs[k]) for k, p in enumerate(proposals)]

    def best(self) -> float:
        rng = np.random.default_rng(123)
        return min(float(self.secs(at, sample(sketch, 20_000, rng)).min()) for at, sketch in enumerate(self.sketches))


def make(sketches: tuple[Sketch, ...], device: DeviceAbstraction, method: str = "fleet", seed: int = 0) -> TaskSearch:
    chosen = method_named(method)
    if isinstance(chosen.generator, AnnealingGenerator):  # short chains, so that the tests are fast
        chosen = replace(chosen, generator=AnnealingGenerator(AnnealingSettings(chains=16, steps=12, patience=8)))
    return TaskSearch(sketches, FLOP, device, chosen, np.random.default_rng(seed))


def keys(proposals: list[Proposal]) -> list[tuple[int, tuple[int, ...]]]:
    return [(p.sketch, p.decisions) for p in proposals]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_never_repeats_and_always_valid(method: str, sketches: tuple[Sketch, ...], cpu: DeviceAbstraction) -> None:
    device = SyntheticDevice(sketches, cpu)
    search = make(sketches, cpu, method)
    seen: set[tuple[int, tuple[int, ...]]] = set()
    waiting: list[Proposal] = []
    for turn in range(5):
        proposals = search.propose(16)
        assert len(proposals) == 16
        assert seen.isdisjoint(keys(proposals))
        assert len(set(keys(proposals))) == 16
        seen.update(keys(proposals))
        for proposal in proposals:
            assert is_valid(sketches[proposal.sketch], np.array([proposal.decisions]))[0]
            assert math.isfinite(proposal.predicted_secs)
            assert proposal.predicted_secs > 0
            assert proposal.reason
        # A batch is always left pending, as with an asynchronous runtime.
        search.observe(device.observe(waiting))
        waiting = proposals
        if turn >= 1:
            search.use_model(search.train(seed=0))
    assert search.observed == 64
    assert search.pending == 16
    search.release(waiting)
    assert search.pending == 0


def run(search: TaskSearch, device: SyntheticDevice, batches: int, size: int = 8) -> list[float]:
    """The incumbent after every trial."""
    bests: list[float] = []
    for _ in range(batches):
        for outcome in device.observe(search.propose(size)):
            search.observe([outcome])
            bests.append(search.best_secs)
        if search.observed >= 16:
            search.use_model(search.train(seed=0))
    return bests


def test_fleet_needs_far_fewer_trials_than_random(sketches: tuple[Sketch, ...], cpu: DeviceAbstraction) -> None:
    device = SyntheticDevice(sketches, cpu)
    goal = 1.1 * device.best()

    def trials(method: str, seed: int, batches: int) -> float:
        bests = run(make(sketches, cpu, method, seed), device, batches)
        return next((at + 1 for at, best in enumerate(bests) if best <= goal), math.inf)

    fleet = float(np.median([trials("fleet", seed, 6) for seed in range(3)]))
    random = float(np.median([trials("random", seed, 24) for seed in range(3)]))
    assert fleet <= 48
    assert fleet < random / 3


def test_same_seed_and_records_same_candidates(sketches: tuple[Sketch, ...], cpu: DeviceAbstraction) -> None:
    device = SyntheticDevice(sketches, cpu)
    assert run(make(sketches, cpu, seed=4), device, 4) == run(make(sketches, cpu, seed=4), device, 4)
    assert keys(make(sketches, cpu, seed=4).propose(8)) != keys(make(sketches, cpu, seed=5).propose(8))


def test_replayed_records_count_and_are_idempotent(sketches: tuple[Sketch, ...], cpu: DeviceAbstraction) -> None:
    device = SyntheticDevice(sketches, cpu)
    before = make(sketches, cpu)
    outcomes = [outcome for _ in range(3) for outcome in device.observe(before.propose(16))]
    before.observe(outcomes)
    after = make(sketches, cpu, seed=9)
    after.observe(outcomes)
    after.observe(outcomes[:20])
    assert after.observed == before.observed == 48
    assert after.best_secs == before.best_secs
    assert (
        after.table.training_set().features.view("symbolic").tobytes()
        == before.table.training_set().features.view("symbolic").tobytes()
    )
    assert set(keys(after.propose(32))).isdisjoint((o.sketch, o.decisions) for o in outcomes)
    # A failure that was mended counts as mended; a slower repetition does not.
    failed = next((o for o in outcomes if math.isinf(o.cost_secs)), outcomes[0])
    after.observe([Observation(failed.sketch, failed.decisions, 1e-9)])
    after.observe([Observation(failed.sketch, failed.decisions, 1.0)])
    assert after.best_secs == 1e-9
    assert after.observed == 48


def test_all_failures_are_borne(sketches: tuple[Sketch, ...], cpu: DeviceAbstraction) -> None:
    search = make(sketches, cpu)
    for _ in range(3):
        proposals = search.propose(16)
        assert len(proposals) == 16
        search.observe(Observation(p.sketch, p.decisions, math.inf) for p in proposals)
    assert search.best_secs == math.inf
    assert search.train(seed=0) is None
    assert np.isfinite(search.table.training_set().log_secs).all()


def test_a_run_in_the_open_goes_on_with_whole_batches_of_its_model(
    sketches: tuple[Sketch, ...], undescribed: Sketch, cpu: DeviceAbstraction
) -> None:
    """Nothing is drawn at random, and the draft begins with the best that is known: it must find others all the time,
    of a sketch without a description too."""
    device = SyntheticDevice(sketches, cpu)
    search = make((*sketches, undescribed), cpu)
    proposed: list[Proposal] = []
    for turn in range(24):
        batch = search.propose(8)
        assert len(batch) == 8
        assert "random" not in {each.reason for each in batch}
        proposed += batch
        search.observe(device.observe([each for each in batch if each.sketch < 2]))
        search.observe(Observation(2, each.decisions, 2e-4) for each in batch if each.sketch == 2)
        if turn % 8 == 0:
            search.use_model(search.train(seed=0))
    assert len(set(keys(proposed))) == 192
    assert {each.sketch for each in proposed} == {0, 1, 2}


def test_a_space_whose_draft_meets_little_else_than_what_is_known_fills_its_batches(cpu: DeviceAbstraction) -> None:
    decisions = (Tile(64, 3, 64), Tile(64, 3, 64), Choice("unroll", (0, 16, 64)))
    sketch = Sketch(0, "large", "not enumerated", decisions, (), "undescribed")
    assert ENUMERATE_LIMIT < space_size(sketch) == 2352
    search = make((sketch,), cpu)
    proposed: list[Proposal] = []
    for _ in range(16):
        batch = search.propose(128)
        assert len(batch) == 128
        proposed += batch
        search.observe(Observation(0, each.decisions, 1e-4 * sum(each.decisions)) for each in batch)
    assert len(set(keys(proposed))) == 2048


def test_the_gain_is_unknown_until_every_sketch_has_offered_candidates(
    sketches: tuple[Sketch, ...], cpu: DeviceAbstraction
) -> None:
    device = SyntheticDevice(sketches, cpu)
    bandit_alone = replace(method_named("fleet"), selection=Selection())  # only the sketch of a trial offers
    search = TaskSearch(sketches, FLOP, cpu, bandit_alone, np.random.default_rng(0))
    offered_after_success: set[int] = set()
    for _ in range(200):
        succeeded = math.isfinite(search.best_secs)
        proposals = search.propose(1)
        if succeeded:
            offered_after_success |= {each.sketch for each in proposals}
        assert math.isfinite(search.predicted_gain) == (len(offered_after_success) == len(sketches))
        if math.isfinite(search.predicted_gain):
            break
        search.observe(device.observe(proposals))
    assert 0.0 <= search.predicted_gain < math.inf


@pytest.mark.parametrize("method", ["ansor", "pruner"])
def test_a_model_of_several_tasks_does_not_know_the_gain(
    method: str, sketches: tuple[Sketch, ...], cpu: DeviceAbstraction
) -> None:
    search = make(sketches, cpu, method)
    run(search, SyntheticDevice(sketches, cpu), batches=3)
    assert search.predicted_gain == math.inf


def test_small_space_is_exhausted_exactly(cpu: DeviceAbstraction) -> None:
    small = Sketch(0, "r", "t", (Tile(8, 2, 8), Choice("unroll", (0, 16, 64))), (), "undescribed")
    single = Sketch(1, "loops", "nothing open", (), (), "undescribed")
    for method in METHOD_NAMES:
        search = make((small, single), cpu, method)
        found: list[Proposal] = []
        for _ in range(40):
            batch = search.propose(5)
            found += batch
            search.observe(Observation(p.sketch, p.decisions, 1.0 + sum(p.decisions)) for p in batch)
            if search.exhausted:
                break
        assert search.exhausted
        assert search.propose(5) == []
        assert len(set(keys(found))) == len(found) == 4 * 3 + 1
        assert (1, ()) in keys(found)


def test_released_candidates_may_come_again(cpu: DeviceAbstraction) -> None:
    single = Sketch(0, "loops", "nothing open", (), (), "undescribed")
    search = make((single,), cpu)
    first = search.propose(4)
    assert keys(first) == [(0, ())]
    assert search.exhausted
    search.release(first)
    assert not search.exhausted
    assert keys(search.propose(1)) == [(0, ())]
    search.release_all()
    assert keys(search.propose(1)) == [(0, ())]
    search.observe([Observation(0, (), 1e-3)])
    search.release_all()
    assert search.exhausted


def test_seeds_are_proposed_first_and_once(sketches: tuple[Sketch, ...], cpu: DeviceAbstraction) -> None:
    rows = [sample(sketch, 2, np.random.default_rng(5)).tolist() for sketch in sketches]
    seeds = [(1, tuple(rows[1][0])), (0, tuple(rows[0][0])), (1, tuple(rows[1][1]))]
    search = TaskSearch(sketches, FLOP, cpu, method_named("fleet"), np.random.default_rng(0), seeds=seeds)
    search.observe([Observation(*seeds[1], 1e-3)])
    first = search.propose(1)
    assert [(each.sketch, each.decisions, each.reason) for each in first] == [(*seeds[0], "found elsewhere")]
    assert [(each.sketch, each.decisions) for each in search.propose(8)] == [seeds[2]], "the other one is measured"
    more = search.propose(8)
    assert len(more) == 8
    assert not {(each.sketch, each.decisions) for each in more} & set(seeds)


def test_an_adapted_candidate_is_proposed_when_it_may_be_better(
    sketches: tuple[Sketch, ...], cpu: DeviceAbstraction
) -> None:
    device = SyntheticDevice(sketches, cpu)
    rows = sample(sketches[0], 4000, np.random.default_rng(1))
    secs = device.secs(0, rows)
    by_secs = rows[np.argsort(secs, kind="stable")][np.isfinite(np.sort(secs))]
    fast, slow = (tuple(int(value) for value in by_secs[at]) for at in (0, -1))
    search = TaskSearch(
        sketches, FLOP, cpu, method_named("fleet"), np.random.default_rng(0), adapted=[(0, slow), (0, fast)]
    )
    first = search.propose(8)
    assert len(first) == len(set(keys(first))) == 8
    adapted = [each for each in first if each.reason == "adapted"]
    assert keys(adapted) == [(0, fast)]
    assert adapted[0] in first[:2], "beside the best candidate of the search itself"
    search.observe(device.observe(first))
    for _ in range(3):
        later = search.propose(8)
        assert (0, slow) not in keys(later)
        assert (0, fast) not in keys(later)
        search.observe(device.observe(later))


@pytest.mark.parametrize(("secs", "left"), [(1e-2, True), (1e-6, False)])
def test_a_sketch_that_the_analyzer_does_not_know_is_tried_at_once(
    blocked: Sketch, undescribed: Sketch, cpu: DeviceAbstraction, secs: float, left: bool
) -> None:
    """A rule was written for such kernels; the first results say whether rightly."""
    search = make((blocked, undescribed), cpu)
    expected, _ = search._expected_bests()
    assert expected[1] == pytest.approx(0.5 * expected[0])
    batches = []
    for _ in range(6):
        batches.append(search.propose(8))
        search.observe(Observation(p.sketch, p.decisions, secs if p.sketch else 1e-4) for p in batches[-1])
    assert any(each.sketch == 1 for each in batches[0])
    later = [each.sketch for batch in batches[1:] for each in batch]
    assert (np.mean(later) < 0.5) == left


def test_a_slow_sketch_that_the_analyzer_does_not_know_leaves_what_it_expects_of_others(
    blocked: Sketch, undescribed: Sketch, cpu: DeviceAbstraction
) -> None:
    search = make((blocked, undescribed), cpu)
    before, _ = search._expected_bests()
    drawn = [tuple(sample(each, 1, np.random.default_rng(0))[0].tolist()) for each in (blocked, undescribed)]
    search.observe([Observation(1, drawn[1], 4 * before[0])])
    assert search._expected_bests()[0].tolist() == [before[0], 4 * before[0]]
    search.observe([Observation(0, drawn[0], 3 * before[0])])
    assert search._expected_bests()[0].tolist() == [3 * before[0], 4 * before[0]]


def test_undescribed_sketch_beside_a_described_one(
    blocked: Sketch, undescribed: Sketch, cpu: DeviceAbstraction
) -> None:
    search = make((blocked, undescribed), cpu)
    for _ in range(3):
        batch = search.propose(12)
        search.observe(Observation(p.sketch, p.decisions, 1e-4 * (1 + p.sketch)) for p in batch)
        search.use_model(search.train(seed=0))
    offsets = search.table.training_set()
    assert offsets.offset_column is not None
    known = np.isfinite(offsets.features.view("symbolic")[:, offsets.offset_column])
    assert 0 < known.sum() < len(known), "the records are of both sketches"
    assert len(search.propose(12)) == 12


def test_bad_calls(sketches: tuple[Sketch, ...], cpu: DeviceAbstraction) -> None:
    search = make(sketches, cpu)
    assert search.propose(0) == []
    with pytest.raises(ValueError, match="cannot propose"):
        search.propose(-1)
    with pytest.raises(ValueError, match="no sketch 5"):
        search.observe([Observation(5, (1,), 1.0)])
    with pytest.raises(ValueError, match="columns"):
        search.observe([Observation(0, (1, 2), 1.0)])
    with pytest.raises(ValueError, match="at least one sketch"):
        TaskSearch((), FLOP, cpu, method_named("fleet"), np.random.default_rng(0))


def test_unknown_methods() -> None:
    with pytest.raises(UserError, match=r"no method 'best'.*fleet, autotvm, adatune, ansor, bansor, pruner"):
        method_named("best")


def test_works_for_a_gpu(blocked: Sketch, gpu: DeviceAbstraction) -> None:
    search = make((blocked,), gpu)
    assert len(search.propose(8)) == 8


def test_random_candidates_for_a_gpu_fit_its_threads_and_shared_memory(threads: Sketch, gpu: DeviceAbstraction) -> None:
    small = replace(gpu, l1_bytes=4096)
    drawn = sample(threads, 2000, np.random.default_rng(1))
    assert feasible(threads, drawn, small).mean() < 0.3
    proposals = make((threads,), small, "random").propose(16)
    rows = np.array([proposal.decisions for proposal in proposals])
    assert feasible(threads, rows, small).mean() > 0.6
