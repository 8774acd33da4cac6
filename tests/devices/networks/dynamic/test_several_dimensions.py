"""Networks with several dynamic dimensions, compiled from schedules for one extent of each, and run at others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.input_shapes import NetworkInputError
from devices.networks.network import Network
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network, tolerance
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.devices.networks.dynamic.test_networks import UNOPTIMISED, compiled

CPU = DeviceClass("cpu", resolve_target("native", 2))
SAMPLES, TOKENS = Dim("samples", min=1, max=5), Dim("tokens", min=2, max=19)


class Encoder(nn.Module):
    """Attention of some heads within each sample, where some tokens are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        samples, tokens, _ = x.shape
        heads = self.inside(x).reshape(samples, tokens, 3, 2, 16).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].transpose(-1, -2) / 4 + mask[:, None, None, :]
        attended = torch.softmax(scores, -1) @ heads[2]
        return self.norm(x + self.outside(attended.transpose(1, 2).reshape(samples, tokens, 32)))


class Cached(nn.Module):
    """Attention of new tokens to themselves and those in a cache, which grows by them."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = self.inside(x).reshape(1, x.shape[1], 3, 2, 16).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, heads[1]], 2), torch.cat([values, heads[2]], 2)
        places = torch.arange(keys.shape[2])
        seen = places[None, :] <= places[keys.shape[2] - x.shape[1] :, None]
        scores = torch.where(seen, heads[0] @ keys.transpose(-1, -2) / 4, -1e9)
        return (torch.softmax(scores, -1) @ values).transpose(1, 2).flatten(2), keys, values


class Joined(nn.Module):
    """Layers over the rows of all samples together, as language models before transformers' fifth version have them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.reshape(-1, 24)).reshape(x.shape[0], x.shape[1], 16)


def encoder() -> tuple[Any, ...]:
    inputs = (torch.randn(3, 7, 32), torch.zeros(3, 7))
    return Encoder().eval(), inputs, ({0: SAMPLES, 1: TOKENS}, {0: SAMPLES, 1: TOKENS})


def cached() -> tuple[Any, ...]:
    kept, past = [torch.randn(1, 2, 6, 16) for _ in range(2)], {2: Dim("past", min=1, max=33)}
    return Cached().eval(), (torch.randn(1, 4, 32), *kept), ({1: TOKENS}, past, past)


def joined() -> tuple[Any, ...]:
    return Joined().eval(), (torch.randn(3, 7, 24),), ({0: SAMPLES, 1: TOKENS},)


NETWORKS = {"encoder": encoder, "cached": cached, "joined": joined}


@cache
def network_of(name: str) -> Network:
    torch.manual_seed(0)
    return load_network(NETWORKS[name]())


@cache
def lowered_of(name: str) -> LoweredNetwork:
    return import_network(network_of(name), CPU)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", NETWORKS)
