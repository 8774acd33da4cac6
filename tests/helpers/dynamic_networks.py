"""Networks of dynamic shapes: as they were imported, against their framework; and small ones to work with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import tvm
from torch import nn
from torch.export import Dim
from tvm import relax

from devices.networks.frontend import load_network
from devices.networks.network import Array, Framework, Network
from fleet_tune.base.errors import NetworkError


def agree_at(network: Network, extents: Iterable[int], tolerance: float = 1e-4) -> None:
    """Assert that the Relax module, built once by TVM alone, gives the framework's outputs for these extents of its
    dynamic dimension."""
    assert "tensor_to_shape" not in network.relax_module.script(show_meta=False)  # all shapes follow from the inputs'
    assert network.shapes is not None
    (dynamic,) = network.shapes.dynamic
    machine = relax.VirtualMachine(relax.build(network.relax_module, "llvm"), tvm.cpu())
    for extent in extents:
        at = network.at({dynamic.name: extent})
        result = machine["main"](*map(tvm.runtime.tensor, at.example_inputs))
        outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        for ours, theirs in zip(outputs, at.framework_outputs(), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=tolerance, atol=tolerance)


def layers(most: int = 9, least: int = 2) -> Network:
    """Two layers over any number of rows, whose typical one is the largest."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
    return load_network((module, (torch.randn(4, 24),), ({0: Dim("n", min=least, max=most)},)))


class Mixing(nn.Module):
    """Layers, and between them each row mixed with all others, as attention does it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(24, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.inside(x).relu()
        return self.outside(torch.softmax(rows @ rows.t() / 8, -1) @ rows)


def mixing(most: int = 9, least: int = 2) -> tuple[nn.Module, Network]:
    """A network whose kernels have rows, and some that do not."""
    torch.manual_seed(0)
    module = Mixing().eval()
    return module, load_network((module, (torch.randn(4, 24),), ({0: Dim("n", min=least, max=most)},)))


@dataclass(frozen=True)
class RefusingFramework:
    """A framework that refuses some numbers of rows."""

    framework: Framework
    rows: tuple[int, ...]
    inputs: tuple[Array, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.framework, name)

    def given(self, inputs: tuple[Array, ...]) -> RefusingFramework:
        return replace(self, framework=self.framework.given(inputs), inputs=inputs)

    def run(self) -> tuple[Array, ...]:
        if self.inputs and len(self.inputs[0]) in self.rows:
            raise NetworkError(f"{len(self.inputs[0])} rows are too many", "give others")
        return self.framework.run()


def refusing(network: Network, *rows: int) -> Network:
    """Return a network whose framework refuses these numbers of rows."""
    return replace(network, framework=cast(Framework, RefusingFramework(network.framework, rows)))
