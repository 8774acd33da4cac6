"""The papers' ablations: what each variant changes, and their figures by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.search.ablations import BENCHMARK, PAPERS, ablations, figures, networks
from bench.search.replay import is_deep
from bench.search.replay_runs import RecordedTask, Replayed, run_task
from fleet_tune.records.datasets.dataset import TaskData
from policies.search.generators import GeneticGenerator
from policies.search.methods import method_named


def test_every_paper_has_its_method_first_and_variants_that_differ_from_it() -> None:
    found = ablations()
    assert tuple(found) == PAPERS
    for paper, variants in found.items():
        assert next(iter(variants.values())) == method_named(paper)
        others = [replace(each, name="", source="") for each in variants.values()]
        assert all(one != other for at, one in enumerate(others) for other in others[:at])


def test_what_some_of_them_change() -> None:
    found = ablations()
    assert [found["autotvm"][f"lambda {each} (figure 6)"].selection.top_factor for each in (1, 4)] == [1.0, 4.0]
    regression = found["autotvm"]["regression (figure 5)"].training
    assert regression is not None
    assert regression.model == "boosted-loops"
    assert isinstance(found["pruner"]["without LSE (table 12)"].generator, GeneticGenerator)
    assert found["bansor"]["rounds of 16 (figure 4)"].batch == 16
    ansor, sketches, both = networks().values()
    assert (sketches.tasks, sketches.sketches) == (ansor.tasks, both.sketches)
    assert both == method_named("bansor")


def test_a_line_is_the_sum_over_the_tasks_of_each_seed() -> None:
    def run(trials: int) -> Replayed:
        return Replayed(trials, 0.0, ())

    runs = {("on", 0): [run(1), run(3), run(8)], ("on", 2): [run(10), run(10), run(40)]}
    line = figures(runs, ["on"], [0, 2])["on"]
    assert line["sum"] == {"q1": 12.0, "median": 13.0, "q3": 30.5}  # 11, 13 and 48
    assert line["overall"] == pytest.approx(30**0.5)  # medians 3 and 10


@pytest.mark.parametrize("paper", ["autotvm", "adatune", "bansor"])
def test_every_variant_of_trees_arrives(paper: str, data: TaskData) -> None:
    task = RecordedTask(data)
    for name, variant in ablations()[paper].items():
        if not is_deep(variant):
            assert 1 <= run_task(task, variant, 0, curve_trials=0).trials <= len(data), name


def test_its_table() -> None:
    lines = {"bansor: as published": {"sum": {"q1": 90.0, "median": 100.0, "q3": 120.5}, "overall": 12.34}}
    details = {"lines": lines, "tasks": ["a", "b"], "seeds": {"bansor: as published": 10}, "network": {}}
    text = BENCHMARK.table({"details": details})
    assert "| trials to within 5%, 2 tasks | sum over the tasks | geometric mean | seeds |" in text
    assert "| bansor: as published | 100 (90 to 120) | 12.3 | 10 |" in text
