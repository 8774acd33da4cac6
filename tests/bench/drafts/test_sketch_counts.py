"""Bansor's tables I and II: the tables by hand, and counts of real operators."""

from __future__ import annotations

from typing import Any

import pytest

from bench.drafts import sketch_counts as subject
from bench.drafts.sketch_counts import BENCHMARK, NETWORKS, OPERATORS, PUBLISHED, TARGETS, run, table_1, table_2
from bench.drafts.sketch_counts_process import of_network
from bench.result import BenchError
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("counted", resolve_target(TARGETS["CPU"]))


def task(metaschedule: int, ours: int, flop: float = 1.0) -> dict[str, Any]:
    return {"task": "t", "flop": flop, "calls": 1, "metaschedule": metaschedule, "ours": ours}


COUNTS = {
    "CPU": {
        "TBS": {"tasks": [task(1, 1, 0.0), task(3, 1), task(9, 1)]},
        "GMM": {"error": "no such file"},
        "BERT": {"tasks": [task(3, 1), task(9, 2), task(1, 0), task(1, 9, 0.0)]},
    },
    "GPU": {"TBS": {"tasks": [task(1, 0)]}, "GMM": {"tasks": []}, "BERT": {"tasks": [task(4, 0), task(1, 1)]}},
}


def test_table_1_has_each_task_that_computes() -> None:
    text = table_1(COUNTS, ["TBS", "GMM"])
    assert "| TBS | 3 and 1; 9 and 1 | 27 | 1 and 0 | 4 |" in text
    assert "| GMM | no such file | 3 | none | - |" in text


def test_table_2_is_of_the_tasks_and_their_extremes() -> None:
    text = table_2(COUNTS, ["BERT"])
    row = "| BERT | 4, paper 10 | 4,000, paper 10,000 | (11, 4), paper (9, 4) | (1, 2), paper (3, 1) |"
    assert row in text
    broken = {device: {"BERT": {"error": "it needs transformers"}} for device in TARGETS}
    assert "| BERT | it needs transformers |" in table_2(broken, ["BERT"])


def test_every_row_of_the_papers_tables_is_there() -> None:
    single = ("C1D", "C2D", "C3D", "GMM", "GRP", "DIL", "DEP", "T2D", "CAP", "NRM")
    assert tuple(OPERATORS) == (*single, "ConvLayer", "TBS")
    assert all(OPERATORS[name][1] == {"CPU": 3} for name in single)
    assert set(NETWORKS) == set(PUBLISHED)


def test_a_product_and_a_softmax_have_the_papers_27_together() -> None:
    """Ansor has the scores of an attention as one task: its sketches are those of the product times the softmax's."""
    counted = of_network(OPERATORS["TBS"][0], CPU)["tasks"]
    computing = [each["metaschedule"] for each in counted if each["flop"]]
    assert computing == [3, 9]
    assert computing[0] * computing[1] == OPERATORS["TBS"][1]["CPU"]
    assert [each["calls"] for each in counted] == [1] * len(counted)


def test_the_generator_of_dcgan_has_five_kinds_of_layers() -> None:
    counted = of_network(NETWORKS["DCGAN"], CPU)["tasks"]
    products = [each["task"] for each in counted if each["task"].startswith(("matmul", "conv2d"))]
    assert len(products) >= 5  # a dense layer and four transposed convolutions, of which some take two kernels


def test_what_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error" in of_network("bench/networks/none.py:f", CPU)
    everything = {spec: {"error": "not here"} for spec, _ in OPERATORS.values()}
    monkeypatch.setattr(subject, "run_json", lambda *_, **__: everything)
    with pytest.raises(BenchError, match="GMM cannot be read: not here"):
        run(["GMM"], [])


def test_its_sum_and_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = OPERATORS["GMM"][0]
    monkeypatch.setattr(subject, "run_json", lambda *_, **__: {spec: {"tasks": [task(3, 1), task(2, 0)]}})
    found = run(["GMM"], [])
    assert found.ours == 6.0
    assert "| GMM | 3 and 1; 2 and 0 | 3 |" in BENCHMARK.table({"details": found.details})
