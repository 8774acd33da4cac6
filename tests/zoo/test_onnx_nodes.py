"""A sample of ONNX's own tests of single operators: right, or refused in one line (all of them: ``make zoo``)."""

from __future__ import annotations

import collections
import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.zoo import onnx_nodes
from tests.zoo.onnx_nodes import operator_of, outcome_of, outcomes
from tests.zoo.operators_document import DISAGREES, FAULTS, RIGHT, WRONG, Outcome, document, rows


@pytest.mark.timeout(600)
def test_a_sample_is_right_or_refused() -> None:
    results = list(outcomes(every=61))
    assert [outcome for outcome in results if outcome.kind in (*FAULTS, DISAGREES)] == []
    assert sum(outcome.kind == RIGHT for outcome in results) >= len(results) // 2
    assert all(outcome.line for outcome in results if outcome.kind != RIGHT)


def test_wrong_numbers_are_noticed() -> None:
    [case] = [case for case in onnx_nodes.cases() if case.name == "test_abs"]
    [(inputs, [expected])] = case.data_sets
    assert outcome_of(case).kind == RIGHT
    assert outcome_of(replace(case, data_sets=[(inputs, [expected + 1])])).kind == WRONG
    node = helper.make_node("Abs", ["x"], ["y"])
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])])
    dynamic = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert outcome_of(replace(case, model=dynamic)).kind == "refused"


def test_values_that_contradict_the_definition_are_those_of_onnx_runtime() -> None:
    for outcome in outcomes(list(onnx_nodes.OTHERWISE)):
        assert (outcome.kind, outcome.line) == (RIGHT, onnx_nodes.OTHERWISE[outcome.name])


def test_the_document_is_written_from_outcomes() -> None:
    """docs/generated/operators.md as ``make zoo`` writes it: its form, and every operator with all of its cases."""
    text = (Path(__file__).parents[2] / "docs" / "generated" / "operators.md").read_text()
    table = rows(text)
    version = re.search(r"that onnx (\S+) brings", text)
    assert version
    outcomes = [
        Outcome("", operator, kind, "node.onnx: the operator X ('y') is odd", "leave it out")
        for operator, (cases, *_) in table.items()
        if operator != "all"
        for kind in [RIGHT] * int(cases)
    ]
    again = document(outcomes, version[1])
    assert again.split("| all |")[0] == text.split("| all |")[0]
    assert {name: row[0] for name, row in rows(again).items()} == {name: row[0] for name, row in table.items()}
    if version[1] == onnx.__version__:
        assert collections.Counter(operator_of(case) for case in onnx_nodes.cases()) == {
            name: int(row[0]) for name, row in table.items() if name != "all"
        }


def test_refusals_are_told_apart_by_their_reasons() -> None:
    refusals = [
        Outcome(
            f"test_{at}", operator, "refused", f"/tmp/{at}/node.onnx: the operator {operator} ('{at}') {reason}", step
        )
        for at, (operator, reason, step) in enumerate(
            [("If", "is odd", "go"), ("Loop", "is odd", "go"), ("Loop", "is even", "stay")]
        )
    ]
    right = Outcome("test_x", "Loop", RIGHT, "", fixed=("axes",))
    assert "## Where" not in document([*refusals, right], "1")
    text = document([*refusals, replace(right, line="its values are odd")], "1")
    assert text.endswith("| test_x | its values are odd |\n")
    assert rows(text) == {
        "all": ["4", "", "1", "3", "", "", "", ""],
        "If": ["1", "", "", "1", "", "", "", "1"],
        "Loop": ["3", "", "1", "2", "", "", "", "1, 2"],
    }
    assert "| 1 | is odd | go | 2 | If, Loop |\n| 2 | is even | stay | 1 | Loop |\n" in text
