"""Floats of 8 bits and integers of 4 bits between a network's operators, number by number as ONNX Runtime has them."""

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
from devices.networks.onnx.intermediates import intermediates
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UnsupportedNetworkError
from tests.devices.networks.onnx.test_graph import model

CPU = DeviceClass("cpu", resolve_target("native", 2))
FLOAT, FLOAT16, INT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8
FLOATS = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)


def _numbers() -> Any:
    """All numbers of the types, what lies in the middle of two, what is beside those, and the ends of float32."""
    every = [np.arange(256, dtype=np.uint8).view(helper.tensor_dtype_to_np_dtype(kind)) for kind in FLOATS]
    known = np.concatenate([each.astype(np.float32) for each in every])
    known = np.unique(known[np.isfinite(known)])
    middles = (known[:-1] + known[1:]) / 2
    beside = np.concatenate([np.nextafter(middles, side, dtype=np.float32) for side in (np.inf, -np.inf)])
    ends = np.float32([-0.0, np.nan, np.inf, -np.inf, 464, 465, 248, 249, 61440, 61441, 1e30, -1e30, 1e-30])
    return np.concatenate([known, middles, beside, ends]).astype(np.float32)


def _compared(proto: onnx.ModelProto, file: Path, *inputs: Any) -> None:
    onnx.save(proto, str(file))
    network = load_network(file)
    ours = compile_host(import_network(network, CPU).module)(*inputs)
    theirs = network.given(inputs, "").framework_outputs()
    for value, one, other in zip(proto.graph.output, ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=value.name)
        kept = other == 0 if one.dtype.kind == "f" else np.zeros(0, bool)
        np.testing.assert_array_equal(np.signbit(one[kept]), np.signbit(other[kept]), err_msg=value.name)


@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_round_to_the_numbers_of_floats_of_8_bits(saturate: int, tmp_path: Path) -> None:
    nodes, outputs = [], {}
    numbers = _numbers()
    for at, kind in enumerate(FLOATS):
        nodes += [
            helper.make_node("Cast", ["x"], [f"narrow{at}"], to=kind, saturate=saturate),
            helper.make_node("Reshape", [f"narrow{at}", "flat"], [f"moved{at}"]),
            helper.make_node("Cast", [f"moved{at}"], [f"y{at}"], to=FLOAT),
        ]
        outputs[f"y{at}"] = (FLOAT, [numbers.size])
    proto = model(nodes, {"x": (FLOAT, [numbers.size])}, outputs, opset=19, flat=[-1])  # type: ignore[arg-type]
    _compared(proto, tmp_path / "net.onnx", numbers)


def test_quantisation_to_floats_of_8_bits_and_integers_of_4(tmp_path: Path) -> None:
    """With a scale for each channel, and zero points for the integers."""
    nodes, outputs, weights = [], {}, {"scale": np.float32([0.5, 0.03, 2])}
    kinds = (*FLOATS, TensorProto.INT4, TensorProto.UINT4)
    for at, kind in enumerate(kinds):
        zeros = [0, 0, 0] if kind in FLOATS else [1, 3, 0]
        weights[f"zero{at}"] = np.asarray(zeros).astype(helper.tensor_dtype_to_np_dtype(kind))
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "scale", f"zero{at}"], [f"narrow{at}"], axis=1),
            helper.make_node("DequantizeLinear", [f"narrow{at}", "scale", f"zero{at}"], [f"y{at}"], axis=1),
        ]
        outputs[f"y{at}"] = (FLOAT, [40, 3])
    data = (np.random.default_rng(0).standard_normal((40, 3)) * [20, 1, 1000]).astype(np.float32)
    proto = model(nodes, {"x": (FLOAT, [40, 3])}, outputs, opset=21, **weights)  # type: ignore[arg-type]
    _compared(proto, tmp_path / "net.onnx", data)


def test_casts_of_integers_keep_four_bits(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.INT4),
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.UINT4),
        helper.make_node("Cast", ["a"], ["y"], to=FLOAT),
        helper.make_node("Cast", ["b"], ["z"], to=INT8),
    ]
    outputs: dict[str, Any] = {"y": (FLOAT, [256]), "z": (INT8, [256])}
    proto = model(nodes, {"x": (INT8, [256])}, outputs, opset=21)
    _compared(proto, tmp_path / "net.onnx", np.arange(256).astype(np.int8))
    # What is compared where a network disagrees has types of kernels.
    assert [value.name for value in intermediates(tmp_path / "net.onnx")] == ["y", "z"]


def test_what_is_not_read_of_narrow_types_keeps_its_reason() -> None:
    """Outputs, sums of floats of 8 bits, and fractions as four bits, which ONNX cuts off and ONNX Runtime rounds."""
    narrow = helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT8E5M2)
    four = helper.make_node("Cast", ["x"], ["a"], to=TensorProto.INT4)
    back = helper.make_node("Cast", ["a"], ["y"], to=FLOAT)
    chosen = [helper.make_node("Where", ["c", "a", "a"], ["b"]), helper.make_node("Neg", ["x"], ["y"])]
    for nodes, output in (
        ([narrow], ("a", TensorProto.FLOAT8E5M2)),
        (
            [narrow, *chosen],
            ("y", FLOAT),
        ),
        ([four, back], ("y", FLOAT)),
    ):
        proto = model(nodes, {"x": (FLOAT, [2]), "c": (TensorProto.BOOL, [2])}, {output[0]: (output[1], [2])}, opset=21)
        with pytest.raises(UnsupportedNetworkError, match=r"has the type (FLOAT8E5M2|INT4), which kernels do not have"):
            prepared(proto, "net")
