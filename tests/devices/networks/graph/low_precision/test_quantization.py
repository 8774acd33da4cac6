"""Quantised networks compute what ONNX Runtime and PyTorch compute, but for single steps of the quantisation.

A value that lies between two steps goes to the one or the other by the order of the summation before it: so at most one
value in a hundred may differ, and by one step of the output's quantisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

from devices.builds.executables import compile_host
from devices.networks.frontend import Network, load_network
from devices.networks.onnx import frontend
from devices.networks.tasks.lowering import DisagreementError, agreement, check_network, import_network, tolerance
from devices.networks.torch.operators import quantization
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UnsupportedNetworkError

CPU = DeviceClass("cpu", resolve_target("native", 2))
Array = npt.NDArray[Any]


def agrees(network: Network, step: float) -> list[str]:
    """The names of the network's tasks, which computes what its framework does, within a ``step`` of the output."""
    lowered = import_network(network, CPU)
    assert lowered.quantized
    for ours, theirs in zip(
        compile_host(lowered.module)(*network.example_inputs), network.framework_outputs(), strict=True
    ):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        error = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        assert error.max() <= step * 1.001
        assert (error > step / 2).mean() <= 0.01
    return [task.workload.name for task in lowered.tasks]


def float_model(file: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "v": (8, 1, 3, 3), "m": (512, 20), "c": (20,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) * 0.2 for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "v"], ["3"], pads=[1, 1, 1, 1], group=8),
        helper.make_node("Add", ["2", "3"], ["4"]),
        helper.make_node("Flatten", ["4"], ["5"]),
        helper.make_node("Gemm", ["5", "m", "c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 20])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(file))


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.batches: Iterator[dict[str, Array]] = iter(
            {"x": np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)} for seed in range(2)
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self.batches, None)


def last_scale(file: Path) -> float:
    """The scale of the output's quantisation."""
    graph = onnx.load(str(file)).graph
    name = next(node.input[1] for node in graph.node if node.output[0] == "y")
    return float(next(numpy_helper.to_array(each) for each in graph.initializer if each.name == name).reshape(-1)[0])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_what_onnx_runtime_quantises(form: Any, activation: Any, per_channel: bool, tmp_path: Path) -> None:
    float_model(tmp_path / "float.onnx")
    file = tmp_path / "quantised.onnx"
    quantize_static(
        str(tmp_path / "float.onnx"),
        str(file),
        Calibration(),
        quant_format=form,
        per_channel=per_channel,
        activation_type=activation,
        weight_type=QuantType.QInt8,
    )
    tasks = agrees(load_network(file), last_scale(file))
    assert any("conv2d_" in name and "add_quantize" in name for name in tasks), tasks


def test_what_rounding_explains_is_what_the_framework_differs_from_itself(tmp_path: Path) -> None:
    float_model(tmp_path / "float.onnx")
    file = tmp_path / "quantised.onnx"
    quantize_static(str(tmp_path / "float.onnx"), str(file), Calibration(), activation_type=QuantType.QInt8)
    network = load_network(file)
    assert 0 <= network.framework.spread() < 0.05  # three layers
    lowered = import_network(network, CPU)
    assert tolerance(lowered) == 0.05
    assert tolerance(replace(lowered, framework_spread=0.04)) == 0.08
    assert tolerance(replace(lowered, framework_spread=0.5)) == 0.15
    plain = import_network(load_network(tmp_path / "float.onnx"), CPU)
    assert tolerance(replace(plain, framework_spread=0.08)) < 1e-3


def test_a_network_within_the_spread_of_its_framework_agrees(tmp_path: Path) -> None:
    """A BERT of twelve layers differs by 8 % from ONNX Runtime, whose two ways differ by 8 % too."""
    float_model(tmp_path / "float.onnx")
    file = tmp_path / "quantised.onnx"
    quantize_static(str(tmp_path / "float.onnx"), str(file), Calibration(), activation_type=QuantType.QInt8)
    network = load_network(file)
    lowered = replace(import_network(network, CPU), framework_spread=0.04)
    expected = network.framework_outputs()
    off = tuple(each + 0.07 * np.abs(each).max() for each in expected)
    assert agreement(lowered, off, expected)[1] == pytest.approx(0.07, rel=0.01)
    with pytest.raises(DisagreementError, match=r"rounding explains 0\.05"):
        agreement(replace(lowered, framework_spread=0.0), off, expected)


def test_a_processor_on_which_the_framework_saturates_tells_no_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    float_model(tmp_path / "float.onnx")
    network = load_network(tmp_path / "float.onnx")
    monkeypatch.setattr(frontend, "_multiplies_bytes_exactly", lambda: False)
    monkeypatch.setattr(frontend._OnnxFramework, "_run_session", lambda *_: pytest.fail("it is run all the same"))
    assert network.framework.spread() == 0.0


def through_pt2(module: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> Network:
    torch.export.save(torch.export.export(module, inputs), folder / "net.pt2")
    return load_network(folder / "net.pt2")


class Quantised(nn.Module):
    """What pt2e makes of a linear layer. ``dynamic``: the input's scale depends on the data."""

    def __init__(self, *, dynamic: bool, dtype: torch.dtype = torch.uint8, greatest: int = 255) -> None:
        super().__init__()
        self.dynamic, self.dtype, self.greatest = dynamic, dtype, greatest
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randint(-127, 128, (16, 32), dtype=torch.int8, generator=generator))
        self.register_buffer("scales", torch.rand(16, generator=generator) * 0.01)
        self.register_buffer("zeros", torch.zeros(16, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        operators, limits = torch.ops.quantized_decomposed, (0, self.greatest, self.dtype)
        weight = operators.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        scale, zero = operators.choose_qparams(x, 0, 255, 1e-5, torch.uint8) if self.dynamic else (0.02, 110)
        data = operators.quantize_per_tensor(x, scale, zero, *limits)
        product = nn.functional.linear(operators.dequantize_per_tensor(data, scale, zero, *limits), weight)
        result = operators.quantize_per_tensor(product.relu(), 0.05, 3, *limits)
        return operators.dequantize_per_tensor(result, 0.05, 3, *limits)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [{"dynamic": False}, {"dynamic": True}, {"dynamic": False, "dtype": torch.int16, "greatest": 100}],
    ids=["static", "dynamic", "narrow"],
)
def test_what_pt2e_quantises(options: dict[str, Any], tmp_path: Path) -> None:
    assert quantization.decompositions()
    inputs = (torch.randn(4, 32, generator=torch.Generator().manual_seed(1)),)
    agrees(through_pt2(Quantised(**options), inputs, tmp_path), 0.05)


def test_rounding_is_to_even_and_saturates(tmp_path: Path) -> None:
    class Rounds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.5, 3, -128, 127, torch.int8)  # type: ignore[no-any-return]

    values = torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75, 1e3, -1e3, 0.0])
    network = through_pt2(Rounds(), (values,), tmp_path)
    assert network.framework_outputs()[0].tolist() == [3, 5, 5, 3, 1, 127, -128, 3]
    agrees(network, 0)


