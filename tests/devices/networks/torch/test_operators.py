"""Operators of torch that TVM's importer lacks or computes in another way: one network of many, compared one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UnsupportedNetworkError

CPU = DeviceClass("cpu", resolve_target("native", 2))
_PACKED = torch.tensor([[18, 255], [52, 128], [240, 7]], dtype=torch.uint8)
_EVEN, _ODD = torch.tensor([0, 2, -1]), torch.tensor([[1], [-2]])

Operator = Callable[[Tensor, Tensor], Tensor]

OPERATORS: dict[str, Operator] = {
    "SELU is an ELU with scales": lambda x, _: functional.selu(x),
    "CELU is one with another scale": lambda x, _: functional.celu(x, 0.7),
    "joined with what has no elements": lambda x, _: torch.cat([x.new_zeros(0), x, x[:, 3:3]], 1),
    "joined from one that has elements": lambda x, _: torch.cat([x.new_zeros(0), x * 2]),
    "counts of bins": lambda x, _: torch.histc(x, 9, -1.0, 1.5) + torch.histc(x.floor(), 9, -4.0, 4.0),
    "products in groups": lambda x, i: torch._grouped_mm(  # of bfloat16: whole numbers are exact in it
        functional.pad(x[0, 0], (0, 1)).round().bfloat16(),
        (functional.pad(x[0, :, 0], (0, 1)).round()[:, :, None] * torch.arange(8.0)).bfloat16(),
        torch.cat([i[2:3], i[2:3], i[2:3] + 3]).int(),
    ).float(),
    "extrema": lambda x, _: x.amax((1, 3)) - x.amin(1).sum(-1),
    "products": lambda x, _: x.prod(2),
    "windows of different sizes": lambda x, _: functional.adaptive_max_pool2d(x, (4, 3)),
    "distances": lambda x, _: torch.cdist(x[0, 0], x[0, 1]) + torch.cdist(x[0, 0], x[0, 1], p=1.0),
    "bilinear layers": lambda x, _: functional.bilinear(
        x[0, :, 0], x[0, :, 1], torch.linspace(-1, 1, 98).view(2, 7, 7)
    ),
    "the last of an axis": lambda x, _: x[:, -1] + x.select(2, -2)[:, 0, None],
    "indices from the end": lambda x, i: x[:, :, i - 3],
    "one index tensor": lambda x, _: x[:, _EVEN],
    "index tensors broadcast": lambda x, _: x[:, _ODD, _EVEN],
    "index tensors of inner axes": lambda x, _: x[:, :, _ODD, _EVEN],
    "index tensors apart": lambda x, _: x[:, _ODD, :, _EVEN],
    "values placed": lambda x, _: torch.index_put(x, (torch.tensor([0]), _EVEN), x[0, :1] * 2),
    "values placed along an inner axis": lambda x, i: torch.index_copy(x, 2, i, torch.cos(x[:, :, :4])),
    "values added along inner axes": lambda x, _: torch.ops.aten.index_put(x, [None, _ODD, _EVEN], x[:, :2, :3], True),
    "values added along axes apart": lambda x, _: torch.ops.aten.index_put(
        x, [None, _ODD, None, _EVEN], x[:, :, :2, :5], True
    ),
    "values added": lambda x, i: torch.zeros(5, 7).index_add(0, i, x[0, 0, :4]),
    "values under a mask": lambda x, _: torch.index_put(x, (x > 0.3,), torch.tensor(-1.0)),
    "bounds of integers": lambda _, i: i.clamp(min=1) + i.clamp(max=0),
    "nearest to a size": lambda x, _: functional.interpolate(x, size=(7, 11)),
    "nearest by a factor": lambda x, _: functional.interpolate(x, scale_factor=(1.3, 2.2)),
    "bilinear by a factor": lambda x, _: functional.interpolate(x, scale_factor=(1.3, 0.7), mode="bilinear"),
    "places of a grid": lambda x, _: functional.grid_sample(
        x, torch.tanh(x[:, :2].permute(0, 2, 3, 1) * 2), align_corners=False
    ),
    "sums of blocks": lambda x, _: functional.fold(
        functional.unfold(x, (3, 2), stride=2, padding=1), (5, 7), (3, 2), stride=2, padding=1
    ),
    "sums of blocks with gaps": lambda x, _: functional.fold(
        functional.unfold(x, 2, dilation=(2, 3)), (5, 7), 2, dilation=(2, 3)
    ),
    "windows of two axes": lambda x, _: x.unfold(2, 3, 1).unfold(3, 2, 3),
    "windows of turned axes": lambda x, _: x.transpose(1, 3).unfold(1, 4, 2),
    "memory from a place on": lambda x, _: (x + 1).as_strided((3, 4, 2), (5, 0, 1), 7),
    "memory of turned axes": lambda x, _: (x.transpose(2, 3) * 2).as_strided((3, 4), (5, 2)),
    "memory with gaps": lambda x, _: x[..., ::2].as_strided((5, 4), (7, 2)),
    "weights of four bits": lambda x, _: x[0, 0, :, :6] @ (torch.stack([_PACKED >> 4, _PACKED & 15]) - 8.0).view(6, 2),
    "shifts of bytes": lambda x, i: (_PACKED << i[:3, None].to(torch.uint8)) >> (3 * x[0, 0, :3, :2] > 0).byte(),
    "shifts by more bits than there are": lambda _, i: ((i - 9) >> (30 * i)) + (i << (i * 22)) + ((2 * i) >> -1),
    "integers to the right": lambda x, i: (1000 * x[0, 0, 0, :4]).short() >> i,
    "bilinear with antialias": lambda x, _: functional.interpolate(x, size=(2, 11), mode="bilinear", antialias=True),
    "bicubic with antialias": lambda x, _: functional.interpolate(
        x, scale_factor=(0.6, 0.35), mode="bicubic", antialias=True
    ),
    "corners with antialias": lambda x, _: functional.interpolate(
        x, size=(3, 2), mode="bilinear", antialias=True, align_corners=True
    ),
    "bytes with antialias": lambda x, _: functional.interpolate(
        (60 * x.cos() + 99).to(torch.uint8), size=(3, 4), mode="bicubic", antialias=True
    ),
    "embedding bags": lambda x, i: functional.embedding_bag(i.view(2, 2), x[0, 0, :4], mode="mean"),
    "largest of embedding bags": lambda x, i: functional.embedding_bag(i.view(2, 2), x[0, 0, :4], mode="max"),
}


class Every(nn.Module):
    def forward(self, data: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(operator(data, index) for operator in OPERATORS.values())


def _outputs(module: nn.Module, *inputs: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ours and torch's."""
    network = load_network((module.eval(), inputs))
    ours = compile_host(import_network(network, CPU).module)(*network.example_inputs)
    return list(zip(ours, network.framework_outputs(), strict=True))


def test_operators_are_as_in_torch() -> None:
    torch.manual_seed(0)
    pairs = _outputs(Every(), torch.randn(2, 3, 5, 7), torch.tensor([3, 0, 2, 1]))
    for name, (ours, theirs) in zip(OPERATORS, pairs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)


def test_layers_around_convolutions_are_as_in_torch() -> None:
    """The choice of layouts turns their data."""
    torch.manual_seed(0)
    norm = nn.LayerNorm((8, 5, 5))
    nn.init.uniform_(norm.weight)
    norm_of_images = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 4, 1))
    ((ours, theirs),) = _outputs(norm_of_images, torch.randn(1, 3, 7, 7))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    in_space = nn.Sequential(nn.ConvTranspose3d(2, 4, 2, stride=2), nn.ReLU(), nn.Conv3d(4, 2, 1))
    ((ours, theirs),) = _outputs(in_space, torch.randn(1, 2, 2, 3, 3))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_memory_outside_of_a_view_is_refused() -> None:
    class Outside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[1:].as_strided((2, 2), (2, 1), 0)

    with pytest.raises(UnsupportedNetworkError, match=r"as_strided\(\) reads memory outside of the tensor"):
        load_network((Outside(), (torch.randn(3, 4),)))
