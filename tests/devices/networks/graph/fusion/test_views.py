"""Reshapes at the end of a network are views of what a kernel has written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 1))


class Given(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def _sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1).reshape(2, 4)


def _sums_in_two_shapes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x.sum(-1)
    return total, total.reshape(2, 4)


def _sums_in_two_other_shapes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x.sum(-1)
    return total.reshape(2, 4), total.reshape(4, 2)


def _of_an_input(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(4, 32)


@pytest.mark.parametrize("function", [_sums, _sums_in_two_shapes, _sums_in_two_other_shapes, _of_an_input])
def test_outputs_that_are_views_are_nobody_elses_memory(
    function: Callable[[torch.Tensor], Any], tmp_path: Path
) -> None:
    example = torch.randn(8, 16)
    lowered = import_network(load_network((Given(function), (example,))), CPU)
    assert lowered.left_out == ()
    assert len(lowered.module.functions) == 2  # main and one kernel: the sum, or a copy of the input
    loaded = load(compile_network(lowered, {}, tmp_path / "out"))
    before, expected = example.clone(), function(example)
    for _ in range(3):
        outputs = loaded(example)
        for output, value in zip(*((x if isinstance(x, tuple) else (x,)) for x in (outputs, expected)), strict=True):
            np.testing.assert_allclose(output, value, rtol=1e-5, atol=1e-5)
            output.zero_()
    assert torch.equal(example, before)
