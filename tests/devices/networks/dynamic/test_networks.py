"""Networks with a dynamic dimension: lowered, compiled from schedules for one extent, and run at every extent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.input_shapes import NetworkInputError
from devices.networks.network import Network
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network, tolerance
from devices.sketches.rules.winograd.rule import WINOGRAD
from devices.sketches.spaces import DesignSpace, ScheduleError
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass, Task
from fleet_tune.base.errors import OutputFolderError, UnsupportedNetworkError
from fleet_tune.base.shapes.shapes import parse_shapes
from policies.space.sampling import sample
from tests.helpers.gpu_target import H200

CPU = DeviceClass("cpu", resolve_target("native", 2))
UNOPTIMISED = DeviceClass("cpu", json.dumps({**json.loads(CPU.target), "opt-level": 0}))
"""The same without LLVM's optimisations, which take longest: for more schedules of what is also built with them."""
MOST = 13


class Attention(nn.Module):
    """Attention with a projection before and after, over any number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.inside(x).reshape(1, x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return self.outside(attended.transpose(1, 2).reshape(1, x.shape[1], 32)) + x


class Projected(nn.Module):
    """Attention with a projection of each of its three inputs, whose products are computed as one."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [each(x).view(1, x.shape[1], 4, 8).transpose(1, 2) for each in (self.query, self.key, self.value)]
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(1, x.shape[1], 32)


class Samples(nn.Module):
    """Attention over a fixed number of tokens, of any number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.inside(x).view(x.shape[0], 17, 6, 16).transpose(1, 2).chunk(3, 1)
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape[0], 17, 32)


class Positions(nn.Module):
    """Tokens and their positions, of a table for more tokens than come."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 16), nn.Embedding(20, 16)
        self.places = nn.Buffer(torch.arange(20)[None])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        at = self.places[:, : tokens.shape[1]]
        return nn.functional.softmax(self.tokens(tokens) + self.positions(at), dim=1)


class Concatenated(nn.Module):
    """Two convolutions whose results are concatenated, which networks of fixed shapes do in place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.after = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.cat([self.one(x).relu(), self.other(x).sigmoid()], 1))


class Joined(nn.Module):
    """A product of the rows of all images together."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x.reshape(-1, 8)).relu().reshape(x.shape[0], 5, 16)


def products() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 20), nn.Softmax(-1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


CASES: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "products": (products, (4, 24), 0),
    "convolutions": (convolutions, (4, 3, 12, 12), 0),
    "attention": (Attention, (1, 4, 32), 1),
    "projected": (Projected, (1, 4, 32), 1),
    "samples": (Samples, (4, 17, 32), 0),
    "concatenated": (Concatenated, (4, 3, 6, 6), 0),
    "joined": (Joined, (4, 5, 8), 0),
    "positions": (Positions, (1, 4), 1),
}
"""Module, shape of the example input, and the axis that is dynamic."""


def made(name: str, shape: Sequence[int]) -> torch.Tensor:
    return torch.randint(0, 50, shape) if name == "positions" else torch.randn(*shape)


@cache
def example(name: str) -> tuple[nn.Module, Network, int]:
    make, shape, axis = CASES[name]
    torch.manual_seed(1)
    module = make().eval()
    inputs = (made(name, shape),)
    shapes = parse_shapes(f"n=2..{MOST}; n=6:2,7:1,{MOST}:2")  # with tiles of 6 and 7 rows, if the schedule fits
    return module, load_network((module, inputs, ({axis: Dim("n", min=2, max=MOST)},)), shapes=shapes), axis


@cache
def lowered_example(name: str) -> LoweredNetwork:
    return import_network(example(name)[1], CPU)


def random_trace(task: Task, rng: np.random.Generator) -> str | None:
    """A random schedule of a task; None where none of some tries is valid."""
    space = DesignSpace(task)
    for _ in range(20):
        sketch = space.undescribed[int(rng.integers(len(space.undescribed)))]
        try:
            return space.schedule(Candidate(task.id, sketch.index, sketch.id, sample(sketch, 1, rng)[0])).trace
        except ScheduleError:
            continue
    return None