def dequantised(kind: int, shape: list[int], **attributes: int) -> onnx.ModelProto:
    """``x`` plus a constant that is quantised to ``kind``, with two scales."""
    size = int(np.prod(shape))
    numbers = helper.make_tensor("q", kind, shape, [at % 8 for at in range(size)])
    scale_shape = (2, shape[1]) if attributes.get("block_size") else (shape[0],)
    scales = np.linspace(0.1, 0.4, int(np.prod(scale_shape)), dtype=np.float32).reshape(scale_shape)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, **attributes),
            helper.make_node("Add", ["x", "w"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numbers, numpy_helper.from_array(scales, "s")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    "proto",
    [
        dequantised(TensorProto.INT4, [4, 6]),
        dequantised(TensorProto.UINT4, [4, 6], block_size=2),
        dequantised(TensorProto.INT8, [4, 6], block_size=2),
    ],
    ids=["4-bits", "4-bits-blocks", "blocks"],
)
def test_weights_of_few_bits_and_in_blocks(proto: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(proto, str(tmp_path / "net.onnx"))
    network = load_network(tmp_path / "net.onnx")
    assert check_network(import_network(network, CPU), network)[1] < 1e-6


def test_blocks_that_depend_on_the_input_are_refused_in_one_line(tmp_path: Path) -> None:
    proto = dequantised(TensorProto.INT8, [4, 6], block_size=2)
    proto.graph.node[0].input[0] = "x"
    proto.graph.node[1].input[0] = "w"
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    onnx.save(proto, str(tmp_path / "net.onnx"))
    with pytest.raises(UnsupportedNetworkError, match="blocked") as caught:
        load_network(tmp_path / "net.onnx")
    assert "\n" not in str(caught.value)
