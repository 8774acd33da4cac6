"""Networks with an input whose extent is a sum of others: a decoder's mask over the past and the new tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from devices.networks.compiled.manifest import read_manifest
from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frameworks.runners import NetworkSource
from devices.networks.frontend import load_network
from devices.networks.input_shapes import InputShapes, NetworkInputError
from devices.networks.network import Network
from devices.networks.onnx.dimensions import named, with_extents
from devices.networks.tasks.lowering import compare, import_network
from fleet_tune.base.errors import NetworkError, OutputFolderError
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.devices.networks.dynamic.test_decoding import CPU

NAMES = ("x", "mask", "keys", "values")
AXES = {"x": {0: "batch", 1: "tokens"}, "mask": {0: "batch", 1: "past + tokens"}} | {
    name: {0: "batch", 2: "past"} for name in NAMES[2:]
}
BOUNDS = "batch=1..3, tokens=1..5, past=0..9"


class Masked(nn.Module):
    """Attention to a cache and to new tokens, of which a mask hides some."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(32, 96)

    def forward(self, x: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        heads = self.inside(x).reshape(x.shape[0], x.shape[1], 3, 2, 16).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, heads[1]], 2), torch.cat([values, heads[2]], 2)
        scores = heads[0] @ keys.transpose(-1, -2) / 4 + torch.where(mask[:, None, None] > 0, 0.0, -1e9)
        return (torch.softmax(scores, -1) @ values).transpose(1, 2).flatten(2), keys, values


