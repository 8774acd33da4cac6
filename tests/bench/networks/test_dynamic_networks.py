"""Networks with a dynamic dimension, and the extents that come with them."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
import torch

from bench.networks import dynamic_networks
from bench.networks.dynamic_extents import SHAPES, shapes_beside
from bench.networks.dynamic_networks import llama_step, tiny_layers
from bench.processes import ROOT
from devices.networks.frameworks import runners
from devices.networks.frameworks.runners import NetworkSource, as_arrays
from devices.networks.frontend import load_network
from fleet_tune.base.shapes.shapes import parse_shapes

FILE = "bench/networks/dynamic_networks.py"
TINY_LLAMA = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}
TINY_LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 1}


def test_every_network_has_its_extents_and_every_extent_a_network() -> None:
    functions = [node for node in ast.parse((ROOT / FILE).read_text()).body if isinstance(node, ast.FunctionDef)]
    networks = {each.name for each in functions if not each.args.args and not each.name.startswith("_")}
    assert networks == set(SHAPES)
    for text in SHAPES.values():
        (dynamic,) = parse_shapes(text).dynamic
        extents = [extent for extent, _ in dynamic.weights]
        assert len(extents) == 8
        assert (extents[0], extents[-1]) == (dynamic.least, dynamic.most)


def test_extents_belong_to_the_networks_of_one_file() -> None:
    assert shapes_beside(f"{FILE}:tiny_layers") == SHAPES["tiny_layers"]
    assert shapes_beside(f"{FILE}:other") is None
    assert shapes_beside("my/networks.py:tiny") is None


def test_the_tiny_one_takes_all_of_its_extents() -> None:
    network = load_network(tiny_layers(), shapes=parse_shapes(SHAPES["tiny_layers"]))
    assert network.input_shapes == (("n", 32),)
    for extent in (1, 64):
        (rows,) = network.at({"n": extent}).framework_outputs()
        assert rows.shape == (extent, 16)
        assert len(np.unique(rows, axis=0)) == extent


def test_a_step_of_decoding_continues_a_text() -> None:
    pytest.importorskip("transformers")
    network, _, _ = llama_step(2, 31, **TINY_LLAMA)
    step: Any = network
    ids = torch.randint(0, 64, (1, 6))
    with torch.inference_mode():
        whole = step.llama(input_ids=ids, use_cache=True)
        cache = [getattr(layer, of)[:, :, :1] for layer in whole.past_key_values.layers for of in ("keys", "values")]
        for at in range(1, 6):
            hidden, *cache = step(ids[:, at : at + 1], *cache)
            assert torch.allclose(hidden, whole[0][:, at : at + 1], atol=1e-5)
    for layer, keys in zip(whole.past_key_values.layers, cache[::2], strict=True):
        assert torch.allclose(keys, layer.keys, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_growing_cache_is_dynamic_in_onnx() -> None:
    """The exporter follows a cache of any length, and not that of the example inputs."""
    pytest.importorskip("transformers")
    network = load_network(llama_step(1, 31, **TINY_LLAMA), shapes=parse_shapes("past=1..31"))
    assert network.input_shapes == ((1, 1), (1, 1, "past", 32), (1, 1, "past", 32))
    module = llama_step(1, 31, **TINY_LLAMA)[0]
    with torch.no_grad():
        example = tuple(map(torch.from_numpy, network.example_inputs))
        on = runners.onnx_runtime(NetworkSource(module, None, example, network.input_shapes))
        for extent in (1, 5, 31):
            at = network.at({"past": extent})
            found = as_arrays(on(tuple(map(torch.from_numpy, at.example_inputs)))())
            for ours, theirs in zip(found, at.framework_outputs(), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_same_network_each_time() -> None:
    (one, inputs, _), (other, others, _) = dynamic_networks.tiny_layers(), dynamic_networks.tiny_layers()
    assert torch.equal(*inputs, *others)
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))
