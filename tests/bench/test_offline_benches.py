"""The benchmarks on recorded candidates: their figures by hand, and runs on a small made-up dataset."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from bench.result import BenchError
from bench.search.draft import best_1, random_best_1, speed_figures
from bench.search.draft_process import SCORERS, points, quality, speed
from bench.measured import best_of_share, labels, observations, pick, split
from bench.search.replay import all_methods, effect_variants, figures, is_deep, network_variants
from bench.search.replay_runs import (
    CURVE,
    EFFECTS,
    TOLERANCE,
    Effect,
    RecordedTask,
    Replayed,
    has_effect,
    overall,
    quartiles,
    run_network,
    run_task,
    with_effect,
)
from bench.search.search_process import propose_once
from bench.search.search_time import pair_figures
from fleet_tune.domain import DeviceAbstraction, DeviceClass, Outcome, Task, Workload
from fleet_tune.records.dataset import OUTCOMES, Dataset, TaskData
from fleet_tune.sketch import Access, Axis, Choice, Loop, Sketch, Statement, Tile
from policies.search.methods import PRESET_NAMES, preset
from policies.space.sampling import enumerate_all

CPU = DeviceAbstraction("cpu", 2, 16, 32, 48 * 1024, 1024 * 1024, 32 * 1024 * 1024, 512e9, 40e9)


def matmul_sketch(index: int, size: int = 64) -> Sketch:
    """A matrix product in two tilings and an unroll choice."""
    accesses = (
        Access("A", (size, size), 4, ((1, 0, 0), (0, 0, 1))),
        Access("B", (size, size), 4, ((0, 0, 1), (0, 1, 0))),
        Access("C", (size, size), 4, ((1, 0, 0), (0, 1, 0)), write=True),
    )
    axes = (Axis("i", size, False), Axis("j", size, False), Axis("k", size, True))
    loops = (Loop(0, 0), Loop(1, 2), Loop(2, 4), Loop(0, 1), Loop(2, 5), Loop(1, 3))
    main = Statement("matmul", axes, loops, accesses, 2.0, parallel_limit=32, vectorize_limit=64, unroll_column=6)
    tiles = (Tile(size, 2, 64), Tile(size, 2, 64), Tile(size, 2, 64))
    return Sketch(index, "tiling", f"sketch {index}", (*tiles, Choice("unroll", (0, 16, 64))), (main,))


def made_up(name: str, count: int = 160, seed: int = 0) -> TaskData:
    """A described and an undescribed sketch; costs depend smoothly on the decisions, a tenth are failures."""
    rng = np.random.default_rng(seed)
    plain = Sketch(1, "loops", "plain", (Tile(64, 3, 16), Choice("unroll", (0, 1, 2))), (), "made up")
    sketches = (matmul_sketch(0), plain)
    share = count // 2
    decisions = tuple(rng.permutation(enumerate_all(sketch))[:share] for sketch in sketches)
    owner = rng.permutation(np.repeat([0, 1], [len(matrix) for matrix in decisions]))
    costs = np.empty(len(owner))
    for at, matrix in enumerate(decisions):
        bowl = np.square(np.log2(1.0 + matrix) - 2.0).mean(axis=1)
        costs[owner == at] = 1e-4 * np.exp(0.5 * bowl + 0.02 * rng.standard_normal(len(matrix)))
    failed = rng.random(len(owner)) < 0.1
    run_secs = np.where(failed, np.nan, costs)[:, None].astype(np.float32)
    return TaskData(
        task=Task(Workload(name, name, 2.0 * 64**3, ""), DeviceClass("cpu", "{}")),
        abstraction=CPU,
        sketches=sketches,
        sketch_of=owner,
        decisions=decisions,
        run_secs=run_secs,
        build_secs=np.full(len(owner), 0.25),
        measure_secs=np.full(len(owner), 0.5),
        outcome=np.where(failed, OUTCOMES.index(Outcome.RUN_ERROR), OUTCOMES.index(Outcome.OK)),
        details=tuple("made up" if each else "" for each in failed),
    )


@pytest.fixture(scope="module")
def data() -> TaskData:
    return made_up("matmul", 140)


def test_best_of_share_takes_the_lowest_scores() -> None:
    scores = np.array([3.0, 1.0, 2.0, 0.0])
    costs = np.array([1.0, 4.0, 2.0, 8.0])
    assert best_of_share(scores, costs, 4) == 8.0
    assert best_of_share(scores, costs, 2) == 4.0
    assert best_of_share(scores, costs, 1) == 1.0
    assert best_of_share(scores, costs, 100) == 8.0  # at least one
    assert best_of_share(np.array([math.inf, 1.0]), np.array([1.0, 2.0]), 2) == 2.0


def test_best_1_is_equation_3() -> None:
    # Two tasks with weights 1 and 3, two seeds: (1 + 6) / (2 + 6) and (1 + 6) / (1 + 12).
    assert best_1([[1.0, 1.0], [2.0, 2.0]], [[2.0, 1.0], [2.0, 4.0]], [1, 3]) == pytest.approx([7 / 8, 7 / 13])
    assert best_1([[1.0]], [[math.inf]], [1]) == [0.0]


def test_split_is_a_partition_that_a_seed_repeats(data: TaskData) -> None:
    known, explored = split(data, 3, 64)
    assert len(known) == 64
    assert sorted([*known, *explored]) == list(range(len(data)))
    assert np.array_equal(split(data, 3, 64)[0], known)
    assert not np.array_equal(split(data, 4, 64)[0], known)
    limited = np.concatenate(split(data, 3, 64, limit=100))
    assert sorted(limited) == list(range(100))
    with pytest.raises(BenchError, match="too few"):
        split(data, 0, len(data))


def test_labels_are_different_and_found_by_their_parts(data: TaskData) -> None:
    dataset = Dataset("m", (), (made_up("fused_conv2d"), data, made_up("fused_conv2d")))
    names = labels(dataset)
    assert names == ("conv2d.1", "matmul", "conv2d.2")
    assert pick(names, ()) == (0, 1, 2)
    assert pick(names, ("mat", "conv", "conv")) == (1, 0, 2)
    with pytest.raises(BenchError, match="softmax"):
        pick(names, ("softmax",))


def test_observations_are_what_was_recorded(data: TaskData) -> None:
    first = observations(data, [0])[0]
    assert (first.sketch, first.decisions) == (data.candidate(0).sketch, data.candidate(0).decisions)
    assert (first.cost_secs, first.trial_secs) == (data.cost_secs[0], 0.75)
    failure = int(np.flatnonzero(~data.ok)[0])
    assert observations(data, [failure])[0].cost_secs == math.inf


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_method_arrives(data: TaskData, name: str) -> None:
    task = RecordedTask(data)
    run = run_task(task, preset(name), 1, curve_trials=0)
    good = int((data.cost_secs <= data.best_secs * (1 + TOLERANCE)).sum())
    assert 1 <= run.trials <= len(data) - good + 1
    assert run.trial_secs == pytest.approx(0.75 * run.trials)
    assert list(run.curve) == sorted(run.curve)
    assert run.curve[-1] >= 1 / (1 + TOLERANCE)
    assert run_task(task, preset(name), 1, curve_trials=0) == run


def test_a_run_goes_on_for_its_curve(data: TaskData) -> None:
    run = run_task(RecordedTask(data), preset("random"), 2, curve_trials=len(data))
    assert run.curve[-1] == 1.0  # everything was measured


def test_a_network_of_two_tasks_arrives(data: TaskData) -> None:
    tasks = [RecordedTask(data), RecordedTask(made_up("other", seed=5))]
    for chosen in (preset("bansor"), dataclasses.replace(preset("random"), batch=16)):
        assert 2 <= run_network(tasks, chosen, 0) <= sum(len(task.data) for task in tasks)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("name", ["fleet", "bansor", "autotvm"])
def test_an_effect_is_switched_and_nothing_else(effect: Effect, name: str) -> None:
    before = preset(name)
    on = has_effect(before, effect)
    assert with_effect(before, effect, on) is before
    switched = with_effect(before, effect, not on)
    assert has_effect(switched, effect) is not on
    assert all(has_effect(switched, other) == has_effect(before, other) for other in EFFECTS if other != effect)
    assert (switched.batch, switched.model, switched.task_policy) == (before.batch, before.model, before.task_policy)


def test_variants_are_named_by_what_is_switched() -> None:
    names = list(effect_variants())
    assert names[:2] == ["fleet", "fleet - draft"]
    assert "bansor + ei" in names
    assert "bansor - sketch-ucb" in names
    assert {chosen.task_policy for chosen in network_variants().values()} == {"ucb", "gradient", "round-robin"}
    assert all_methods(["all"]) == PRESET_NAMES
    assert all_methods(["ansor", "fleet"]) == ("ansor", "fleet")
    assert [name for name in PRESET_NAMES if is_deep(preset(name))] == ["pruner", "moa-pruner"]


def test_figures_are_medians_and_geometric_means() -> None:
    def run(trials: int, share: float) -> Replayed:
        return Replayed(trials, 2.0 * trials, (share,) * len(CURVE))

    runs = {
        ("fleet", 0): [run(1, 0.25), run(2, 0.25), run(9, 0.5)],
        ("fleet", 3): [run(8, 1.0), run(8, 1.0), run(8, 1.0)],
    }
    found = figures(runs, {"fleet, ucb": [4, 6]}, ["a", "b"], [0, 3])
    assert found["trials"]["fleet"]["a"] == {"q1": 1.5, "median": 2.0, "q3": 5.5}
    assert found["overall"] == {"fleet": pytest.approx(4.0)}  # sqrt(2 * 8)
    assert found["overall_trial_secs"] == {"fleet": pytest.approx(8.0)}
    assert found["curves"]["fleet"][0] == pytest.approx(0.5)  # sqrt(0.25 * 1)
    assert found["network"]["fleet, ucb"]["median"] == 5.0
    assert overall({"a": 2.0, "b": 8.0}) == pytest.approx(4.0)
    assert quartiles([1.0, 2.0, 3.0]) == {"q1": 1.5, "median": 2.0, "q3": 2.5}


def test_quality_lies_between_the_best_and_the_worst(data: TaskData) -> None:
    best = quality(data, 2, 64, 8, None)
    assert set(best) == {*SCORERS, "ideal"}
    for name in SCORERS:
        assert all(found >= ideal for found, ideal in zip(best[name], best["ideal"], strict=True))
    everything = quality(data, 1, 64, 1, None)
    assert everything["calibrated"] == everything["ideal"]  # a share of all of them loses nothing
    assert all(math.isfinite(predicted) and measured < 0 for predicted, measured in points(data, 64, None))


def test_random_choice_of_everything_is_perfect(data: TaskData) -> None:
    dataset = Dataset("m", (), (data, made_up("other", seed=3)))
    assert random_best_1(dataset, 2, 64, 1, 1000)["all"] == pytest.approx([1.0, 1.0])
    chance = random_best_1(dataset, 2, 64, 8, 1000)
    assert set(chance) == {"all", 0, 1}
    assert all(0 < score < 1 for score in chance["all"])


def test_speed_is_the_harmonic_mean() -> None:
    assert speed_figures([{"analyzer": 1.0}, {}, {"analyzer": 3.0}]) == {"analyzer": pytest.approx(1.5)}


def test_speed_is_that_of_the_described_sketches(data: TaskData) -> None:
    found = speed(data, 64)
    assert set(found) == {"analyzer", "calibrated", "analyzer_population", "calibrated_population"}
    assert all(rate > 0 for rate in found.values())
    with pytest.raises(BenchError, match="described"):
        speed_figures([{}])


def test_search_time_compares_medians(data: TaskData) -> None:
    ours = propose_once(data, 100, 0, "fleet")
    assert ours["candidates"] == 64
    with pytest.raises(BenchError, match="not 1000"):
        propose_once(data, 1000, 0, "fleet")
    mine = [{**ours, "secs": secs, "cpu_secs": 0.1} for secs in (0.1, 0.3, 0.2)]
    peer = [{"secs": 4.0, "cpu_secs": 2.0, "candidates": 64, "train_secs": 1.0, "scored_by_model": True}]
    compared = pair_figures(mine, peer)
    assert compared["ratio"] == pytest.approx(20.0)
    assert compared["cpu_ratio"] == pytest.approx(20.0)
    with pytest.raises(BenchError, match="empty"):
        pair_figures(mine, [{**peer[0], "candidates": 0}])


def test_a_method_that_proposes_nothing_is_told(data: TaskData) -> None:
    task = RecordedTask(data)
    search = task.search(preset("random"), 0)
    search.observe(observations(data, range(len(data))))
    with pytest.raises(BenchError, match="proposes nothing"):
        task.round(search, dataclasses.replace(preset("random"), batch=4), 0)
