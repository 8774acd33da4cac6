"""The schedules of tiles of several numbers of images: of a product over the rows of all images together, 5 of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from tvm.tirx import PrimFunc

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.dynamic import kernels as dynamic_kernels
from devices.networks.dynamic.kernels import with_dynamic_kernels
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network
from devices.sketches.dynamic.tiled_kernel import tiled_kernel
from devices.sketches.rules.overlapping_tiles import OVERLAPPING_TILES
from devices.sketches.rules.register_blocked import REGISTER_BLOCKED
from devices.sketches.spaces import DesignSpace
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass, Task
from fleet_tune.base.shapes.shapes import parse_shapes
from fleet_tune.base.sketch import Decision, Tile
from policies.space.sampling import sample

CPU = DeviceClass("cpu", resolve_target("native", 2))
MOST = 13


class OfImages(nn.Module):
    """A product of the rows of all images together."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.product = nn.Linear(8, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x.reshape(-1, 8)).relu().reshape(x.shape[0], 5, -1)


@cache
def example(columns: int) -> tuple[nn.Module, LoweredNetwork]:
    """Tiles of 2, 4 and 8 images, and of 6 and 7."""
    torch.manual_seed(1)
    module = OfImages(columns).eval()
    shapes = parse_shapes(f"n=2..{MOST}; n=6:2,7:1,{MOST}:2")
    network = load_network((module, (torch.randn(4, 5, 8),), ({0: Dim("n", min=2, max=MOST)},)), shapes=shapes)
    return module, import_network(network, CPU)


def product_of(lowered: LoweredNetwork) -> Task:
    (task,) = (each for each in lowered.tasks if "matmul" in each.workload.name)
    assert [each.extent for each in lowered.dynamic.values() if each.workload == task.workload.hash] == [8]
    return task


def is_over_rows(decision: Decision) -> bool:
    return isinstance(decision, Tile) and decision.extent == 40


def trace_of(task: Task, rule: str, rows: int) -> str:
    """A schedule by a rule, with a tile of this many rows in registers."""
    space = DesignSpace(task)
    sketch = next(each for each in space.undescribed if each.rule == rule)
    of_rows = (at + 2 for at, each in zip(sketch.offsets, sketch.decisions, strict=True) if is_over_rows(each))
    inner = next(of_rows)
    vector = next(each for each in sample(sketch, 500, np.random.default_rng(0)) if each[inner] == rows)
    return space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(map(int, vector)))).trace


def test_only_tiles_in_whose_place_others_are_must_fill_their_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 of 40 rows in registers are 2 of the 10 rows of two images, 3 of 30, and 1 of the 35 of seven."""
    _, lowered = example(16)
    task = product_of(lowered)
    found: dict[int, PrimFunc] = {}

    def seen(kernel: PrimFunc, extent: Any, rows: Any, fixed: Mapping[int, PrimFunc], *others: Any) -> PrimFunc:
        found.update(fixed)
        return tiled_kernel(kernel, extent, rows, fixed, *others)

    monkeypatch.setattr(dynamic_kernels, "tiled_kernel", seen)
    with_dynamic_kernels(lowered.module, lowered, {task.id: trace_of(task, REGISTER_BLOCKED, 4)})
    assert sorted(found) == [2, 4, 6, 8]
    assert all("vectorized" in each.script() for each in found.values())


def test_overlapping_tiles_of_columns_are_right_for_any_number_of_rows(tmp_path: Path) -> None:
    """All tiles share the weights in tiles of columns; one without a schedule would read them as they come."""
    module, lowered = example(100)
    task = product_of(lowered)
    compile_network(lowered, {task.id: trace_of(task, OVERLAPPING_TILES, 4)}, tmp_path)
    run = load(tmp_path)
    for extent in range(2, MOST + 1):
        x = torch.randn(extent, 5, 8)
        with torch.no_grad():
            assert compare((run(x).numpy(),), (module(x).numpy(),))[1] < 1e-5, extent
