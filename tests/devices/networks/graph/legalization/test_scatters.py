"""Operators that write at indices: torch's, in one network and compared one by one, and ONNX's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))
_NAN = torch.tensor([1.0, float("nan"), 2.0, 0.0])
_AGAIN = torch.tensor([3, 0, 2, 1, 3, 0])


class Given(NamedTuple):
    x: Tensor
    """Data, (8, 9)."""
    i: Tensor
    """Indices of its rows, (6, 4), which repeat."""
    u: Tensor
    """Updates, (7, 5)."""


Operator = Callable[[Given], Tensor]

OPERATORS: dict[str, Operator] = {
    "sums of rows, as graph networks write them": lambda g: torch.zeros(8, 5).scatter_add(
        0, g.i[:, :1].expand(-1, 5), g.u
    ),
    "sums by edges": lambda g: torch.zeros(8, 9).index_add(0, g.i[:, 1], g.x[g.i[:, 0]], alpha=2),
    "sums at smaller indices": lambda g: g.x.scatter_add(1, g.i, g.u),
    "sums along a first axis": lambda g: g.x.scatter_add(0, g.i, g.u),
    "values at smaller indices": lambda g: g.x.scatter(0, g.i[:1], g.u),
    "one value": lambda g: g.x.scatter(1, g.i, 2.5),
    "products": lambda g: g.x.scatter(1, g.i, g.u, reduce="multiply"),
    "products with a value": lambda g: g.x.scatter(1, g.i, 2.0, reduce="multiply"),
    "sums that begin with nothing": lambda g: g.x.scatter_reduce(0, g.i, g.u, "sum", include_self=False),
    "means": lambda g: g.x.scatter_reduce(0, g.i, g.u, "mean"),
    "means that begin with nothing": lambda g: g.x.scatter_reduce(0, g.i, g.u, "mean", include_self=False),
    "means of integers": lambda g: (10 * g.x).int().scatter_reduce(0, g.i, (10 * g.u).int(), "mean"),
    "maxima": lambda g: g.x.scatter_reduce(0, g.i, g.u, "amax"),
    "maxima that begin with nothing": lambda g: g.x.scatter_reduce(0, g.i, g.u, "amax", include_self=False),
    "minima of integers": lambda g: (
        torch.zeros(8, 4).long().scatter_reduce(0, g.i, (10 * g.u).long(), "amin", include_self=False)
    ),
    "maxima with NaN": lambda g: _NAN.scatter_reduce(0, g.i[:4, 0] % 4, _NAN.flip(0) + g.u[0, 0], "amax"),
    "products of rows": lambda g: g.x.index_reduce(1, _AGAIN, g.x[:, :6].cos(), "prod"),
    "means of rows": lambda g: g.x.index_reduce(1, _AGAIN, g.x[:, :6], "mean", include_self=False),
    "elements under a mask, one after the other": lambda g: g.x.masked_scatter(g.x > 0.2, g.x.exp()),
    "places of flattened data": lambda g: torch.ops.aten.put(g.x, g.i[:, :2] - 72, g.u[:4, :3], True),
    "places added up": lambda g: torch.index_put(g.x, (g.i[:, 0], g.i[:, 1] - 8), g.u[:6, 0], accumulate=True),
}


class Every(nn.Module):
    def forward(self, data: Tensor, index: Tensor, updates: Tensor) -> tuple[Tensor, ...]:
        return tuple(operator(Given(data, index, updates)) for operator in OPERATORS.values())


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, that some of these are new and some old
def test_operators_are_as_in_torch() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(8, 9), torch.randint(0, 8, (6, 4)), torch.randn(7, 5)
    network = load_network((Every().eval(), inputs))
    ours = compile_host(import_network(network, CPU).module)(*network.example_inputs)
    for name, one, other in zip(OPERATORS, ours, network.framework_outputs(), strict=True):
        assert one.dtype == other.dtype, name
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_indices_smaller_than_the_data_in_several_dimensions(reduction: str, tmp_path: Path) -> None:
    """In the dimensions before the axis, and behind it; the expected values are numpy's."""
    rng = np.random.default_rng(0)
    data, updates = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 5, 3), (2, 3, 2, 2)))
    index = np.argsort(rng.random((2, 3, 5, 2)), axis=2)[:, :, :2] - 5 * rng.integers(0, 2, (2, 3, 2, 2))
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=2, reduction=reduction)
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, data.shape), value("u", TensorProto.FLOAT, updates.shape)]
    graph = helper.make_graph(
        [node], "g", inputs, [value("y", TensorProto.FLOAT, data.shape)], [numpy_helper.from_array(index, "i")]
    )
    file = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(file))
    network = load_network(file)
    [ours] = compile_host(import_network(network, CPU).module)(data, updates)
    expected, combine = data.copy(), {"none": lambda _, new: new, "add": np.add, "max": np.maximum}[reduction]
    for place in np.ndindex(*index.shape):
        target = (*place[:2], index[place], place[3])
        expected[target] = combine(expected[target], updates[place])
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
