"""Searches in the open space of recorded tasks: what is filled in, what is counted, and their tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from bench.replay.columns import is_deep
from bench.replay.cost_means import KINDS, ImputationModel, predicted_held_out, read_points
from bench.replay.imputation import CostImputation
from bench.replay.open_replay import BENCHMARK, METHODS, PAPERS, cache_kind, takes_long
from bench.replay.open_runs import OpenRun, OpenTask, run_open
from bench.replay.open_table import figures
from bench.replay.replay_runs import TOLERANCE, near_best
from bench.replay.run_cache import REPLAYED, RunCache
from fleet_tune.base.task_data import TaskData
from policies.cost_models.rank_quality import rank_correlation
from policies.search.methods import METHOD_NAMES, method_named
from policies.search.search import Proposal
from policies.space.sampling import enumerate_all, row_keys, sample
from tests.bench.made_up import made_up


@pytest.fixture(scope="module", params=KINDS)
def task(request: pytest.FixtureRequest, data: TaskData) -> OpenTask:
    assert request.param in get_args(ImputationModel)
    return OpenTask(data, request.param)


def proposed(sketch: int, row: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Proposal:
    return Proposal(sketch, tuple(row.tolist()), 1.0, "a test")


# -- what is filled in -------------------------------------------------------------------------------------------------


def test_a_recorded_candidate_costs_what_was_measured(task: OpenTask) -> None:
    data = task.data
    for at in range(len(data)):
        candidate = data.candidate(at)
        outcome = task.outcome(Proposal(candidate.sketch, candidate.decisions, 1.0, "a test"))
        assert outcome.cost_secs == data.cost_secs[at]
        assert outcome.trial_secs == data.build_secs[at] + data.measure_secs[at]


def test_any_other_one_costs_the_same_whoever_asks_and_whenever(task: OpenTask) -> None:
    matrix = sample(task.data.sketches[0], 64, np.random.default_rng(3))
    again = OpenTask(task.data, task.filling.kind)
    whole = task.filling.fill(0, matrix)
    backwards = again.filling.fill(0, matrix[::-1])
    for key in ("cost_secs", "build_secs", "measure_secs"):
        np.testing.assert_allclose(getattr(whole, key), getattr(backwards, key)[::-1], rtol=1e-9)
    known = set(row_keys(task.data.decisions[0]))
    others = [at for at, key in enumerate(row_keys(matrix)) if key not in known]
    assert others
    for at in others:
        outcome = task.outcome(proposed(0, matrix[at]))
        assert outcome.cost_secs == pytest.approx(whole.cost_secs[at], rel=1e-9)
        assert outcome.trial_secs == pytest.approx(0.75)  # as all of the records


def test_random_candidates_cost_what_the_recorded_ones_cost(task: OpenTask) -> None:
    """As a whole, as far as a space of hundreds can be: the measured ones are random candidates too."""
    data, filling = task.data, task.filling
    costs = np.concatenate([filling.fill(at, enumerate_all(each)).cost_secs for at, each in enumerate(data.sketches)])
    sizes = [len(enumerate_all(each)) for each in data.sketches]
    weights = np.concatenate([np.full(size, 0.5 / size) for size in sizes])  # half of the records are of each
    for share in (0.05, 0.25, 0.5, 0.75):
        assert weights[costs <= np.quantile(data.cost_secs, share)].sum() == pytest.approx(share, abs=0.1)
    assert weights[np.isinf(costs)].sum() == pytest.approx(1.0 - data.ok.mean(), abs=0.05)


def test_they_scatter_about_the_prediction(task: OpenTask) -> None:
    """No less than the records that the model had not seen, and it orders them no better."""
    matrix = enumerate_all(task.data.sketches[0])
    log_secs = np.log(task.filling.fill(0, matrix).cost_secs)
    ran = np.isfinite(log_secs)
    expected = task.filling.expected(0, matrix)
    held_out = task.filling.held_out
    assert 0.5 < rank_correlation(expected[ran], log_secs[ran]) < held_out.rank + 0.05
    assert (log_secs - expected)[ran].std() > 0.8 * held_out.deviation
    assert task.filling.errors.std() == pytest.approx(held_out.deviation)


def test_the_two_models_are_two(data: TaskData) -> None:
    matrix = sample(data.sketches[0], 64, np.random.default_rng(1))
    smooth, trees = (CostImputation(data, kind).fill(0, matrix).cost_secs for kind in KINDS)
    assert (smooth != trees).sum() > 32


def test_nothing_is_faster_than_the_peak_allows(data: TaskData) -> None:
    """Nor is the best that was measured held to be impossible, whatever the peak was probed as."""

    def costs(floor_secs: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        slow = dataclasses.replace(data.abstraction, peak_flops=data.task.workload.flop / floor_secs)
        filling = CostImputation(dataclasses.replace(data, abstraction=slow), "smooth")
        return np.concatenate(
            [filling.fill(at, enumerate_all(each)).cost_secs for at, each in enumerate(data.sketches)]
        )

    best_secs, free = data.best_secs, costs(1e-9)
    lowest = float(free.min())
    np.testing.assert_allclose(costs(0.5 * best_secs), np.maximum(free, 0.5 * best_secs))
    assert costs(2.0 * best_secs).min() == pytest.approx(max(lowest, best_secs))


def test_a_sketch_that_nothing_is_recorded_of_fails(data: TaskData) -> None:
    mine = data.sketch_of == 0
    alone = dataclasses.replace(
        data,
        sketch_of=data.sketch_of[mine],
        decisions=(data.decisions[0], data.decisions[1][:0]),
        **{name: getattr(data, name)[mine] for name in ("run_secs", "build_secs", "measure_secs", "outcome")},
        details=tuple(text for text, its in zip(data.details, mine, strict=True) if its),
    )
    for kind in KINDS:
        assert np.isinf(CostImputation(alone, kind).fill(1, data.decisions[1][:5]).cost_secs).all()


# -- what is said of the models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_has_no_part_in_its_own_held_out_prediction(kind: ImputationModel, data: TaskData) -> None:
    ran = [data.ok[data.rows(at)] for at in (0, 1)]
    pairs = zip(data.sketches, data.decisions, ran, strict=True)
    points = [read_points(kind, sketch, rows[good], data.abstraction) for sketch, rows, good in pairs]
    log_secs = [np.log(data.cost_secs[data.rows(at)][good]) for at, good in enumerate(ran)]
    before = predicted_held_out(kind, data.sketches, points, log_secs)
    changed = [log_secs[0].copy(), log_secs[1]]
    changed[0][7] += 5.0
    after = predicted_held_out(kind, data.sketches, points, changed)
    assert after[7] == pytest.approx(before[7], abs=1e-9)
    assert not np.allclose(after, before)  # but it has in those of others


def test_the_errors_that_are_told_are_those_of_records_not_seen(data: TaskData) -> None:
    """Costs without any order: a model that is told to be good at them would have been shown what it predicts."""
    shuffled = np.random.default_rng(5).permutation(np.flatnonzero(data.ok))
    run_secs = data.run_secs.copy()
    run_secs[np.flatnonzero(data.ok)] = data.run_secs[shuffled]
    for kind in KINDS:
        orderly = CostImputation(data, kind).held_out
        assert orderly.rank > 0.5
        assert orderly.deviation < 0.9 * orderly.spread
        random = CostImputation(dataclasses.replace(data, run_secs=run_secs), kind).held_out
        assert abs(random.rank) < 0.3
        assert random.deviation > 0.9 * random.spread


def test_the_share_of_the_space_at_the_target_is_counted(task: OpenTask) -> None:
    data = task.data
    costs = np.concatenate(
        [task.filling.fill(at, enumerate_all(each)).cost_secs for at, each in enumerate(data.sketches)]
    )
    sizes = [len(enumerate_all(each)) for each in data.sketches]
    weights = np.concatenate([np.full(size, 0.5 / size) for size in sizes])  # a sketch is drawn first
    exact = float(weights[costs <= data.best_secs * (1 + TOLERANCE)].sum())
    assert task.share_at_goal() == pytest.approx(exact, abs=0.02)


# -- what is counted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fleet", "random", "ansor"])
def test_trials_are_counted_to_the_first_at_the_target(task: OpenTask, name: str) -> None:
    """Against a plain loop over all that the method proposes."""
    method = dataclasses.replace(method_named(name), batch=16)
    run = run_open(task, method, 2, 200)
    search = task.search(method, 2)
    costs, held, drawn = list[float](), 0, 0
    goal_secs = task.data.best_secs * (1 + TOLERANCE)
    while len(costs) < 200 and min(costs, default=np.inf) > goal_secs:
        outcomes = []
        for number, each in enumerate(search.propose(16)):
            outcomes.append(task.outcome(each))
            if len(costs) < 200 and min(costs, default=np.inf) > goal_secs:
                costs.append(outcomes[-1].cost_secs)
                held += each.decisions in {tuple(row) for row in task.data.decisions[each.sketch].tolist()}
                drawn += len(costs) == number + 1 and each.reason == "random"
        search.observe(outcomes)
        search.use_model(search.train(2))
    assert run == OpenRun(len(costs), min(costs) <= goal_secs, held, drawn, 0.0)


def test_a_run_ends_where_it_must(task: OpenTask) -> None:
    hopeless = OpenTask(task.data, task.filling.kind)
    hopeless.goal_secs = 0.0
    ticks = iter(range(1000))
    run = run_open(hopeless, method_named("random"), 0, 100, lambda: float(next(ticks)))
    assert (run.trials, run.arrived) == (100, False)
    assert run.search_secs == 3.0  # it proposed twice and learned once, each a second by this clock
    assert run.uninformed == 64


def test_what_a_method_learned_of_the_open_it_may_propose(data: TaskData) -> None:
    """Not only what the pools have: of the first sketch's space a part is recorded, of the other one nearly all."""
    task = OpenTask(data, "smooth")
    task.goal_secs = 0.0
    run = run_open(task, method_named("fleet"), 0, 32)
    assert run.recorded < 0.9 * run.trials


