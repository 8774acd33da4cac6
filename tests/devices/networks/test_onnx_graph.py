"""ONNX models made ready for TVM: functions, constants, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from devices.networks.frontend import load_network
from devices.networks.lowering import check_network, import_network
from devices.networks.onnx_graph import prepared
from devices.targets import resolve_target
from fleet_tune.domain import DeviceClass
from fleet_tune.errors import UnsupportedNetworkError

CPU = DeviceClass("cpu", resolve_target("native", 2))
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int]]],
    outputs: dict[str, tuple[int, list[int | str]]],
    opset: int = 18,
    **weights: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)], ir_version=10
    )


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def agrees(proto: onnx.ModelProto, folder: Path) -> None:
    onnx.save(proto, str(folder / "net.onnx"))
    network = load_network(folder / "net.onnx")
    assert check_network(import_network(network, CPU), network)[1] < 1e-5


def test_shapes_of_fixed_tensors_are_constants(tmp_path: Path) -> None:
    """What torch's exporter writes for ``x.view(x.shape[0], -1)``."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["m"]),
        helper.make_node("Concat", ["m", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["y"]),
    ]
    proto = model(
        nodes, {"x": (FLOAT, [2, 3, 4])}, {"y": (FLOAT, ["a", "b"])}, zero=np.int64(0), axes=[0], rest=[-1]
    )  # fmt: skip
    assert operators(prepared(proto, "net")) == ["Reshape"]
    agrees(proto, tmp_path)


def test_operators_that_tvm_lacks_are_written_with_others(tmp_path: Path) -> None:
    proto = model([helper.make_node("Swish", ["x"], ["y"])], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])}, opset=24)
    assert operators(prepared(proto, "net")) != ["Swish"]
    agrees(proto, tmp_path)


def test_random_numbers_are_not_constants() -> None:
    node = helper.make_node("RandomNormal", [], ["r"], shape=[2])
    proto = model([node, helper.make_node("Add", ["x", "r"], ["y"])], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})
    with pytest.raises(UnsupportedNetworkError, match=r"the operator RandomNormal \('r'\) gives random results"):
        prepared(proto, "net")


@pytest.mark.parametrize(
    ("proto", "named"),
    [
        (
            model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)],
                  {"x": (FLOAT, [2])}, {"y": (TensorProto.FLOAT8E4M3FN, [2])}, opset=19),
            "'y' has the type FLOAT8E4M3FN",
        ),
        (
            model([helper.make_node("Dropout", ["x", "", "training"], ["y"])],
                  {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, training=np.bool_(True)),
            "Dropout ('y') runs as in training",
        ),
        (
            model([helper.make_node("Shape", ["x"], ["y"])], {"x": (FLOAT, [2])}, {"y": (INT64, [1])}),
            "does not depend on the inputs",
        ),
        (
            model([helper.make_node("BatchNormalization", ["x", *"wwww"], ["y", "m", "v"], training_mode=1)],
                  {"x": (FLOAT, [2, 6])}, {"y": (FLOAT, [2, 6])}, w=np.ones(6, np.float32)),
            "BatchNormalization ('y') runs as in training",
        ),
        (
            model([helper.make_node("NonZero", ["x"], ["y"])], {"x": (FLOAT, [2])}, {"y": (INT64, [1, "n"])}),
            "NonZero ('y') has an output whose shape depends on data",
        ),
        (
            model([helper.make_node("Relu", ["x"], ["y"], domain="mine")], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}),
            "mine.Relu ('y') is of the domain mine",
        ),
    ],
)  # fmt: skip
def test_what_tvm_would_misread_is_refused_in_one_line(proto: onnx.ModelProto, named: str, tmp_path: Path) -> None:
    onnx.save(proto, str(tmp_path / "net.onnx"))
    with pytest.raises(UnsupportedNetworkError) as caught:
        import_network(load_network(tmp_path / "net.onnx"), CPU)
    assert named in caught.value.problem
    assert "\n" not in str(caught.value)