def compiled(lowered: LoweredNetwork, folder: Path, seed: int) -> None:
    """Compile a network with random schedules; with LLVM's optimisations for the first seed alone."""
    rng = np.random.default_rng(seed)
    if seed:
        lowered = replace(lowered, device_class=UNOPTIMISED)
    compile_network(lowered, {task.id: random_trace(task, rng) for task in lowered.tasks}, folder)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_every_extent_is_right(name: str, seed: int, tmp_path: Path) -> None:
    module, _, axis = example(name)
    lowered = lowered_example(name)
    assert lowered.dynamic, "no kernel is tuned"
    compiled(lowered, tmp_path, seed)
    run = load(tmp_path)
    torch.manual_seed(seed)
    for extent in range(2, MOST + 1):
        shape = list(CASES[name][1])
        shape[axis] = extent
        x = made(name, shape)
        with torch.no_grad():
            expected = module(x).numpy()
        _, relative = compare((run(x).numpy(),), (expected,))
        assert relative < 1e-5, extent
        assert run(x.numpy()).shape == expected.shape


@pytest.mark.parametrize("least", [1, 2])
def test_convolutions_by_winograds_algorithm_are_right(least: int, tmp_path: Path) -> None:
    """All tiles share the transformed weight; one that no schedule fits would read the weight as it comes."""
    torch.manual_seed(1)
    module = nn.Conv2d(16, 32, 3, padding=1).eval()
    shapes = parse_shapes(f"n={least}..8; n=3:1,8:1")
    network = load_network((module, (torch.randn(4, 16, 12, 12),), ({0: Dim("n", min=1, max=8)},)), shapes=shapes)
    lowered = import_network(network, CPU)
    (task,) = (each for each in lowered.tasks if each.workload.name.startswith("conv"))
    space, rng = DesignSpace(task), np.random.default_rng(0)
    sketch = next(each for each in space.undescribed if each.rule == WINOGRAD)
    vector = sample(sketch, 1, rng)[0]
    trace = space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(map(int, vector)))).trace
    compile_network(lowered, {task.id: trace}, tmp_path)
    run = load(tmp_path)
    for extent in (least, 3, 4, 5, 8):
        x = torch.randn(extent, 16, 12, 12)
        with torch.no_grad():
            assert compare((run(x).numpy(),), (module(x).numpy(),))[1] < 1e-5, extent


def test_without_schedules_every_extent_is_right(tmp_path: Path) -> None:
    module, _, _ = example("attention")
    compile_network(lowered_example("attention"), {}, tmp_path)
    run = load(tmp_path)
    torch.manual_seed(0)
    for extent in (2, 7, MOST):
        x = torch.randn(1, extent, 32)
        with torch.no_grad():
            assert compare((run(x).numpy(),), (module(x).numpy(),))[1] < 1e-5


def test_tasks_are_those_of_a_network_of_a_power_of_two_of_rows() -> None:
    """So records of either are of use to the other. A schedule for 13 rows fits no smaller tile."""
    fixed = load_network((example("products")[0], (torch.randn(8, 24),)))
    tasks, expected = (each.tasks for each in (lowered_example("products"), import_network(fixed, CPU)))
    assert {task.workload.hash for task in tasks} == {task.workload.hash for task in expected}


def test_a_range_may_begin_anywhere(tmp_path: Path) -> None:
    """Tiles are as large as the power of two below its smallest extent, and the last one overlaps."""
    torch.manual_seed(1)
    module = products().eval()
    network = load_network((module, (torch.randn(6, 24),), ({0: Dim("n", min=5, max=40)},)))
    lowered = import_network(network, CPU)
    compiled(lowered, tmp_path, 1)
    assert {task.extent for task in lowered.dynamic.values()} == {32}
    run = load(tmp_path)
    for rows in (5, 6, 7, 8, 11, 31, 39, 40):
        x = torch.randn(rows, 24)
        with torch.no_grad():
            assert compare((run(x).numpy(),), (module(x).numpy(),))[1] < 1e-5, rows