def test_which_methods_have_fewer_seeds() -> None:
    assert not any(is_deep(method_named(name)) for name in METHODS)
    assert set(PAPERS) < set(METHODS)
    assert [name for name in METHOD_NAMES if takes_long(method_named(name))] == [
        "autotvm",
        "adatune",
        "pruner",
        "moa-pruner",
    ]


def test_its_figures() -> None:
    def run(trials: int, *, arrived: bool = True) -> OpenRun:
        return OpenRun(trials, arrived, trials // 4, min(trials, 4), 0.5 * trials)

    runs = {
        ("fleet", 0): [run(4), run(8), run(20, arrived=False)],
        ("fleet", 3): [run(2), run(2), run(4)],
    }
    found = figures(runs, ["a", "b"], [0, 3])
    assert found["trials"]["fleet"]["a"] == {"q1": 6.0, "median": 8.0, "q3": 14.0}
    assert found["overall"] == {"fleet": pytest.approx(4.0)}  # sqrt(8 * 2)
    assert found["sum"] == {"fleet": 10.0}
    assert found["seed_sum"]["fleet"] == {"q1": 8.0, "median": 10.0, "q3": 17.0}  # 6, 10 and 24
    assert found["missed"] == {"fleet": 1}
    assert found["uninformed"] == {"fleet": 6.0}
    assert found["recorded"] == {"fleet": 9 / 40}
    assert found["search_secs"] == {"fleet": 5.0}


def test_its_tables() -> None:
    figure = {"q1": 10.0, "median": 12.0, "q3": 64.0}
    found = {
        "trials": {"fleet": {"conv": figure}, "random": {"conv": {"q1": 40.0, "median": 64.0, "q3": 64.0}}},
        "overall": {"fleet": 12.0, "random": 64.0},
        "sum": {"fleet": 12.0, "random": 64.0},
        "seed_sum": {"fleet": figure, "random": figure},
        "missed": {"fleet": 1, "random": 2},
        "uninformed": {"fleet": 0.0, "random": 64.0},
        "search_secs": {"fleet": 1.25, "random": 0.0},
        "model": {
            "conv": {
                "rank": 0.75,
                "fast_rank": 0.25,
                "deviation": 0.4,
                "fast_deviation": 0.3,
                "spread": 0.8,
                "at_goal": 0.012,
            }
        },
    }
    details = {
        "methods": ["random", "fleet"],
        "fillings": {"smooth": found},
        "tasks": {"conv": {"candidates": 200, "near_best": 3}},
        "batch": {"random": 64, "fleet": 8},
        "seeds": {"random": 3, "fleet": 3},
        "most_trials": 64,
    }
    text = BENCHMARK.table({"details": details})
    assert "| trials to within 5% of the best measured, `smooth` | `fleet` | `random` |" in text
    assert "| `conv` | 12 (10 to 64+) | 64+ (40 to 64+) |" in text
    assert "| overall, geometric mean | 12 (12 to 12) | 64 (64 to 64) |" in text
    assert "| relative to `fleet`, task by task | 1.00 (1.00 to 1.00) | 5.33 (5.33 to 5.33) |" in text
    assert "| runs that end after 64 trials without it | 1 | 2 |" in text
    assert "| seconds of search | 1.2 | 0.0 |" in text
    assert "| `conv`, `smooth` | 0.75 | 0.25 | 0.40 | 0.30 | 0.80 | 1.5% | 1.2% |" in text


def test_kept_runs_are_those_of_their_setting(tmp_path: Path) -> None:
    dataset, path = tmp_path / "set.ftd", tmp_path / "runs.jsonl"
    dataset.write_bytes(b"a dataset")
    method, run = method_named("random"), OpenRun(12, True, 1, 12, 0.5)
    RunCache(path, dataset, cache_kind("smooth", 64)).add(method, "conv", 2, run)
    assert RunCache(path, dataset, cache_kind("smooth", 64)).find(method, "conv", 2) == run
    assert RunCache(path, dataset, cache_kind("trees", 64)).find(method, "conv", 2) is None
    assert RunCache(path, dataset, cache_kind("smooth", 65)).find(method, "conv", 2) is None
    assert RunCache(path, dataset, REPLAYED).find(method, "conv", 2) is None


def test_every_method_searches_the_open() -> None:
    task = OpenTask(made_up("other", seed=4), "trees")
    assert near_best(task.data)
    for name in METHODS:
        run = run_open(task, dataclasses.replace(method_named(name), batch=16), 0, 40)
        assert run.arrived or run.trials == 40, name
