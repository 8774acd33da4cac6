"""torchvision's native operators: compared with plain torch, in one network each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.networks.torchvision_operators import define
from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))


class _Deformed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 2, 3, 2)), nn.Parameter(torch.randn(6))

    def forward(self, data: Tensor, offset: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        weight, bias = self.weight, self.bias
        plain = torch.ops.torchvision.deform_conv2d(*(data, weight, offset, mask, bias, 2, 1, 1, 0, 1, 2), 2, 2, True)
        return plain, torch.ops.torchvision.deform_conv2d(
            *(data, weight, offset, mask[:0], bias * 0, 2, 1, 1, 0, 1, 2), 2, 2, False
        )


class _Regions(nn.Module):
    def forward(self, data: Tensor, rois: Tensor) -> tuple[Tensor, ...]:
        cut = torch.ops.torchvision.roi_align
        return tuple(cut(data, rois, 0.5, 3, 2, ratio, aligned) for ratio in (2, 0) for aligned in (False, True))


def _regions() -> tuple[Tensor, ...]:
    inside = [[0.0, 2.0, 3.0, 9.0, 13.0], [1.0, 0.0, 0.0, 25.0, 20.0]]
    beside = [[1.0, -6.0, 3.5, 4.0, 30.0], [0.0, 5.0, 5.0, 5.2, 5.1], [0.0, 40.0, 40.0, 50.0, 50.0]]
    return torch.randn(2, 3, 10, 12), torch.tensor(inside + beside)


@pytest.mark.parametrize("name", ["deformable convolution", "regions"])
def test_operators_are_as_in_torchvision(name: str) -> None:
    define()
    torch.manual_seed(3)
    if name == "regions":
        module, inputs = _Regions(), _regions()
    else:
        module, inputs = _Deformed(), (torch.randn(2, 4, 9, 10), 3 * torch.randn(2, 24, 5, 8), torch.rand(2, 12, 5, 8))
    with torch.no_grad():
        expected = [value.numpy() for value in module(*inputs)]
    lowered = import_network(load_network((module, inputs)), CPU)
    for ours, theirs in zip(compile_host(lowered.module)(*(value.numpy() for value in inputs)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