def test_attention_of_any_number_of_samples_has_rows() -> None:
    """Views of a dynamic batch have indices with divisions by it, which leave nothing."""
    assert any(name.startswith("attention") for name in lowered_example("samples").dynamic)


def test_weights_are_kept_once(tmp_path: Path) -> None:
    compiled(lowered_example("products"), tmp_path, 1)
    parameters = sum(each.numel() * 4 for each in example("products")[0].parameters())
    assert (tmp_path / "params.safetensors").stat().st_size < parameters + 4096


def test_inputs_out_of_range_are_refused_by_name(tmp_path: Path) -> None:
    compile_network(replace(lowered_example("products"), device_class=UNOPTIMISED), {}, tmp_path)
    run = load(tmp_path)
    for rows in (1, MOST + 1):
        with pytest.raises(NetworkInputError, match=rf"has n = {rows}, and the network was compiled for n=2..{MOST}"):
            run(torch.randn(rows, 24))
    with pytest.raises(NetworkInputError, match=r"pass float32\[n, 24\] with n=2..13"):
        run(torch.randn(4, 25))


def test_operators_without_a_dynamic_form_are_named() -> None:
    class RunningSum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(x, dim=0)

    network = load_network((RunningSum(), (torch.randn(4, 8),), ({0: Dim("n", min=2, max=MOST)},)))
    with pytest.raises(UnsupportedNetworkError, match="cumsum cannot be compiled over a dynamic dimension"):
        import_network(network, CPU)


def test_a_gpu_takes_no_dynamic_dimension() -> None:
    _, network, _ = example("products")
    with pytest.raises(UnsupportedNetworkError, match=r"n=2\.\.13.*\), which only CPUs run"):
        import_network(network, H200)


def test_inputs_must_agree_in_the_dimension(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2 + y

    rows = {0: Dim("n", min=2, max=MOST)}
    network = load_network((Sum(), (torch.randn(4, 8), torch.randn(4, 8)), (rows, rows)))
    compile_network(import_network(network, CPU), {}, tmp_path)
    run = load(tmp_path)
    assert run(torch.randn(5, 8), torch.randn(5, 8)).shape == (5, 8)
    with pytest.raises(NetworkInputError, match="has n = 6, and another place has 5"):
        run(torch.randn(5, 8), torch.randn(6, 8))


def test_the_manifest_has_the_dimension(tmp_path: Path) -> None:
    compile_network(replace(lowered_example("products"), device_class=UNOPTIMISED), {}, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["shapes"] == "n=2..13; n=6:2,7:1,13:2"
    assert manifest["inputs"][0]["shape"] == ["n", 24]
    assert manifest["outputs"][0]["shape"] == ["n", 20]
    for wrong in ({**manifest, "shapes": "m=2..13"}, {name: manifest[name] for name in manifest if name != "shapes"}):
        (tmp_path / "manifest.json").write_text(json.dumps(wrong))
        with pytest.raises(OutputFolderError, match=r"damaged .*dimension 'n', and shapes has no bounds.*compile it"):
            load(tmp_path)


def test_a_sum_over_the_dimension_is_as_long_as_its_largest_extent() -> None:
    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

    most = 2**16
    dynamic = load_network((Total(), (torch.randn(4, 8),), ({0: Dim("n", min=1, max=most)},)))
    of_dynamic, of_fixed, of_few = (
        tolerance(import_network(each, CPU))
        for each in (dynamic, *(load_network((Total(), (torch.randn(rows, 8),))) for rows in (most, 4)))
    )
    assert of_dynamic == of_fixed > of_few
