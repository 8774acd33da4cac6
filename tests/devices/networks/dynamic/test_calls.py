"""Calls of a network with a dynamic dimension, of extents that change from call to call: memory, and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import nn

from devices.networks.compiled import output_memory
from devices.networks.compiled.network_folder import CompiledNetwork, compile_network, load
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from tests.helpers.compiling import CLASS, trace
from tests.helpers.dynamic_networks import mixing
from tests.helpers.memory import rise_below

LEAST, MOST = 2, 33
MOST_RISE = 2 << 20
"""Bytes. Were the result of each call kept, it would be several times as much."""


WIDTH = 1 << 18
"""Numbers in a row: an output of one row has a megabyte."""


class Wide(nn.Module):
    """Returns each number in a wide row of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(x.shape[0], WIDTH) * torch.ones(1)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, CompiledNetwork]:
    """The module, and the network with a schedule of each product."""
    module, network = mixing(MOST, LEAST)
    lowered = import_network(network, CLASS)
    folder: Path = tmp_path_factory.mktemp("network")
    scheduled = {task.id: trace(task) for task in lowered.tasks if task.workload.name.startswith("matmul")}
    assert scheduled
    return module, load(compile_network(lowered, scheduled, folder))


@pytest.mark.long
def test_memory_does_not_grow_over_ten_thousand_calls(compiled: tuple[nn.Module, CompiledNetwork]) -> None:
    _, run = compiled
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((extent, 24)).astype(np.float32) for extent in range(LEAST, MOST + 1)]
    given = [*arrays, *map(torch.from_numpy, arrays)]

    def calls(count: int) -> None:
        for at in rng.integers(len(given), size=count):
            run(given[at])

    calls(2_000)  # what is made once for each extent, and the allocator's own
    with rise_below(MOST_RISE):
        calls(10_000)


def test_memory_does_not_grow_with_the_sizes_of_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_memory, "MOST_BYTES", 16 << 20)
    extents = range(1, 33)
    dimension = torch.export.Dim("n", min=1, max=max(extents))
    lowered = import_network(load_network((Wide(), (torch.zeros(8, 1),), ({0: dimension},))), CLASS)
    run = load(compile_network(lowered, {}, tmp_path / "out"))
    largest = max(extents) * WIDTH * 4
    with rise_below(14 * largest):  # buffers of all sizes would be 16.5 times the largest, and rose by 22 times
        for extent in extents:
            assert run(np.ones((extent, 1), np.float32))[extent - 1, -1] == 1.0


def test_threads_call_with_different_extents(compiled: tuple[nn.Module, CompiledNetwork]) -> None:
    module, run = compiled
    together = Barrier(2)
    torch.manual_seed(0)
    inputs = [torch.randn(extent, 24) for extent in range(LEAST, MOST + 1)]
    with torch.no_grad():
        expected = [module(x) for x in inputs]

    def call(seed: int) -> list[int]:
        """Return the extents at which a result was wrong."""
        rng = np.random.default_rng(seed)
        wrong = []
        together.wait()
        for at in rng.integers(len(inputs), size=500):
            x = inputs[at] if rng.integers(2) else inputs[at].numpy()
            result = torch.as_tensor(run(x))
            if result.shape != expected[at].shape or not torch.allclose(result, expected[at], atol=1e-4):
                wrong.append(int(at) + LEAST)
        return wrong

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(call, (1, 2))) == [[], []]