def inputs(batch: int = 2, tokens: int = 4, past: int = 6) -> tuple[Tensor, ...]:
    mask = torch.ones(batch, past + tokens)
    mask[:, : past // 2] = 0
    return torch.randn(batch, tokens, 32), mask, *(torch.randn(batch, 2, past, 16) for _ in range(2))


def masked() -> tuple[Any, ...]:
    torch.manual_seed(0)
    batch, tokens, past = Dim("batch", min=1, max=3), Dim("tokens", min=1, max=5), Dim("past", min=0, max=9)
    cache = {0: batch, 2: past}
    axes = ({0: batch, 1: tokens}, {0: batch, 1: Dim("total", min=1, max=14)}, cache, cache)
    return Masked().eval(), inputs(), axes


def torch_network(folder: Path) -> Network:
    del folder
    return load_network(masked())


def saved_network(folder: Path) -> Network:
    module, given, axes = masked()
    torch.export.save(torch.export.export(module, given, dynamic_shapes=axes), folder / "net.pt2")
    return load_network(folder / "net.pt2")


def onnx_network(folder: Path, bounds: str = BOUNDS) -> Network:
    module, given, _ = masked()
    file = str(folder / "net.onnx")
    torch.onnx.export(module, given, file, dynamo=False, input_names=list(NAMES), dynamic_axes=AXES)
    return load_network(folder / "net.onnx", shapes=parse_shapes(bounds))


FORMS = {"torch": torch_network, "pt2": saved_network, "onnx": onnx_network}


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_is_no_dimension_of_its_own(form: str, tmp_path: Path) -> None:
    network = FORMS[form](tmp_path)
    assert network.shapes is not None
    assert len(network.shapes.dynamic) == 3
    lowered = import_network(network, CPU)
    kernels = [each.name_hint for each in lowered.module.functions]
    assert any("attention" in each for each in kernels)
    assert not any("softmax" in each for each in kernels)
    run = load(compile_network(lowered, {}, tmp_path / "out"))
    for extents in network.shapes.others:
        at = network.at(extents)
        assert compare(run(*at.example_inputs), at.framework_outputs())[1] < 1e-5, extents


def test_the_inputs_of_a_call_must_agree(tmp_path: Path) -> None:
    network = load_network(masked())
    assert network.input_shapes[:2] == (("batch", "tokens", 32), ("batch", "tokens + past"))
    run = load(compile_network(import_network(network, CPU), {}, tmp_path))
    x, _, keys, values = inputs(1, 2, 0)
    assert run(x, torch.ones(1, 2), keys, values)[0].shape == (1, 2, 32)
    with pytest.raises(
        NetworkInputError,
        match=r"input 'mask' has tokens \+ past = 3, where batch = 1, tokens = 2, past = 0; .* dimension 1 is 2",
    ):
        run(x, torch.ones(1, 3), keys, values)
    with pytest.raises(NetworkInputError, match="input 'keys' has past = 10, and the network was compiled for past=0"):
        run(x, torch.ones(1, 12), *(torch.ones(1, 2, 10, 16) for _ in range(2)))


def test_fixed_extents_become_part_of_the_sum(tmp_path: Path) -> None:
    network = load_network(masked(), shapes=parse_shapes("batch=1, tokens=1"))
    assert network.input_shapes[1] == (1, "past + 1")
    assert onnx_network(tmp_path, "batch=1, tokens=1, past=0..9").input_shapes[1] == (1, "past + 1")
    fixed = onnx_network(tmp_path, "batch=1, tokens=2, past=3")
    assert fixed.shapes is None
    assert fixed.example_inputs[1].shape == (1, 5)
    assert load_network(masked(), shapes=parse_shapes("batch=2, tokens=4, past=6")).inputs_from


def test_the_networks_own_inputs_are_kept_for_their_extents() -> None:
    network = load_network(masked())
    at = network.at({"batch": 2, "tokens": 4, "past": 6})
    assert at.inputs_from == network.own_inputs_from == "the network's own examples"
    assert "made up" in network.at({"batch": 2, "tokens": 3, "past": 6}).inputs_from


def test_inputs_of_a_file_must_agree(tmp_path: Path) -> None:
    given = dict(zip(NAMES, (each.numpy() for each in inputs()), strict=True))
    np.savez(tmp_path / "in.npz", **given)
    assert load_network(masked(), tmp_path / "in.npz").extents == {"batch": 2, "tokens": 4, "past": 6}
    np.savez(tmp_path / "in.npz", **{**given, "mask": np.ones((2, 9), np.float32)})
    with pytest.raises(NetworkError, match=r"mask has 9 for tokens \+ past, where .* past = 6; save an array of 10"):
        load_network(masked(), tmp_path / "in.npz")


class Halves(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + torch.cat([y, y])


def test_multiples_of_a_dimension_are_sums(tmp_path: Path) -> None:
    half = Dim("half", min=1, max=8)
    network = load_network((Halves(), (torch.randn(6, 4), torch.randn(3, 4)), ({0: 2 * half}, {0: half})))
    assert network.input_shapes == (("2*half", 4), ("half", 4))
    run = load(compile_network(import_network(network, CPU), {}, tmp_path))
    x, y = torch.randn(10, 4), torch.randn(5, 4)
    torch.testing.assert_close(run(x, y), x + torch.cat([y, y]))
    with pytest.raises(NetworkInputError, match=r"has 2\*half = 10, where half = 4"):
        run(x, y[:4])


def test_a_name_in_onnx_whose_parts_are_no_dimensions_is_one() -> None:
    shapes = {
        "x": ["tokens", 3],
        "mask": ["past + tokens"],
        "other": ["past + 1"],
        "cache": ["p.st"],
        "all": ["p.st+2"],
    }
    values = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    model = onnx.helper.make_model(onnx.helper.make_graph([], "net", values, values))
    renamed, found = named(model, ())
    assert [each.name for each in found] == ["tokens", "past_tokens", "past_1", "p_st"]
    texts = [value.type.tensor_type.shape.dim[0].dim_param for value in renamed.graph.input]
    assert texts == ["tokens", "past_tokens", "past_1", "p_st", "p_st + 2"]
    dim = with_extents(renamed, {"p_st": 5}).graph.output[4].type.tensor_type.shape.dim[0]
    assert dim.dim_value == 7


def test_manifests_keep_the_sum_and_damaged_ones_are_told(tmp_path: Path) -> None:
    compile_network(import_network(load_network(masked()), CPU), {}, tmp_path)
    manifest = read_manifest(tmp_path)
    assert [each["shape"] for each in manifest["inputs"]][1] == ["batch", "tokens + past"]
    for text, told in (("past + unknown", "dynamic dimension 'unknown'"), ("past - 1", "inputs"), ("1 + 2", "inputs")):
        manifest["inputs"][1]["shape"] = ["batch", text]
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(OutputFolderError, match=f"damaged.*{told}"):
            read_manifest(tmp_path)


def test_a_manifest_of_an_older_version_is_read() -> None:
    """Names may be any words, and extents of 0 were no bounds."""
    shapes = InputShapes({"inputs": [{"name": "x", "shape": ["0_1", 2], "dtype": "float32"}], "shapes": "0_1=1..4"})
    shapes.check([np.ones((3, 2), np.float32)])
    with pytest.raises(NetworkInputError, match=r"0_1 = 5"):
        shapes.check([np.ones((5, 2), np.float32)])


def test_frameworks_get_the_network_with_its_sums(tmp_path: Path) -> None:
    network = load_network(masked())
    source = NetworkSource(*masked()[:1], None, inputs(), network.input_shapes)
    model = onnx.load(str(source.onnx_file(tmp_path)))
    texts = [[each.dim_param for each in value.type.tensor_type.shape.dim] for value in model.graph.input]
    assert texts[1] == ["batch", "tokens + past"]
