"""NaN, infinities, both zeros and denormal numbers are as in the framework, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))
NAN, INF = float("nan"), float("inf")
VALUES = [NAN, INF, -INF, -0.0, 0.0, 1e-40, -1e-40, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 30.0, -90.0]
EACH = torch.tensor(VALUES)
LEFT, RIGHT = (each.contiguous() for each in (EACH[:, None].expand(16, 16), EACH[None].expand(16, 16)))

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(functional, name)
        for name in (
            *("relu", "relu6", "hardtanh", "elu", "selu", "celu", "silu", "mish", "hardswish", "hardsigmoid"),
            *("softplus", "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink", "leaky_relu"),
        )
    },
    **{
        name: getattr(torch, name)
        for name in (
            *("sigmoid", "tanh", "sign", "round", "floor", "ceil", "trunc", "sqrt", "rsqrt", "log", "log1p", "exp"),
            *("expm1", "erf", "sin", "atan", "asin", "acosh", "reciprocal", "abs", "isnan", "isinf", "isfinite"),
            *("nan_to_num", "logical_not", "square"),
        )
    },
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp from below": lambda x: x.clamp(min=-1.5),
    "clamp from above": lambda x: x.clamp(max=2.0),
    "softmax": lambda x: functional.softmax(x.view(4, 4), -1),
    "log softmax": lambda x: functional.log_softmax(x.view(4, 4), -1),
    "roots": lambda x: x**0.5 + x.abs() ** -0.5,
    "powers": lambda x: torch.stack([x**-1, x**0, x**2, x**3, 2.0**x]),
    "comparison with itself": lambda x: x != x,
    "comparison of computed values": lambda x: (x + 1) != (x + 1),
    "not less": lambda x: ~(x < 0.5),
    "zero times": lambda x: x * 0,
    "cumulative sum": lambda x: x.view(4, 4).cumsum(1),
    "normalize": lambda x: functional.normalize(x.view(4, 4), dim=1),
    "norm": lambda x: torch.linalg.vector_norm(x.view(8, 2), INF, dim=1),
    "amax": lambda x: x.view(8, 2).amax(1),
    "amin": lambda x: x.view(8, 2).amin(1),
    "maximum of all": lambda x: x.max(),
    "maximum of minus infinity": lambda x: (x.view(8, 2) - INF).nan_to_num(-INF).amax(1),
    "places of maxima": lambda x: x.view(4, 4).argmax(1),
    "places of minima": lambda x: x.view(4, 4).argmin(1),
    "place among minus infinities": lambda x: (x[7:] - INF).argmax(),
    "maximum and its place": lambda x: x.view(8, 2).max(1).values + x.view(8, 2).max(1).indices,
    "sort": lambda x: x.view(4, 4).sort(1).values,
    "sort from above": lambda x: x.view(4, 4).sort(1, descending=True).values,
    "top": lambda x: x.view(2, 8).topk(3, 1).values,
    "places of the top": lambda x: x.view(4, 4).topk(1, 1).indices,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in (
        *("maximum", "minimum", "add", "sub", "mul", "div", "pow", "atan2", "gt", "ge", "lt", "le", "eq", "ne"),
        *("logaddexp", "xlogy"),
    )
} | {
    "where": lambda a, b: torch.where(a > b, a, b),
    "clamp between tensors": lambda a, b: a.clamp(b, b + 1),
    "masked": lambda a, b: a.masked_fill(b > 0, -INF),
    "remainder": lambda a, b: torch.remainder(a, torch.where(b.abs() < 1e-9, 1.0, b)),
    "quotient rounded down": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "prelu": lambda a, _: functional.prelu(a, torch.full((16,), 0.25)),
}
PLANES: dict[str, Callable[[Tensor], Tensor]] = {
    "max pooling": lambda x: functional.max_pool2d(x, 2),
    "max pooling with a border": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max pooling, rounded up": lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max pooling of lines": lambda x: functional.max_pool1d(x[0], 3, 1, 1),
    "max pooling in space": lambda x: functional.max_pool3d(x, 2),
    "adaptive max pooling": lambda x: functional.adaptive_max_pool2d(x, (2, 3)),
    "average pooling": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "pooling by powers": lambda x: functional.lp_pool2d(x, 2, 2),
    "a convolution and relu": lambda x: functional.conv2d(x, torch.linspace(-1, 1, 108).view(3, 4, 3, 3)).relu(),
    "a depthwise convolution and relu6": lambda x: functional.relu6(
        functional.conv2d(x, torch.linspace(-1, 1, 36).view(4, 1, 3, 3), padding=1, groups=4)
    ),
    "a layer and gelu": lambda x: functional.gelu(functional.linear(x, torch.ones(3, 7)), approximate="tanh"),
    "extrema of planes": lambda x: x.amax((1, 2)) + x.amin((1, 2)),
    "layer norm": lambda x: functional.layer_norm(x, (7,)),
    "group norm without weights": lambda x: functional.group_norm(x, 2),
    "nearest": lambda x: functional.interpolate(x, scale_factor=2),
    "padding": lambda x: functional.pad(x, (1, 1, 2, 0), value=-INF),
}


def _planes() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    planes = torch.randn(8, 4, 6, 7, generator=generator)
    chosen = torch.rand(planes.shape, generator=generator) < 0.03
    special = EACH[torch.randint(0, 6, planes.shape, generator=generator)]
    planes = torch.where(chosen, special, planes)
    planes[3], planes[4, 0], planes[5] = -INF, NAN, -0.0
    return planes


class Every(nn.Module):
    def forward(self, each: Tensor, left: Tensor, right: Tensor, planes: Tensor) -> tuple[Tensor, ...]:
        return (
            *(operator(each) for operator in UNARY.values()),
            *(operator(left, right) for operator in BINARY.values()),
            *(operator(planes) for operator in PLANES.values()),
        )


def test_operators_of_torch_treat_special_values_as_torch_does() -> None:
    network = load_network((Every().eval(), (EACH, LEFT, RIGHT, _planes())))
    ours = compile_host(import_network(network, CPU).module)(*network.example_inputs)
    for name, got, wanted in zip((*UNARY, *BINARY, *PLANES), ours, network.framework_outputs(), strict=True):
        _assert_same(name, got, wanted)


ONNX: dict[str, tuple[dict[str, Any], int]] = {
    **{name: ({}, 1) for name in ("Relu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Softplus", "Gelu")},
    **{name: ({}, 1) for name in ("Sign", "Round", "Sqrt", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "IsNaN", "Shrink")},
    **{name: ({}, 1) for name in ("ThresholdedRelu", "LeakyRelu", "Reciprocal", "Mish")},
    **{name: ({}, 2) for name in ("Max", "Min", "Add", "Mul", "Div", "Pow", "Greater", "Equal", "LessOrEqual")},
    "Softmax": ({"axis": 1}, 2),
}
"""Attributes and number of operands."""


def test_operators_of_onnx_treat_special_values_as_onnx_runtime_does(tmp_path: Path) -> None:
    inputs = {"x": EACH.numpy(), "a": LEFT.numpy(), "b": RIGHT.numpy()}
    nodes = []
    for name, (attributes, operands) in ONNX.items():
        given = ["x"] if operands == 1 else ["a"] if name == "Softmax" else ["a", "b"]
        nodes.append(helper.make_node(name, given, [name], **attributes))
    nodes.append(helper.make_node("Clip", ["x", "low", "high"], ["Clip"]))
    constants = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in (("low", -1), ("high", 2))]
    graph = helper.make_graph(
        nodes,
        "special",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [helper.make_empty_tensor_value_info(node.output[0]) for node in nodes],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path / "special.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    network = load_network(path).given(tuple(inputs.values()), "special values")
    ours = compile_host(import_network(network, CPU).module)(*network.example_inputs)
    for node, got, wanted in zip(nodes, ours, network.framework_outputs(), strict=True):
        _assert_same(node.op_type, got, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_special_values_of_other_widths(dtype: torch.dtype) -> None:
    class Some(nn.Module):
        def forward(self, each: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
            rows = each.view(4, 4)
            pair = (torch.maximum(left, right), torch.minimum(left, right))
            return (*pair, rows.relu(), rows.amax(1), rows.argmax(1), rows.sort(1).values, rows.clamp(-1, 2))

    some = (EACH.to(dtype), LEFT.to(dtype), RIGHT.to(dtype))
    network = load_network((Some().eval(), some))
    ours = compile_host(import_network(network, CPU).module)(*network.example_inputs)
    for at, (got, wanted) in enumerate(zip(ours, network.framework_outputs(), strict=True)):
        _assert_same(str(at), got, wanted)


def _assert_same(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype, name
    assert ours.shape == theirs.shape, name
    wide, wanted = ours.astype(np.float64), theirs.astype(np.float64)
    np.testing.assert_allclose(wide, wanted, rtol=1e-5, atol=1e-6, equal_nan=True, err_msg=name)
