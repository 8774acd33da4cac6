"""The benchmark per-op: which operators of two frameworks are the same, and what the table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.latency import per_op
from bench.latency.per_op import alone_against_in_network, key_of, kind_of, ours_of, rows_of, table, theirs_of
from bench.result import BenchError


def _kernel(task: str, calls: int, secs: float) -> dict[str, Any]:
    return {"task": task, "calls": calls, "secs": secs}


def test_operators_are_of_one_kind_in_all_frameworks() -> None:
    for names, kind in (
        (("conv2d_add_relu", "Conv", "FusedConv", "GroupConvolution"), "convolution"),
        (("matmul_add_gelu", "Gemm", "FullyConnected", "FusedMatMul"), "product"),
        (("max_pool2d", "MaxPool", "GlobalAveragePool"), "pooling"),
        (("layer_norm", "LayerNormalization", "MVN"), "norm"),
        (("concatenate", "Concat", "ReorderOutput", "Transpose"), "layout"),
        (("add_relu", "Add", "Eltwise", "Relu"), "element-wise"),
    ):
        assert {kind_of(name) for name in names} == {kind}


def test_the_layout_of_an_output_is_no_difference() -> None:
    assert key_of("conv2d", (56, 56, 64)) == key_of("Conv", (1, 64, 56, 56)) == ("convolution", (56, 56, 64))


def test_calls_and_operators_of_one_shape_are_added_up() -> None:
    timed = {"kernels": [_kernel("conv2d_relu 8x8x4", 2, 1.0), _kernel("conv2d_relu 8x8x4#2", 1, 3.0)]}
    assert ours_of({"in_network": timed}) == {("convolution", (4, 8, 8)): 5.0}
    profile = [
        {"kind": "Conv", "shape": [1, 4, 8, 8], "secs": 1.5},
        {"kind": "FusedConv", "shape": [4, 8, 8], "secs": 2},
    ]
    assert theirs_of(profile) == {("convolution", (4, 8, 8)): 3.5}


def test_the_largest_loss_comes_first_against_the_fastest_that_has_the_operator() -> None:
    conv, pool, reorder = ("convolution", (8,)), ("pooling", (8,)), ("layout", (8,))
    rows = rows_of({conv: 5.0, pool: 1.0}, {"ort": {conv: 4.0, pool: 3.0, reorder: 0.5}, "openvino": {conv: 2.0}})
    assert [(row["kind"], row["loss"]) for row in rows] == [("convolution", 3.0), ("layout", -0.5), ("pooling", -2.0)]
    assert rows[1]["ours"] is None
    assert rows[2]["openvino"] is None
    alone = {"rank_correlation": 0.912, "sum": 0.876}
    details = {"model": "m", "rows": rows, "alone": alone, "whole_secs": {"ours": 6.0, "ort": 7.5, "openvino": 2.0}}
    text = table({"details": details})
    assert "| convolution 8 | 5000000 | 4000000 | 2000000 | 3000000 |" in text
    assert text.endswith("Kernels alone: rank correlation 0.91, sum 0.88 of that in the network.")
    assert "| layout 8 | - | 500000 | - | -500000 |" in text


def test_times_alone_are_compared_with_those_in_the_network() -> None:
    kernels = [
        {**_kernel("a", 2, 1.0), "alone_secs": 0.5},
        {**_kernel("b", 1, 3.0), "alone_secs": 2.0},
        {**_kernel("c", 1, 4.0), "alone_secs": 1.0},
        {**_kernel("d", 1, 9.0), "alone_secs": None},
    ]
    found = alone_against_in_network({"in_network": {"kernels": kernels}})
    assert found == {"rank_correlation": pytest.approx(0.5), "sum": pytest.approx(4.0 / 9.0)}


def test_a_folder_without_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="holds no compiled network"):
        per_op.run("m", tmp_path, 1.0, 1)
    with pytest.raises(BenchError, match="were not timed"):
        ours_of(json.loads('{"in_network": null}'))