def test_all_extents_are_right(name: str, seed: int, tmp_path: Path) -> None:
    network = network_of(name)
    assert not lowered_of(name).left_out
    compiled(lowered_of(name), tmp_path, seed)
    run = load(tmp_path)
    assert network.shapes is not None
    first, second = network.shapes.dynamic
    some = [range(each.least, each.most + 1)[:: (each.most + 1) // 5] for each in (first, second)]
    extents = [*({first.name: n, second.name: m} for n, m in itertools.product(*some)), *network.shapes.others]
    for each in extents:
        at = network.at(each)
        found = run(*at.example_inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        assert compare(outputs, at.framework_outputs())[1] < 1e-5, each


def test_products_and_attention_are_tuned_for_the_typical_extents() -> None:
    torch.manual_seed(0)
    network = load_network(encoder(), shapes=parse_shapes("samples=1..5, tokens=2..19; samples=2:1; tokens=16:1"))
    lowered = import_network(network, CPU)
    tuned = {name: (task.extent, task.repeats) for name, task in lowered.dynamic.items()}
    products = [each for name, each in tuned.items() if "matmul" in name]
    assert products
    assert all(each == (16, 2) for each in products), "one task of 16 rows, twice"
    assert [each for name, each in tuned.items() if name.startswith("attention")] == [(16, 2)]


def test_rows_of_joined_dimensions_are_tuned() -> None:
    products = [task for name, task in lowered_of("joined").dynamic.items() if "matmul" in name]
    assert [(task.extent, task.repeats) for task in products] == [(64, 2), (64, 2)]


def test_weights_are_kept_once(tmp_path: Path) -> None:
    compiled(lowered_of("encoder"), tmp_path, 1)
    parameters = sum(each.numel() * 4 for each in encoder()[0].parameters())
    assert (tmp_path / "params.safetensors").stat().st_size < parameters + 4096


def test_each_dimension_is_checked_by_its_name(tmp_path: Path) -> None:
    compile_network(replace(lowered_of("encoder"), device_class=UNOPTIMISED), {}, tmp_path)
    run = load(tmp_path)
    assert run(torch.randn(2, 4, 32), torch.zeros(2, 4)).shape == (2, 4, 32)
    with pytest.raises(NetworkInputError, match=r"samples = 6, and the network was compiled for samples=1\.\.5"):
        run(torch.randn(6, 4, 32), torch.zeros(6, 4))
    with pytest.raises(NetworkInputError, match=r"tokens = 20, and the network was compiled for tokens=2\.\.19"):
        run(torch.randn(2, 20, 32), torch.zeros(2, 20))
    with pytest.raises(NetworkInputError, match="has tokens = 5, and another place has 4"):
        run(torch.randn(2, 4, 32), torch.zeros(2, 5))
    with pytest.raises(NetworkInputError, match=r"with samples=1\.\.5, tokens=2\.\.19"):
        run(torch.randn(2, 4, 33), torch.zeros(2, 4))


def test_a_sum_over_joined_dimensions_is_as_long_as_their_largest_product() -> None:
    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 8).sum(0)

    axes = {0: Dim("b", min=1, max=64), 1: Dim("t", min=1, max=512)}
    of_both = load_network((Total(), (torch.randn(3, 4, 8),), (axes,)))
    of_fixed = load_network((Total(), (torch.randn(64, 512, 8),)))
    assert tolerance(import_network(of_both, CPU)) == tolerance(import_network(of_fixed, CPU))


def test_names_that_look_like_a_product_are_no_product(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.reshape(-1, 8).exp(), y.exp()

    rows = {0: Dim("a__b", min=8, max=16)}
    both = {0: Dim("a", min=1, max=4), 1: Dim("b", min=1, max=4)}
    network = load_network((Both(), (torch.randn(2, 3, 8), torch.randn(9, 8)), (both, rows)))
    compile_network(import_network(network, CPU), {}, tmp_path)
    x, y = torch.randn(1, 2, 8), torch.randn(8, 8)
    for ours, theirs in zip(load(tmp_path)(x, y), Both()(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_multiples_of_a_product_are_compiled(tmp_path: Path) -> None:
    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 16).relu()

    network = load_network((Split(), (torch.randn(3, 4, 64),), ({0: SAMPLES, 1: TOKENS},)))
    compile_network(import_network(network, CPU), {}, tmp_path)
    x = torch.randn(2, 5, 64)
    torch.testing.assert_close(load(tmp_path)(x), x.reshape(-1, 16).relu())


def test_places_that_are_computed_of_two_dimensions_are_fused(tmp_path: Path) -> None:
    class Places(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rows, others = x.shape[0], y.shape[0]
            return torch.arange(rows) + others, torch.arange(rows + others)[:rows] * 2, x.exp(), y.exp()

    network = load_network((Places(), (torch.randn(3), torch.randn(4)), ({0: SAMPLES}, {0: TOKENS})))
    lowered = import_network(network, CPU)
    assert not lowered.left_out
    compile_network(lowered, {}, tmp_path)
    x, y = torch.randn(2), torch.randn(9)
    for ours, theirs in zip(load(tmp_path)(x, y), Places()(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
