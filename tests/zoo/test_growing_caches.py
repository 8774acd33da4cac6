"""Decoders of transformers with a cache that grows from nothing: at every extent, compared with torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.networks.torchvision_operators import load_or_define
from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import compare, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from tests.zoo.generation import DECODERS, growing

load_or_define()  # torchvision, which transformers imports, may be of another build of torch
pytest.importorskip("transformers")

CPU = DeviceClass("cpu", resolve_target("native", 2))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("form", ["torch", "pt2"])
def test_a_decoder_is_right_from_the_first_token_on(name: str, form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    *given, options = DECODERS[name]
    module, inputs, dynamic = growing(*given, **options)
    if form == "pt2":
        torch.export.save(torch.export.export(module, inputs, dynamic_shapes=dynamic), tmp_path / "net.pt2")
    network = load_network(tmp_path / "net.pt2" if form == "pt2" else (module, inputs, dynamic))
    assert network.shapes is not None
    assert [each.least for each in network.shapes.dynamic] == [1, 0], "tokens and past: the mask has no dimension"
    lowered = import_network(network, CPU)
    assert not lowered.left_out
    names = [each.name_hint for each in lowered.module.functions]
    assert any("attention" in each for each in names)
    assert not any("softmax" in each for each in names)
    run = load(compile_network(lowered, {}, tmp_path / "out"))
    for extents in network.shapes.others:
        at = network.at(extents)
        assert compare(run(*at.example_inputs), at.framework_outputs())[1] < 1e-4, extents
