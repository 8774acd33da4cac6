"""What torch.export cannot trace: read in another way, or refused with the line of the user's code and what to do."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from fleet_tune.base.errors import NetworkError
from tests.helpers.lowered_networks import CPU


class _MaskOfData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) * ids.data.ne(0)[..., None]


class _ChangedData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.data.add_(1)
        return x * x.max().item()


@pytest.mark.parametrize(
    ("module", "inputs"), [(_MaskOfData(), torch.tensor([[1, 0, 4]])), (_ChangedData(), torch.tensor([1.0, -3.0]))]
)
def test_data_of_a_tensor_is_the_tensor(module: nn.Module, inputs: Tensor) -> None:
    network = load_network((module.eval(), (inputs,)))
    [ours] = compile_host(import_network(network, CPU).module)(*network.example_inputs)
    np.testing.assert_allclose(ours, network.framework_outputs()[0])


class _Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x  # here


class _Turns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.sum())):  # here
            x = x + 1
        return x


class _Arrays(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.sin(x.numpy()))  # here


class _Gradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.autograd.grad((x * x).sum(), x)[0]  # here


class _Selected(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0].sum()  # here


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (_Branch, "torch.where"),
        (_Turns, "without item"),
        (_Arrays, "not with numpy"),
        (_Gradient, "leave gradients out"),
        (_Selected, "torch.where"),
    ],
)
def test_refusals_have_the_line_and_what_to_do(kind: type[nn.Module], advice: str) -> None:
    lines, first = inspect.getsourcelines(kind)
    here = first + next(at for at, line in enumerate(lines) if "# here" in line)
    with pytest.raises(NetworkError) as refused:
        load_network((kind().eval(), (torch.tensor([3.0, 1.0]),)))
    assert f"{Path(__file__).name}:{here}" in refused.value.problem
    assert "\n" not in refused.value.problem
    assert advice in refused.value.next_step
