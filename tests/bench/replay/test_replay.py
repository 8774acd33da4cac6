"""Searches on recorded candidates: their figures by hand, and runs on a small made-up dataset."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.datasets import dataset_path, observations
from bench.replay import replay_pool
from bench.replay.columns import (
    all_methods,
    effect_variants,
    is_deep,
    network_variants,
    with_rounds,
    with_warm,
)
from bench.replay.replay import BENCHMARK, one_task, run
from bench.replay.replay_runs import (
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
    trains_after,
    with_effect,
)
from bench.replay.replay_table import figures
from bench.replay.run_cache import REPLAYED, RunCache
from bench.replay.start_models import started_from
from bench.result import BenchError
from fleet_tune.base.task_data import TaskData
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, read_model
from policies.search.methods import METHOD_NAMES, method_named
from tests.bench.made_up import made_up


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_arrives(data: TaskData, name: str) -> None:
    task = RecordedTask(data)
    run = run_task(task, method_named(name), 1, curve_trials=0)
    good = int((data.cost_secs <= data.best_secs * (1 + TOLERANCE)).sum())
    assert 1 <= run.trials <= len(data) - good + 1
    assert run.trial_secs == pytest.approx(0.75 * run.trials)
    assert list(run.curve) == sorted(run.curve)
    assert run.curve[-1] >= 1 / (1 + TOLERANCE)
    assert run_task(task, method_named(name), 1, curve_trials=0) == run


def test_the_first_uninformed_batch_is_told_apart(data: TaskData) -> None:
    task = RecordedTask(data)
    for name, all_random in (("random", True), ("ansor", True), ("autotvm", True), ("fleet", False), ("pruner", False)):
        method = dataclasses.replace(method_named(name), batch=16)
        run = run_task(task, method, 3, curve_trials=0)
        if all_random:
            assert run.uninformed == min(run.trials, 16)
        else:
            assert run.uninformed <= 4  # a fifth of the batch at most
        first = task.search(method, 3).propose(16)
        assert all(each.reason == "random" for each in first) is all_random


def test_a_model_is_trained_after_the_first_round_and_each_so_many_after_it(
    data: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = dataclasses.replace(method_named("ansor"), batch=10)
    assert [round_ for round_ in range(1, 12) if trains_after(10 * round_, 10, 4)] == [1, 5, 9]
    assert trains_after(7, 10, 4)  # a first round that the pool cut short
    assert all(trains_after(64 * round_, 64, 1) for round_ in range(1, 5))
    task = RecordedTask(data)
    search, trained = task.search(method, 0), list[int]()
    monkeypatch.setattr(search, "train", lambda _: trained.append(search.observed))
    for _ in range(6):
        task.round(search, method, 0, 4)
    assert trained == [10, 50]


def test_a_run_goes_on_for_its_curve(data: TaskData) -> None:
    run = run_task(RecordedTask(data), method_named("random"), 2, curve_trials=len(data))
    assert run.curve[-1] == 1.0  # everything was measured


def test_a_network_of_two_tasks_arrives(data: TaskData) -> None:
    tasks = [RecordedTask(data), RecordedTask(made_up("other", seed=5))]
    for chosen in (method_named("bansor"), dataclasses.replace(method_named("random"), batch=16)):
        assert 2 <= run_network(tasks, chosen, 0) <= sum(len(task.data) for task in tasks)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("name", ["fleet", "bansor", "autotvm"])
def test_an_effect_is_switched_and_nothing_else(effect: Effect, name: str) -> None:
    before = method_named(name)
    on = has_effect(before, effect)
    assert with_effect(before, effect, on) is before
    switched = with_effect(before, effect, not on)
    assert has_effect(switched, effect) is not on
    assert all(has_effect(switched, other) == has_effect(before, other) for other in EFFECTS if other != effect)
    assert (switched.batch, switched.tasks, switched.selection) == (before.batch, before.tasks, before.selection)
    assert switched.training is not None
    assert before.training is not None
    assert switched.training.model == before.training.model


def test_variants_are_named_by_what_is_switched() -> None:
    names = list(effect_variants())
    assert names[:2] == ["fleet", "fleet - draft"]
    assert "bansor + ei" in names
    assert "bansor - sketch-ucb" in names
    assert {chosen.tasks.name for chosen in network_variants().values()} == {"ucb", "gradient", "round-robin"}
    assert all_methods(["all"]) == METHOD_NAMES
    assert all_methods(["ansor", "fleet"]) == ("ansor", "fleet")
    assert [name for name in METHOD_NAMES if is_deep(method_named(name))] == ["pruner", "moa-pruner"]


def test_a_column_for_each_start_and_size_of_a_round() -> None:
    methods = {name: method_named(name) for name in ("fleet", "autotvm", "random")}
    found = with_rounds(with_warm(methods, ["fleet", "autotvm"]), [0, 8])
    assert {name: method.batch for name, method in found.items()} == {
        "fleet": 8,
        "fleet, warm": 8,
        "autotvm": 64,
        "autotvm, rounds of 8": 8,
        "autotvm, warm": 64,
        "autotvm, warm, rounds of 8": 8,
        "random": 64,
        "random, rounds of 8": 8,
    }
    assert {name: method.batch for name, method in with_rounds(methods, [16]).items()} == dict.fromkeys(methods, 16)
    assert with_rounds(methods, [0]) == methods


def test_figures_are_medians_and_geometric_means() -> None:
    def run(trials: int, share: float) -> Replayed:
        return Replayed(trials, 2.0 * trials, (share,) * len(CURVE))

    runs = {
        ("fleet", 0): [run(1, 0.25), run(2, 0.25), run(9, 0.5)],
        ("fleet", 3): [run(8, 1.0), run(8, 1.0), run(8, 1.0)],
    }
    runs["fleet", 0] = [dataclasses.replace(each, uninformed=min(each.trials, 4)) for each in runs["fleet", 0]]
    found = figures(runs, {"fleet, ucb": [4, 6]}, ["a", "b"], [0, 3], ["fleet"])
    assert figures(runs, {}, ["a", "b"], [0, 3], [])["curves"] == {}
    assert (found["sum"], found["uninformed"]) == ({"fleet": 10.0}, {"fleet": 2.0})
    assert found["seed_sum"] == {"fleet": {"q1": 9.5, "median": 10.0, "q3": 13.5}}  # 9, 10 and 17
    assert found["trials"]["fleet"]["a"] == {"q1": 1.5, "median": 2.0, "q3": 5.5}
    assert found["overall"] == {"fleet": pytest.approx(4.0)}  # sqrt(2 * 8)
    assert found["overall_trial_secs"] == {"fleet": pytest.approx(8.0)}
    assert found["curves"]["fleet"][0] == pytest.approx(0.5)  # sqrt(0.25 * 1)
    assert found["network"]["fleet, ucb"]["median"] == 5.0
    assert overall({"a": 2.0, "b": 8.0}) == pytest.approx(4.0)
    assert quartiles([1.0, 2.0, 3.0]) == {"q1": 1.5, "median": 2.0, "q3": 2.5}


def test_a_method_that_proposes_nothing_is_told(data: TaskData) -> None:
    task = RecordedTask(data)
    search = task.search(method_named("random"), 0)
    search.observe(observations(data, range(len(data))))
    with pytest.raises(BenchError, match="proposes nothing"):
        task.round(search, dataclasses.replace(method_named("random"), batch=4), 0)


def test_its_tables() -> None:
    few, many = ({"q1": 10.0, "median": 12.0, "q3": 14.0}, {"q1": 110.0, "median": 120.0, "q3": 140.0})
    details = {
        "methods": ["random", "fleet"],
        "trials": {"random": {"conv": many}, "fleet": {"conv": few}, "fleet - ei": {"conv": few}},
        "overall": {"random": 120.0, "fleet": 12.0, "fleet - ei": 30.0},
        "sum": {"random": 120.0, "fleet": 12.0, "fleet - ei": 30.0},
        "seed_sum": {"random": many, "fleet": few, "fleet - ei": few},
        "uninformed": {"random": 64.0, "fleet": 0.0, "fleet - ei": 0.0},
        "overall_trial_secs": {"random": 61.27, "fleet": 5.4321, "fleet - ei": 9.0},
        "batch": {"random": 64, "fleet": 8},
        "network": {"fleet, ucb": many},
        "pretrained": False,
        "seeds": {"random": 3, "fleet": 20},
        "dataset": {"near_best": {"conv": 3}},
    }
    text = BENCHMARK.table({"details": details})
    assert "| trials to within 5% of the best (candidates there) | `fleet` | `random`, 3 seeds |" in text
    assert "| `conv` (3) | 12 (10 to 14) | 120 (110 to 140) |" in text
    assert "| ei | 12 | 30 |" in text
    assert "| overall, geometric mean | 12 (12 to 12) | 120 (120 to 120) |" in text
    assert "| relative to `fleet`, task by task | 1.00 (1.00 to 1.00) | 10.00 (10.00 to 10.00) |" in text
    assert "| starts from | x86-cpu | nothing |" in BENCHMARK.table(
        {"details": {**details, "starts": {"fleet": "x86-cpu"}}}
    )
    assert "| learned from | 44,022 candidates | nothing |" in BENCHMARK.table(
        {"details": {**details, "learned_from": {"fleet": 44_022}}}
    )
    assert "learned from" not in text
    assert "| sum over the tasks | 12 | 120 |" in text
    assert "| sum of each seed | 12 (10 to 14) | 120 (110 to 140) |" in text
    assert "| of these at random before any record | 0.0 | 64 |" in text
    assert "| seconds to build and measure them, geometric mean | 5.43 | 61.3 |" in text
    assert "| trials of a round | 8 | 64 |" in text
    assert "| `fleet`, pretrained |" in BENCHMARK.table({"details": {**details, "pretrained": True}})


def test_a_pretrained_method_starts_from_the_model_that_comes_along(
    data: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = RecordedTask(data)
    monkeypatch.setattr(replay_pool, "tasks", [task])
    run = one_task(method_named("fleet"), 0, 1, 0, BUILTIN_PATHS["pretrained"])
    shipped = read_model(BUILTIN_PATHS["pretrained"])[0]
    assert run == run_task(task, method_named("fleet"), 1, 0, shipped)
    warm, cold = task.search(method_named("fleet"), 1, shipped), task.search(method_named("fleet"), 1)
    assert [each.predicted_secs for each in warm.propose(8)] != [each.predicted_secs for each in cold.propose(8)]


def test_what_cannot_be_pretrained_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "not-read.ftd"
    with pytest.raises(BenchError, match="no model comes along for ansor"):
        run(path, ["fleet", "ansor"], [], 1, 1, effects=False, pretrained=True)
    with pytest.raises(BenchError, match=r"x86-cpu\.safetensors was trained on"):
        run(dataset_path(None), ["fleet"], [], 1, 1, effects=False, pretrained=True)
    with pytest.raises(BenchError, match="--pretrained is of single tasks alone: add --no-effects"):
        run(path, ["fleet"], [], 1, 1, pretrained=True)
    with pytest.raises(BenchError, match="several --batch is of single tasks alone: add --no-effects"):
        run(path, ["fleet"], [], 1, 1, batches=(0, 8))
    with pytest.raises(BenchError, match="leave out --pretrained"):
        run(path, ["fleet"], [], 1, 1, effects=False, pretrained=True, warm=True)
    with pytest.raises(BenchError, match=r"x86-cpu\.safetensors was trained on"):
        run(dataset_path(None), ["autotvm"], [], 1, 1, effects=False, warm=True)
    given = tmp_path / "mine.safetensors"
    given.write_bytes(b"no model")
    with pytest.raises(BenchError, match="mine"):
        run(dataset_path(None), ["fleet"], [], 1, 1, effects=False, model=given)


def test_kept_runs_are_not_made_again(data: TaskData, tmp_path: Path) -> None:
    dataset, path = tmp_path / "set.ftd", tmp_path / "runs.jsonl"
    dataset.write_bytes(b"a dataset")
    run = run_task(RecordedTask(data), method_named("random"), 2, curve_trials=0)
    RunCache(path, dataset, REPLAYED).add(method_named("random"), "conv", 2, run)
    kept = RunCache(path, dataset, REPLAYED)
    known = dataclasses.replace(run, curve=())
    assert kept.find(method_named("random"), "conv", 2) == known
    assert kept.find(dataclasses.replace(method_named("random"), name="by another name"), "conv", 2) == known
    assert kept.find(dataclasses.replace(method_named("random"), batch=16), "conv", 2) is None
    assert kept.find(method_named("random"), "conv", 3) is None
    assert kept.find(method_named("random"), "matmul", 2) is None
    dataset.write_bytes(b"another one")
    assert RunCache(path, dataset, REPLAYED).find(method_named("random"), "conv", 2) is None
    assert (
        RunCache(path, dataset, started_from([BUILTIN_PATHS["pretrained"]])).find(method_named("random"), "conv", 2)
        is None
    )
    assert RunCache(None, dataset, REPLAYED).find(method_named("random"), "conv", 2) is None
    with path.open("a") as file:
        file.write("{\n")
    with pytest.raises(BenchError, match="line 2 is no run"):
        RunCache(path, dataset, REPLAYED)
