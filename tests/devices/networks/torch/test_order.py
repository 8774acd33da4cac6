"""torch's searches, running extremes, medians and other functions that are written with others, on NaN and infinity
too: one network of many, compared one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))
NAN, INFINITY = float("nan"), float("inf")

OPERATORS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "products with vectors": lambda x, y, _: torch.addmv(y[:4], x.nan_to_num(1, 2, 3), y, beta=0.5, alpha=2),
    "places in one line": lambda x, y, _: torch.searchsorted(y.sort()[0], x),
    "places behind equal ones": lambda x, y, _: torch.searchsorted(y.sort()[0], x.round(), right=True, out_int32=True),
    "places in own lines": lambda x, *_: torch.searchsorted(x.sort(-1)[0], x.flip(1).contiguous(), side="right"),
    "places by an order": lambda x, y, _: torch.searchsorted(y, x, sorter=torch.argsort(y)),
    "the place of a number": lambda _x, y, _i: torch.searchsorted(y.sort()[0], 0.3) + torch.bucketize(0.1, y.sort()[0]),
    "the place of a fraction among integers": lambda _x, y, _i: torch.searchsorted((y * 10).long().sort()[0], 2.5),
    "buckets": lambda x, y, _: torch.bucketize(x, y.sort()[0], right=True),
    "running maxima": lambda x, *_: torch.cummax(x, 1),
    "running minima of integers": lambda _x, _y, i: torch.cummin(i, 0),
    "running sums of exponentials": lambda x, *_: torch.logcumsumexp(x, -1),
    "largest distances": lambda x, y, _: torch.cdist(x, y.view(1, 6), p=INFINITY),
    "numbers of differences": lambda x, y, _: torch.cdist(x, y.view(1, 6), p=0.0),
    "the median": lambda x, *_: x.median(),
    "medians": lambda x, *_: x.median(1),
    "medians of integers": lambda _x, _y, i: i.sort(0)[0].median(0, keepdim=True)[0],
    "the median of numbers": lambda x, *_: x.nanmedian(),
    "medians of numbers": lambda x, *_: (*x[:3].nanmedian(1, keepdim=True), x.nanmedian(1)[0]),
    "of a rank": lambda x, *_: x[:3].kthvalue(2, 1),
    "powers of two": lambda x, _, i: torch.exp2(x) + torch.exp2(i) + torch.ldexp(x, i),
    "logarithms of sums of powers": lambda x, y, _: torch.logaddexp2(x, y),
    "lengths": lambda x, y, _: torch.hypot(x, y * 1e30),
    "signs": lambda x, *_: torch.signbit(x),
    "signs of others": lambda x, y, i: torch.copysign(y, x) + torch.copysign(i - 4, y) + torch.copysign(y, -0.0),
    "larger numbers": lambda x, y, _: torch.fmax(x, y) + torch.fmin(y, x),
    "bits": lambda x, *_: x.view(torch.int32) >> 23,
}


class Every(nn.Module):
    def forward(self, data: Tensor, line: Tensor, integers: Tensor) -> tuple[Tensor | tuple[Tensor, ...], ...]:
        return tuple(operator(data, line, integers) for operator in OPERATORS.values())


def test_operators_on_order_are_as_in_torch_with_nan_and_infinity() -> None:
    torch.manual_seed(0)
    data = torch.randn(4, 6)
    data[1, 2], data[2, 3], data[0, 1], data[0, 0], data[3] = NAN, INFINITY, -INFINITY, -0.0, NAN
    inputs = (data, torch.randn(6), torch.stack([torch.randperm(9)[:6] for _ in range(4)]))
    with torch.no_grad():
        outputs = [operator(*inputs) for operator in OPERATORS.values()]
    network = load_network((Every().eval(), inputs))
    ours = list(compile_host(import_network(network, CPU).module)(*network.example_inputs))
    for name, output in zip(OPERATORS, outputs, strict=True):
        for theirs in [output] if isinstance(output, Tensor) else output:
            np.testing.assert_allclose(ours.pop(0), theirs.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
    assert not ours
