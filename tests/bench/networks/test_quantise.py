"""A quantised ONNX network, made and loaded as a benchmark does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from bench.networks.quantise import quantise
from bench.peers.example import as_arrays, load, load_example
from bench.peers.frameworks import SIDES, relative_error
from bench.result import BenchError

MODEL = "examples/networks.py:mlp"


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantised") / "net.int8.onnx"
    quantise(MODEL, path)
    return path


def test_a_quantised_network_has_the_inputs_of_the_module_and_nearly_its_outputs(quantised: Path) -> None:
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(quantised).graph.node}
    module, inputs = load_example(MODEL)
    example = load(str(quantised))
    for ours, theirs in zip(example.inputs, inputs, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    with torch.inference_mode():
        error = relative_error(example.expected, as_arrays(module(*inputs)))
    assert 0 < error < 0.1
    assert relative_error(as_arrays(SIDES["ort"](example, None)()), example.expected) < 0.05


def test_pytorch_says_that_it_cannot_run_an_onnx_file(quantised: Path) -> None:
    with pytest.raises(TypeError, match="no torch module"):
        SIDES["eager"](load(str(quantised)), None)


def test_inputs_that_are_missing_are_named(quantised: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(quantised.read_bytes())
    with pytest.raises(BenchError, match=r"alone\.npz beside it .*bench\.networks\.quantise"):
        load(str(alone))
