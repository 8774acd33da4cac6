"""What a compiled network launches as one CUDA graph. That it replays is seen on a GPU alone (docs/gpu.md)."""

from __future__ import annotations

import os
import re

import pytest
import torch
from torch import nn
from tvm import relax

from devices.builds.executables import build
from devices.cuda.compiler import find_compiler
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from tests.helpers.gpu_target import H200

CAPTURED, REPLAY = "main_cuda_graph_capture", "vm.builtin.cuda_graph.run_or_capture"


class FourConvolutions(nn.Module):
    """Four kernels: those in the middle touch neither the input nor the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 3) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@pytest.fixture(scope="module")
def calls() -> dict[str, list[str]]:
    """What each function of the network calls, in order, built for a GPU."""
    if find_compiler() is None:
        assert os.environ.get("CI") != "true"
        pytest.skip("this machine has no CUDA compiler")
    network = load_network((FourConvolutions().eval(), (torch.zeros(1, 4, 20, 20),)))
    built = build(import_network(network, H200).module, H200.target)
    parts = re.split(r"^@(\S+?):\n", relax.VMExecutable(built.module).as_text(), flags=re.MULTILINE)
    return {name: re.findall(r"call +(\S+)", text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def kernels(called: list[str]) -> list[str]:
    return [name for name in called if name.startswith("fused_conv2d")]


def test_kernels_between_input_and_output_are_captured(calls: dict[str, list[str]]) -> None:
    assert REPLAY in calls["main"]
    assert len(kernels(calls["main"])) == 2
    assert len(kernels(calls[CAPTURED])) == 2


def test_kernels_are_launched_one_by_one_where_they_are_timed(calls: dict[str, list[str]]) -> None:
    """An instrument waits for each kernel, which a stream that is being captured does not allow."""
    before, after = kernels(calls["main"])
    assert kernels(calls["main_by_kernel"]) == [before, *kernels(calls[CAPTURED]), after]
    assert REPLAY not in calls["main_by_kernel"]
