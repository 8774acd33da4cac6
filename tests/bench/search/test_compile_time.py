"""Pruner's tables 7 and 13: what is compared, a short search on made-up data, and the table by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.replay.replay_runs import RecordedTask
from bench.replay.run_cache import RunCache
from bench.search.compile_time import BENCHMARK, COSTS, PEER, Cost, search_cost, variants
from fleet_tune.base.task_data import TaskData
from policies.search.generators import GeneticGenerator, LatentGenerator
from policies.search.methods import method_named


def test_what_is_compared() -> None:
    found = variants()
    assert [found[name] for name in (PEER, "pruner", "moa-pruner")] == [
        method_named(name) for name in ("ansor", "pruner", "moa-pruner")
    ]
    *_, drafted, plain = found.values()
    assert isinstance(drafted.generator, LatentGenerator)
    assert isinstance(plain.generator, GeneticGenerator)
    for each in (drafted, plain):
        assert not each.learns_online
        assert each.starts_from == method_named("moa-pruner").starts_from


def test_trials_are_told_and_paid_for_once(data: TaskData) -> None:
    cost = search_cost(RecordedTask(data), method_named("ansor"), 80, 0)
    assert cost.others == pytest.approx(80 * 0.75)
    assert cost.proposing > 0 < cost.training
    assert cost.secs == pytest.approx(cost.proposing + cost.training + cost.others)


def test_costs_are_kept(tmp_path: Path) -> None:
    dataset, path, cost = tmp_path / "set.ftd", tmp_path / "runs.jsonl", Cost(1.0, 2.5, 3.0)
    dataset.write_bytes(b"a dataset")
    RunCache(path, dataset, COSTS).add(method_named("pruner"), "40 trials of conv", 0, cost)
    assert RunCache(path, dataset, COSTS).find(method_named("pruner"), "40 trials of conv", 0) == cost


def test_its_table() -> None:
    parts = {"proposing": 1.0, "training": 2.0, "others": 7.0}
    details = {
        "tasks": ["a", "b"],
        "trials": 40,
        "costs": {PEER: {"a": parts, "b": parts}, "pruner": {"a": parts, "b": {**parts, "training": 0.0}}},
        "secs": {PEER: 20.0, "pruner": 18.0},
    }
    text = BENCHMARK.table({"details": details})
    assert "| s for 40 trials of each of 2 tasks | proposing | training | building and measuring | in all |" in text
    assert "| pruner | 2.0 | 2.0 | 14.0 | 18 | 0.900 |" in text
    sample = json.loads((Path(__file__).parents[1] / "samples" / "compile-time.json").read_text())
    assert sample["details"]["secs"][PEER] == sample["peer"]
