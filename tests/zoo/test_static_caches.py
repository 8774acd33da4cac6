"""Decoders of transformers with a static cache: step by step in one memory, compared with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.networks.torchvision_operators import load_or_define
from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import compare, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from tests.zoo.generation import DECODERS, NETWORKS
from tests.zoo.transformers_networks import VOCABULARY

load_or_define()  # torchvision, which transformers imports, may be of another build of torch
pytest.importorskip("transformers")

CPU = DeviceClass("cpu", resolve_target("native", 2))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("form", ["torch", "pt2"])
def test_a_text_is_written_into_its_caches(name: str, form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = NETWORKS[f"{name}_fixed_cache"]()
    module.eval()
    if form == "pt2":
        torch.export.save(torch.export.export(module, tuple(inputs)), tmp_path / "net.pt2")
    network = load_network(tmp_path / "net.pt2" if form == "pt2" else (module, inputs))
    lowered = import_network(network, CPU)
    assert not lowered.left_out
    run = load(compile_network(lowered, {}, tmp_path / "out"))
    assert len(run.donatable) == 4
    caches = run.in_buffers(*network.example_inputs)[2:]
    expected: list[Any] = list(inputs[2:])
    for position in range(9, 12):
        ids = torch.randint(2, VOCABULARY, (1, 1))
        at = torch.tensor([position])
        logits, *after = run(ids.numpy(), at.numpy(), *caches, donate=run.donatable)
        assert all(new is cache for new, cache in zip(after, caches, strict=True))
        with torch.no_grad():
            right, *expected = module(ids, at, *expected)
        found = [np.asarray(each) for each in (logits, *caches)]
        assert compare(found, tuple(each.numpy() for each in (right, *expected)))[1] < 1e-4
