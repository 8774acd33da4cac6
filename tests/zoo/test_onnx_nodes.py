"""A sample of ONNX's own tests of single operators: right, or refused in one line (all of them: ``make zoo``)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from onnx import TensorProto, helper

from tests.zoo import onnx_nodes
from tests.zoo.onnx_nodes import DISAGREES, RIGHT, outcome_of, outcomes


@pytest.mark.timeout(600)
def test_a_sample_is_right_or_refused() -> None:
    results = list(outcomes(every=31))
    assert [outcome for outcome in results if outcome.kind in (*onnx_nodes.FAULTS, DISAGREES)] == []
    assert sum(outcome.kind == RIGHT for outcome in results) >= len(results) // 2
    assert all(outcome.line for outcome in results if outcome.kind != RIGHT)


def test_wrong_numbers_are_noticed() -> None:
    [case] = [case for case in onnx_nodes.cases() if case.name == "test_abs"]
    [(inputs, [expected])] = case.data_sets
    assert outcome_of(case).kind == RIGHT
    assert outcome_of(replace(case, data_sets=[(inputs, [expected + 1])])).kind == onnx_nodes.WRONG
    node = helper.make_node("Abs", ["x"], ["y"])
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])])
    dynamic = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert outcome_of(replace(case, model=dynamic)).kind == onnx_nodes.REFUSED
