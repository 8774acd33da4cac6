"""Networks whose dynamic dimensions may be 0: the cache of a decoder before its first token, a batch of nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.dynamic.other_extents import compare_least, other_extents
from devices.networks.frontend import load_network
from devices.networks.network import Network
from devices.networks.tasks.lowering import compare, import_network
from devices.networks.tasks.tiled_rows import TiledRows
from devices.sketches.dynamic.rows import is_dynamic
from fleet_tune.base.errors import NetworkError
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.devices.networks.dynamic.test_decoding import CPU, Step
from tests.devices.networks.dynamic.test_networks import random_trace
from tests.devices.networks.dynamic.test_several_dimensions import Cached, Encoder, Joined

SAMPLES, TOKENS, PAST = Dim("samples", min=0, max=5), Dim("tokens", min=0, max=19), Dim("past", min=0, max=33)


def one_token() -> tuple[Any, ...]:
    caches = [torch.randn(1, 2, 9, 16) for _ in range(4)]
    return Step(4, 2, 16).eval(), (torch.randn(1, 1, 64), *caches), ({}, tuple({2: PAST} for _ in caches))


def cached() -> tuple[Any, ...]:
    kept = [torch.randn(1, 2, 6, 16) for _ in range(2)]
    return Cached().eval(), (torch.randn(1, 4, 32), *kept), ({1: TOKENS}, {2: PAST}, {2: PAST})


def encoder() -> tuple[Any, ...]:
    both = {0: SAMPLES, 1: TOKENS}
    return Encoder().eval(), (torch.randn(3, 7, 32), torch.zeros(3, 7)), (both, both)


def joined() -> tuple[Any, ...]:
    return Joined().eval(), (torch.randn(3, 7, 24),), ({0: SAMPLES, 1: TOKENS},)


NETWORKS = {"one token": one_token, "cached": cached, "encoder": encoder, "joined": joined}


def network_of(name: str) -> Network:
    torch.manual_seed(0)
    return load_network(NETWORKS[name]())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_right_where_an_extent_is_zero(name: str, tmp_path: Path) -> None:
    network = network_of(name)
    lowered = import_network(network, CPU)
    rng = np.random.default_rng(0)
    compile_network(lowered, {task.id: random_trace(task, rng) for task in lowered.tasks}, tmp_path)
    run = load(tmp_path)
    assert network.shapes is not None
    empty = [each for each in network.shapes.others if 0 in each.values()]
    assert len(empty) >= len(network.shapes.dynamic)
    for extents in (*empty, network.shapes.typical, *empty):
        at = network.at(extents)
        expected = at.framework_outputs()
        for inputs in (at.example_inputs, tuple(map(torch.from_numpy, at.example_inputs))):
            found = run(*inputs)
            outputs = found if isinstance(found, tuple) else (found,)
            assert compare(tuple(np.asarray(each) for each in outputs), expected)[1] < 1e-5, extents


def test_tiles_of_joined_dimensions_begin_at_their_smallest_product() -> None:
    def smallest(shapes: str) -> set[int]:
        network = load_network(joined(), shapes=parse_shapes(shapes))
        assert network.shapes is not None
        kernels = [each for each in import_network(network, CPU).module.functions.values() if is_dynamic(each)]
        found = [TiledRows.of(each, network.shapes) for each in kernels]
        return {rows.dimension.tile_sizes[0] for rows in found if rows is not None}

    assert smallest("samples=0..5, tokens=2..19") == {1}
    assert smallest("samples=2..5, tokens=5..19") == {8}


class Branching(nn.Module):
    """torch.export writes the branch of extents that are not 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) if x.shape[0] else x.sum(0) + 1


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.amax(0)


def test_another_branch_at_zero_is_found_and_a_smaller_range_helps() -> None:
    network = load_network((Branching(), (torch.randn(4, 3),), ({0: Dim("n", min=0, max=8)},)))
    lowered = import_network(network, CPU)
    others = other_extents(network)
    with pytest.raises(NetworkError, match=r"^with n = 0: the imported network .* disagrees"):
        compare_least(others, lowered, lambda inputs: tuple(array.sum(0) for array in inputs))
    network = load_network(
        (Branching(), (torch.randn(4, 3),), ({0: Dim("n", min=0, max=8)},)), shapes=parse_shapes("n=1..8")
    )
    compare_least(other_extents(network), lowered, lambda inputs: tuple(array.sum(0) for array in inputs))


def test_a_network_is_compared_where_it_computes_something_too() -> None:
    network = load_network((nn.ReLU(), (torch.randn(4, 3),), ({0: Dim("n", min=0, max=8)},)))
    rows: list[int] = []

    def run(inputs: Any) -> tuple[Any, ...]:
        rows.append(len(inputs[0]))
        return tuple(array.clip(0) for array in inputs)

    compare_least(other_extents(network), import_network(network, CPU), run)
    assert rows == [0, 1]


def test_a_framework_that_refuses_nothing_is_told() -> None:
    network = load_network((Largest(), (torch.randn(4, 3),), ({0: Dim("n", min=0, max=8)},)))
    assert [each.name for each in other_extents(network).refused] == ["n = 0"]
    assert "with n = 0 it is not compared" in other_extents(network).refusals[0]


def test_an_onnx_model_takes_an_empty_cache(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[1, 3] x, float[past, 3] cache) => (float[1, 3] y, float[all, 3] grown) {
        grown = Concat <axis = 0> (cache, x)
        t = Transpose <perm = [1, 0]> (grown)
        scores = MatMul (x, t)
        weights = Softmax <axis = -1> (scores)
        y = MatMul (weights, grown)
    }"""
    onnx.save(onnx.parser.parse_model(text), str(tmp_path / "net.onnx"))
    network = load_network(tmp_path / "net.onnx", shapes=parse_shapes("past=0..7"))
    run = load(compile_network(import_network(network, CPU), {}, tmp_path / "out"))
    for past in range(8):
        at = network.at({"past": past})
        assert compare(run(*at.example_inputs), at.framework_outputs())[1] < 1e-5, past
