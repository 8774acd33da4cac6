"""Guards of attention against rows that a mask hides entirely: as torch computes and as it writes them in ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from devices.networks.compiled.network_folder import CompiledNetwork, compile_network, load
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import compare, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.helpers.compiling import trace

CPU = DeviceClass("cpu", resolve_target("native", 2))
ROWS = 16


def saved(folder: Path, rows: str, weights: str) -> Path:
    """An ONNX file of attention whose ``weights`` are made of ``scores``."""
    head = '<ir_version: 8, opset_import: ["": 18]>'
    inputs = ", ".join(f"float[2, {rows}, 16] {name}" for name in ("q", "k", "v"))
    text = f"""{head} net ({inputs}, float[{rows}, {rows}] mask) => (float[2, {rows}, 16] y) <float zero = {{0}}> {{
        t = Transpose <perm = [0, 2, 1]> (k)
        products = MatMul (q, t)
        scores = Add (products, mask)
        {weights}
        y = MatMul (weights, v)
    }}"""
    onnx.save(onnx.parser.parse_model(text), str(folder / "net.onnx"))
    return folder / "net.onnx"


GUARD = "s = Softmax <axis = -1> (scores) n = IsNaN (s) weights = Where (n, zero, s)"


def inputs(rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    mask = np.where(rng.random((rows, rows)) < 0.5, 0, -np.inf).astype(np.float32)
    mask[1] = -np.inf
    return [*(rng.standard_normal((2, rows, 16)).astype(np.float32) for _ in range(3)), mask]


def compiled(file: Path, folder: Path, shapes: str = "") -> tuple[list[str], CompiledNetwork]:
    """Return the kernels, and the network with a schedule of the attention."""
    lowered = import_network(load_network(file, shapes=parse_shapes(shapes) if shapes else None), CPU)
    assert not lowered.left_out
    traces = {task.id: trace(task) for task in lowered.tasks if "attention" in task.workload.name}
    names = [each.name_hint for each in lowered.module.functions]
    return names, load(compile_network(lowered, traces, folder))


@pytest.mark.parametrize("rows", ["16", "n"])
def test_hidden_rows_of_onnx_are_zero_in_one_kernel(rows: str, tmp_path: Path) -> None:
    file = saved(tmp_path, rows, GUARD)
    names, run = compiled(file, tmp_path / "out", "n=5..32" if rows == "n" else "")
    assert any("attention" in each for each in names)
    assert not any("softmax" in each for each in names)
    for count in (5, ROWS, 31) if rows == "n" else (ROWS,):
        given = inputs(count)
        found = run(*given)
        network = load_network(file, shapes=parse_shapes("n=5..32") if rows == "n" else None)
        (expected,) = network.given(tuple(given), "").framework_outputs()
        assert not expected[:, 1].any()
        assert compare((found,), (expected,))[1] < 1e-5


def test_without_a_guard_they_are_nan(tmp_path: Path) -> None:
    names, run = compiled(saved(tmp_path, "16", "weights = Softmax <axis = -1> (scores)"), tmp_path / "out")
    assert any("attention" in each for each in names)
    assert np.isnan(run(*inputs(ROWS))[:, 1]).all()


def test_a_guard_of_another_softmax_keeps_its_form(tmp_path: Path) -> None:
    """Its rows with NaN stay zero too."""
    file = saved(tmp_path, "16", GUARD.replace("weights =", "w =") + " u = Sqrt (w) weights = Mul (u, u)")
    names, run = compiled(file, tmp_path / "out")
    assert any("isnan" in each for each in names)
    given = inputs(ROWS)
    given[0][:, 2] = np.nan
    assert not run(*given)[:, 1:3].any()


def test_hidden_rows_of_torch_are_zero_in_one_kernel(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, v, mask == 0)

    given = [torch.from_numpy(each) for each in inputs(ROWS)]
    lowered = import_network(load_network((Masked(), tuple(given))), CPU)
    assert not lowered.left_out
    traces = {task.id: trace(task) for task in lowered.tasks if "attention" in task.workload.name}
    assert traces
    run = load(compile_network(lowered, traces, tmp_path))
    expected = Masked()(*given)
    assert not expected[:, 1].any()
    torch.testing.assert_close(run(*given), expected)
