"""Operators of com.microsoft on floats, as ONNX Runtime computes them: one network of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.onnx.graph import prepared
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UnsupportedNetworkError
from tests.devices.networks.onnx.test_graph import model

CPU = DeviceClass("cpu", resolve_target("native", 2))
FLOAT = TensorProto.FLOAT
_GENERATOR = np.random.default_rng(0)


def _data(*shape: int) -> Any:
    return _GENERATOR.standard_normal(shape).astype(np.float32)


def _node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    given, made = ([name.replace("-", "") for name in names.split()] for names in (inputs, outputs))
    return helper.make_node(operator, given, made, domain="com.microsoft", **attributes)


def _model(nodes: list[onnx.NodeProto], outputs: dict[str, Any], **weights: Any) -> onnx.ModelProto:
    proto = model(nodes, {"x": (FLOAT, [2, 5, 40]), "image": (FLOAT, [1, 3, 6, 7])}, outputs, opset=17, **weights)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def test_fused_operators_are_as_in_onnx_runtime(tmp_path: Path) -> None:
    """Also where a result of one is the input of another, whose shape ONNX does not infer."""
    packed, eight = (_GENERATOR.integers(0, 256, shape, np.uint8) for shape in ((6, 3, 8), (6, 2, 32)))
    nodes = [
        _node("SkipLayerNormalization", "x skip gamma beta bias", "normed - - sum", epsilon=1e-3),
        _node("SkipSimplifiedLayerNormalization", "normed sum gamma", "simple"),
        _node("QuickGelu", "simple", "gelu", alpha=1.3),
        _node("FusedMatMul", "gelu x", "product", transA=1, alpha=0.5),
        _node("MatMulNBits", "gelu packed scales", "few", K=40, N=6, bits=4, block_size=16),
        _node("MatMulNBits", "gelu packed scales zeros - bias6", "zeroed", K=40, N=6, bits=4, block_size=16),
        _node("MatMulNBits", "x eight scales8", "bytes", K=40, N=6, bits=8, block_size=32),
        _node("FusedConv", "image kernel bias4 more", "image2", activation="Relu", pads=[1, 1, 1, 1]),
        _node("FusedConv", "image kernel", "image3", activation="LeakyRelu", activation_params=[0.3]),
        helper.make_node("Flatten", ["few"], ["flat"], axis=2),
        _node("FusedGemm", "flat square bias6", "general", activation="LeakyRelu", activation_alpha=0.2, transB=1),
    ]
    outputs = {
        "normed": (FLOAT, [2, 5, 40]), "sum": (FLOAT, [2, 5, 40]), "gelu": (FLOAT, [2, 5, 40]),
        "product": (FLOAT, [2, 40, 40]), "few": (FLOAT, [2, 5, 6]), "zeroed": (FLOAT, [2, 5, 6]),
        "bytes": (FLOAT, [2, 5, 6]), "image2": (FLOAT, [1, 4, 6, 7]), "image3": (FLOAT, [1, 4, 4, 5]),
        "general": (FLOAT, [10, 6]),
    }  # fmt: skip
    proto = _model(
        nodes, outputs, skip=_data(2, 5, 40), gamma=_data(40), beta=_data(40), bias=_data(40), bias4=_data(4),
        bias6=_data(6), kernel=_data(4, 3, 3, 3), more=_data(1, 4, 6, 7), square=_data(6, 6), packed=packed,
        scales=_data(18), zeros=_GENERATOR.integers(0, 256, (6, 2), np.uint8), eight=eight, scales8=_data(12),
    )  # fmt: skip
    onnx.save(proto, str(tmp_path / "net.onnx"))
    network = load_network(tmp_path / "net.onnx")
    ours = compile_host(import_network(network, CPU).module)(*network.example_inputs)
    for name, one, other in zip(outputs, ours, network.framework_outputs(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max(), err_msg=name)


def test_weights_of_few_bits_in_an_order_of_their_own_are_refused() -> None:
    node = _node("MatMulNBits", "x packed scales - order", "y", K=40, N=6, bits=4, block_size=16)
    proto = _model(
        [node], {"y": (FLOAT, [2, 5, 6])}, packed=np.zeros((6, 3, 8), np.uint8), scales=_data(18),
        order=np.zeros(48, np.int32),
    )  # fmt: skip
    with pytest.raises(UnsupportedNetworkError, match=r"com\.microsoft\.MatMulNBits \('y'\) has an unsupported form"):
        prepared(proto, "net")
