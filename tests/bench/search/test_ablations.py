"""The papers' ablations: what each variant changes, and their figures by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.datasets import dataset_path, other_tasks_path, read
from bench.models.laboratory.registry import BOOSTED_LOOPS
from bench.replay.columns import is_deep
from bench.replay.replay_runs import RecordedTask, Replayed, run_task
from bench.replay.start_models import refuse_training_data, start_of
from bench.result import BenchError
from bench.search.ablations import BENCHMARK, PAPERS, ablations, chosen_variants, noted, train_every
from bench.search.ablations_table import figures, trials_of
from fleet_tune.base.task_data import TaskData
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, read_model
from policies.search.generators import GeneticGenerator
from policies.search.methods import method_named


def test_every_paper_has_its_method_first_and_variants_that_differ_from_it() -> None:
    found = ablations()
    assert tuple(found) == PAPERS
    for paper, variants in found.items():
        assert next(iter(variants.values())) == method_named(paper)
        others = [(replace(each, name="", source=""), train_every(name)) for name, each in variants.items()]
        assert all(one != other for at, one in enumerate(others) for other in others[:at])


def test_variants_are_chosen_by_parts_of_their_names() -> None:
    assert list(chosen_variants(["autotvm"], ["genetic,", "lambda 4"])) == [
        "autotvm: genetic, without a model (figure 4)",
        "autotvm: lambda 4 (figure 6)",
    ]
    assert len(chosen_variants(["bansor", "fleet"], [])) == sum(
        len(ablations()[paper]) for paper in ("bansor", "fleet")
    )
    with pytest.raises(BenchError, match="no variant is called 'figure 9': bansor: as published, "):
        chosen_variants(["bansor"], ["rounds", "figure 9"])


def test_what_some_of_them_change() -> None:
    found = ablations()
    assert [found["autotvm"][f"lambda {each} (figure 6)"].selection.top_factor for each in (1, 4)] == [1.0, 4.0]
    regression = found["autotvm"]["regression (figure 5)"].training
    assert regression is not None
    assert regression.model == BOOSTED_LOOPS
    assert {name: train_every(f"moa-pruner: {name}") for name in found["moa-pruner"] if train_every(name) > 1} == {
        "trained in every 4th round (section 6.3)": 4
    }
    assert noted("conv", 4) != noted("conv", 1) == "conv"
    doubled = {name: each.batch for name, each in found["autotvm"].items() if " x2" in name}
    assert doubled == {"random x2 (figure 4)": 128, "genetic x2, without a model (figure 4)": 128}
    assert isinstance(found["pruner"]["without LSE (table 12)"].generator, GeneticGenerator)
    assert found["bansor"]["rounds of 16 (figure 4)"].batch == 16


def test_those_that_start_from_a_model_need_data_that_it_has_not_seen() -> None:
    methods = ablations()["moa-pruner"]
    starts = {name: method.starts_from for name, method in methods.items()}
    assert [name for name, start in starts.items() if not start] == ["without MoA, from nothing (table 12)"]
    assert [name for name, method in methods.items() if not method.learns_online] == list(methods)[-2:]
    seen, other = dataset_path(None), other_tasks_path(None)
    files = {start_of(start, None) for start in starts.values() if start}
    refuse_training_data(other, read(other), files)
    with pytest.raises(BenchError, match=r"x86-cpu-pacm\.safetensors was trained on .*znver5-2\.ftd: name another set"):
        refuse_training_data(seen, read(seen), files)


def test_an_offline_method_proposes_by_the_model_that_it_starts_from(data: TaskData) -> None:
    task, method = RecordedTask(data), ablations()["moa-pruner"]["offline, without LSE (table 13)"]
    prior = read_model(BUILTIN_PATHS[method.starts_from])[0]
    reasons = {each.reason.split()[0] for each in task.search(method, 0, prior).propose(10)}
    assert method.generator.name in reasons
    assert {each.reason for each in task.search(method, 0).propose(10)} == {"random"}
    assert 1 <= run_task(task, method, 0, 0, prior).trials <= len(data)


def test_a_line_is_the_sum_over_the_tasks_of_each_seed() -> None:
    def run(trials: int) -> Replayed:
        return Replayed(trials, 0.0, ())

    runs = {
        ("paper: on", 0): [run(1), run(3), run(8)],
        ("paper: on", 2): [run(10), run(10), run(40)],
        ("paper: off x2", 0): [run(12), run(11), run(99)],  # 6, 6 and 50 trials of two measurements
        ("paper: off x2", 2): [run(40), run(40), run(40)],
    }
    lines = figures(runs, ["paper: on", "paper: off x2"], [0, 2])
    line = lines["paper: on"]
    assert line["sum"] == {"q1": 12.0, "median": 13.0, "q3": 30.5}  # 11, 13 and 48
    assert line["overall"] == pytest.approx(30**0.5)  # medians 3 and 10
    assert (line["interval"]["low"], line["interval"]["high"]) == pytest.approx((3.0, 10.0))
    assert lines["paper: off x2"]["sum"]["median"] == 26.0
    # Medians 6 and 20: twice as many on either task.
    assert list(lines["paper: off x2"]["relative"].values()) == [pytest.approx(2.0)] * 3
    assert trials_of("autotvm: random", 11) == 11.0


@pytest.mark.parametrize("paper", ["autotvm", "adatune", "bansor"])
def test_every_variant_of_trees_arrives(paper: str, data: TaskData) -> None:
    task = RecordedTask(data)
    for name, variant in ablations()[paper].items():
        if not is_deep(variant):
            assert 1 <= run_task(task, variant, 0, curve_trials=0).trials <= len(data), name


def test_its_table() -> None:
    lines = {"bansor: as published": {"sum": {"q1": 90.0, "median": 100.0, "q3": 120.5}, "overall": 12.34}}
    details = {"lines": lines, "tasks": ["a", "b"], "seeds": {"bansor: as published": 10}}
    text = BENCHMARK.table({"details": details})
    assert "| trials to within 5%, 2 tasks | sum of each seed | geometric mean | seeds |" in text
    assert "| bansor: as published | 100 (90 to 120) | 12.3 | 10 |" in text
    relative = {"mean": 1.5, "low": 1.254, "high": 2.0}
    again = BENCHMARK.table(
        {"details": {**details, "lines": {name: {**line, "relative": relative} for name, line in lines.items()}}}
    )
    assert "| geometric mean | relative to the first, task by task | seeds |" in again
    assert "| 12.3 | 1.50 (1.25 to 2.00) | 10 |" in again
