"""Concatenations that the kernels of their inputs write in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from devices.builds import concatenations
from devices.builds.concatenations import AXIS
from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from devices.timing.in_network import kernel_of
from fleet_tune.base.domain import DeviceClass
from tests.helpers.compiling import trace

CPU = DeviceClass("cpu", resolve_target("native", 2))


class Given(nn.Module):
    """Three products of the input, and a function of them and the input."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.products = nn.ModuleList(nn.Linear(12, width) for width in (8, 16, 12))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(*(product(x) for product in self.products), x)


class Branches(nn.Module):
    """A fire module of SqueezeNet, channels last after the choice of layouts, and a convolution behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.squeeze = nn.Conv2d(8, 16, 1)
        self.one, self.three = nn.Conv2d(16, 24, 1), nn.Conv2d(16, 40, 3, padding=1)
        self.last = nn.Conv2d(64, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.squeeze(x).relu()
        return self.last(torch.max_pool2d(torch.cat([self.one(x).relu(), self.three(x).relu()], 1), 2))


def _several(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _check(module: nn.Module, example: torch.Tensor, folder: Path, in_place: int, left: int) -> None:
    """``in_place``, ``left``: kernels that read or write parts, and concatenations that copy."""
    network = load_network((module.eval(), (example,)))
    lowered = import_network(network, CPU)
    assert lowered.left_out == ()
    # Of the products another schedule than none, so that what is scheduled writes its part too.
    best = {task.id: trace(task) for task in lowered.tasks if task.workload.name.startswith("matmul")}
    loaded = load(compile_network(lowered, best, folder))
    inputs = (example.numpy(),)
    for _ in range(2):
        for ours, theirs in zip(_several(loaded(*inputs)), _several(module(example)), strict=True):
            np.testing.assert_allclose(ours, torch.as_tensor(theirs).detach().numpy(), rtol=1e-5, atol=1e-5)
    calls = loaded.kernel_times(inputs, 0.05).calls
    assert sum(count for name, count in calls.items() if kernel_of(name) != name) == in_place
    assert sum(count for name, count in calls.items() if "concatenate" in name) == left
    assert all(kernel_of(name) in lowered.workloads for name in calls if "concatenate" not in name)
    named = [task.workload.name for task in lowered.tasks]
    assert sum("concatenate" in name for name in named) == (1 if left else 0)
    assert not any(AXIS in task.workload.module for task in lowered.tasks), "older records have no such attribute"


def test_branches_of_convolutions_write_their_channels(tmp_path: Path) -> None:
    _check(Branches(), torch.randn(1, 8, 20, 20), tmp_path / "out", 2, 0)


@pytest.mark.parametrize(
    ("function", "in_place", "left"),
    [
        (lambda a, b, c, _: torch.cat([a, b, c], 1).max(1).values, 3, 0),
        (lambda a, b, _c, _x: torch.cat([a, b], 1), 2, 0),  # what the network returns
        (lambda a, b, _c, _x: torch.cat([a.T @ a, a.T @ b], -1).sum(1), 2, 0),
        # Along the rows; one kernel writes both parts.
        (lambda a, _b, c, _x: torch.cat([a.T @ c, c.T @ c], 0).max(1).values, 2, 0),
        (lambda a, _b, _c, x: torch.cat([torch.mm(a.T, x), torch.mm(a.T, x * 2)], 0).max(1).values, 2, 0),
        # Of a concatenation: in one kernel, or the outer one copies.
        (lambda a, b, c, _x: torch.cat([torch.cat([a, b], 1), c], 1).sum(1), 0, 1),
        (lambda a, b, c, _x: torch.cat([d := torch.cat([a, b], 1), c], 1).sum(1) + d.sum(1), 2, 1),
        # Others read a part too: a sum, and a product whose result is another part.
        (lambda a, b, _c, _x: torch.cat([a, b], 1).sum(1) + a.sum(1), 3, 0),
        (lambda a, _b, _c, x: torch.cat([a, a @ x[:8, :8]], 1).sum(1), 2, 0),
        # Copies: the input, one tensor twice, one that is returned or seen in another shape.
        (lambda _a, b, _c, x: torch.cat([x, b], 1).sum(1), 0, 1),
        (lambda a, _b, _c, _x: torch.cat([a, a], 1).sum(1), 0, 1),
        (lambda a, b, _c, _x: (torch.cat([a, b], 1).sum(1), b), 0, 1),
        (lambda a, b, _c, _x: (torch.cat([a, b], 1).sum(1), a.reshape(5, 16)), 0, 1),
    ],
)
def test_results_of_kernels_are_written_where_they_belong(
    function: Callable[..., torch.Tensor], in_place: int, left: int, tmp_path: Path
) -> None:
    _check(Given(function), torch.randn(10, 12), tmp_path / "out", in_place, left)


def test_what_a_kernel_gives_to_an_instruction_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(concatenations, "_matched", lambda kernel: list(kernel.params))
    module, example = Branches().eval(), torch.randn(1, 8, 20, 20)
    lowered = import_network(load_network((module, (example,))), CPU)
    assert not any("concatenate" in task.workload.name for task in lowered.tasks)
    loaded = load(compile_network(lowered, {}, tmp_path / "out"))
    np.testing.assert_allclose(loaded(example.numpy()), module(example).detach().numpy(), rtol=1e-5, atol=1e-5)
    calls = loaded.kernel_times((example.numpy(),), 0.05).calls
    assert [count for name, count in calls.items() if "concatenate" in name] == [1]
    assert all(kernel_of(name) == name for name in calls)
