"""ONNX models made ready for TVM: functions, constants, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from devices.networks.frontend import load_network
from devices.networks.onnx.graph import prepared
from devices.networks.tasks.lowering import check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UnsupportedNetworkError

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


def _weights(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) / 2).astype(np.float32)


@pytest.mark.parametrize(("kind", "gates", "settings"), [("LSTM", 4, {}), ("GRU", 3, {"linear_before_reset": 1})])
def test_recurrent_nodes_are_written_step_by_step(kind: str, gates: int, settings: Any, tmp_path: Path) -> None:
    """Both directions, and sequences of lengths of their own."""
    node = helper.make_node(
        kind, ["x", "w", "r", "b", "lengths"], ["y", "y_h"], hidden_size=4, direction="bidirectional", **settings
    )
    proto = model(
        [node], {"x": (FLOAT, [3, 2, 5])}, {"y": (FLOAT, [3, 2, 2, 4]), "y_h": (FLOAT, [2, 2, 4])},
        w=_weights(2, gates * 4, 5), r=_weights(2, gates * 4, 4), b=_weights(2, gates * 8), lengths=np.int32([3, 1]),
    )  # fmt: skip
    agrees(proto, tmp_path)


def _body(node: onnx.NodeProto, inputs: list[str], outputs: list[str], *more: onnx.NodeProto) -> onnx.GraphProto:
    kinds = {"i": INT64, "going": TensorProto.BOOL, "still": TensorProto.BOOL}
    values = [
        [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), [] if name in kinds else [3]) for name in names]
        for names in (inputs, outputs)
    ]
    return helper.make_graph([node, *more], "body", *values)


def test_loops_of_a_known_length_are_written_turn_by_turn(tmp_path: Path) -> None:
    still = helper.make_node("Identity", ["going"], ["still"])
    loop = _body(helper.make_node("Add", ["s", "s"], ["t"]), ["i", "going", "s"], ["still", "t"], still)
    step = helper.make_node("Mul", ["a", "row"], ["b"])
    scan = _body(step, ["a", "row"], ["b", "copy"], helper.make_node("Identity", ["b"], ["copy"]))
    nodes = [
        helper.make_node("Loop", ["turns", "true", "x"], ["state"], body=loop),
        helper.make_node("Scan", ["state", "rows"], ["y", "z"], body=scan, num_scan_inputs=1),
    ]
    proto = model(
        nodes, {"x": (FLOAT, [3]), "rows": (FLOAT, [2, 3])}, {"y": (FLOAT, [3]), "z": (FLOAT, [2, 3])},
        turns=np.int64(4), true=np.bool_(True),
    )  # fmt: skip
    assert set(operators(prepared(proto, "net"))) <= {
        "Add",
        "Mul",
        "Identity",
        "Slice",
        "Reshape",
        "Concat",
        "Unsqueeze",
    }
    agrees(proto, tmp_path)


def test_loops_end_by_a_condition_that_is_known_turn_by_turn(tmp_path: Path) -> None:
    """Without a number of turns: a number that the loop carries is compared with a bound. Every turn's state, and what
    a branch gave that the turn's number chooses, are collected in order."""
    scalar = helper.make_tensor_value_info("", INT64, []).type
    branches = {
        name: _body(helper.make_node(operator, ["t"], ["out"]), [], ["out"])
        for name, operator in (("then_branch", "Neg"), ("else_branch", "Exp"))
    }
    body = _body(
        helper.make_node("Add", ["n", "step"], ["m"]),
        ["i", "going", "n", "s"],
        ["still", "m", "t", "u", "chosen"],
        helper.make_node("Constant", [], ["bound"], value=numpy_helper.from_array(np.int64(9))),
        helper.make_node("Less", ["m", "bound"], ["still"]),
        helper.make_node("Mul", ["s", "x"], ["t"]),
        helper.make_node("Identity", ["t"], ["u"]),
        helper.make_node("Greater", ["m", "middle"], ["late"]),
        helper.make_node("If", ["late"], ["chosen"], **branches),
    )
    for value in (*body.input, *body.output):
        if value.name in ("n", "m"):
            value.type.CopyFrom(scalar)
    nodes = [
        helper.make_node("Loop", ["", "true", "first", "x"], ["n_last", "y", "z", "c"], body=body),
        helper.make_node("Cast", ["n_last"], ["last"], to=FLOAT),
        helper.make_node("Add", ["y", "last"], ["w"]),
    ]
    outputs: dict[str, tuple[int, list[int | str]]] = {
        "w": (FLOAT, [3]),
        "z": (FLOAT, ["n", 3]),
        "c": (FLOAT, ["n", 3]),
    }
    proto = model(
        nodes, {"x": (FLOAT, [3])}, outputs, true=np.bool_(True), first=np.int64(0), step=np.int64(2),
        middle=np.int64(4),
    )  # fmt: skip
    assert "Loop" not in operators(prepared(proto, "net"))
    agrees(proto, tmp_path)


def test_loops_collect_tensors_in_sequences(tmp_path: Path) -> None:
    """What torch's older exporter writes for a list to which a scripted loop appends."""
    body = _body(
        helper.make_node("SequenceInsert", ["list", "t"], ["longer"]),
        ["i", "going", "s", "list"],
        ["still", "t", "longer"],
        helper.make_node("Identity", ["going"], ["still"]),
        helper.make_node("Tanh", ["s"], ["t"]),
    )
    body.node.insert(0, body.node.pop())
    for value in (body.input[3], body.output[2]):
        value.CopyFrom(helper.make_tensor_sequence_value_info(value.name, FLOAT, [3]))
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"]),
        helper.make_node("Loop", ["turns", "", "x", "none"], ["last", "all"], body=body),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
    ]
    proto = model(nodes, {"x": (FLOAT, [3])}, {"y": (FLOAT, [3, 3])}, turns=np.int64(3))
    agrees(proto, tmp_path)


def test_a_loop_that_ends_by_data_is_refused() -> None:
    body = _body(
        helper.make_node("ReduceMax", ["s"], ["m"], keepdims=0),
        ["i", "going", "s"],
        ["still", "t"],
        helper.make_node("Less", ["m", "bound"], ["still"]),
        helper.make_node("Add", ["s", "s"], ["t"]),
    )
    loop = helper.make_node("Loop", ["turns", "true", "x"], ["y"], body=body)
    proto = model(
        [loop], {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])}, turns=np.int64(9), true=np.bool_(True), bound=np.float32(9)
    )
    with pytest.raises(UnsupportedNetworkError, match="course that depends on data"):
        prepared(proto, "net")


@pytest.mark.parametrize(("back", "axis"), [(0, 0), (1, 1)])
def test_scans_collect_along_any_axis(back: int, axis: int, tmp_path: Path) -> None:
    step = helper.make_node("Add", ["a", "row"], ["b"])
    body = _body(step, ["a", "row"], ["b", "copy"], helper.make_node("Exp", ["b"], ["copy"]))
    settings = {"scan_input_axes": [axis], "scan_input_directions": [back], "scan_output_axes": [1 - axis]}
    scan = helper.make_node(
        "Scan", ["x", "rows"], ["y", "z"], body=body, num_scan_inputs=1, scan_output_directions=[back], **settings
    )
    shapes = {"x": (FLOAT, [3]), "rows": (FLOAT, [3, 4] if axis else [4, 3])}
    proto = model([scan], shapes, {"y": (FLOAT, [3]), "z": (FLOAT, [4, 3] if axis else [3, 4])})
    agrees(proto, tmp_path)


@pytest.mark.parametrize(("most", "overlap"), [(1, 0.4), (3, 1.0), (1 << 40, 1.0)])
def test_a_suppression_that_selects_a_fixed_number_of_boxes_is_a_sort(
    most: int, overlap: float, tmp_path: Path
) -> None:
    """The boxes that it selects can be gathered: their number does not depend on data."""
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["at"]),
        helper.make_node("GatherND", ["scores", "at"], ["y"]),
    ]
    proto = model(
        nodes, {"boxes": (FLOAT, [2, 5, 4]), "scores": (FLOAT, [2, 3, 5])},
        {"at": (INT64, ["n", 3]), "y": (FLOAT, ["n"])}, most=np.int64(most), overlap=np.float32(overlap),
    )  # fmt: skip
    agrees(proto, tmp_path)


def test_branches_on_data_are_both_computed(tmp_path: Path) -> None:
    branches = {
        name: _body(helper.make_node(operator, ["x"], ["out"]), [], ["out"])
        for name, operator in (("then_branch", "Neg"), ("else_branch", "Exp"))
    }
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Greater", ["m", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], **branches),
    ]
    agrees(model(nodes, {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])}, zero=np.float32(0)), tmp_path)


def test_the_maximum_of_a_masked_row_is_minus_infinity(tmp_path: Path) -> None:
    """TVM begins maxima at the lowest finite number: attention that asks whether a row is masked was told no."""
    mask = np.where(np.arange(6).reshape(2, 3) < 3, -np.inf, 0).astype(np.float32)
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["s"]),
        helper.make_node("ReduceMax", ["s", "axes"], ["m"]),
        helper.make_node("Equal", ["m", "low"], ["e"]),
        helper.make_node("Where", ["e", "zero", "s"], ["y"]),
    ]
    proto = model(
        nodes, {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])}, mask=mask, axes=[1], low=np.float32(-np.inf),
        zero=np.float32(0),
    )  # fmt: skip
    agrees(proto, tmp_path)


def test_the_operators_of_old_versions_are_read_as_they_were(tmp_path: Path) -> None:
    """Softmax was one over all axes from its own on; Upsample began at the first pixel's corner."""
    nodes = [
        helper.make_node("Upsample", ["x", "scales"], ["u"], mode="linear"),
        helper.make_node("Softmax", ["u"], ["s"], axis=2),
        helper.make_node("Slice", ["s"], ["y"], axes=[2], starts=[1], ends=[7]),
    ]
    proto = model(
        nodes, {"x": (FLOAT, [1, 2, 4, 4])}, {"y": (FLOAT, [1, 2, 6, 8])}, opset=9, scales=np.float32([1, 1, 2, 2])
    )
    agrees(proto, tmp_path)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor"])
@pytest.mark.parametrize("places", ["asymmetric", "half_pixel"])
def test_nearest_by_factors_that_give_no_whole_number(rounding: str, places: str, tmp_path: Path) -> None:
    """12 / 2.4 is the fifth element, if it is computed in float32."""
    settings = {"coordinate_transformation_mode": places, "nearest_mode": rounding}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest", **settings)
    scales = np.float32([1, 1, 1.3, 2.4])
    proto = model([node], {"x": (FLOAT, [1, 2, 13, 14])}, {"y": (FLOAT, [1, 2, 16, 33])}, scales=scales)
    agrees(proto, tmp_path)


def test_places_of_maxima_and_padding_that_follows_from_extents(tmp_path: Path) -> None:
    settings = {"kernel_shape": [3, 3], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], auto_pad="SAME_LOWER", **settings),
        helper.make_node("MaxPool", ["p"], ["y", "at"], ceil_mode=1, **settings),
    ]
    proto = model(nodes, {"x": (FLOAT, [1, 2, 12, 9])}, {"y": (FLOAT, [1, 2, 3, 2]), "at": (INT64, [1, 2, 3, 2])})
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
            model([helper.make_node("NonMaxSuppression", ["b", "s", "most", "overlap"], ["y"])],
                  {"b": (FLOAT, [1, 6, 4]), "s": (FLOAT, [1, 2, 6])}, {"y": (INT64, ["n", 3])},
                  most=np.int64(4), overlap=np.float32(0.5)),
            "NonMaxSuppression ('y') selects a number of boxes that depends on data",
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


@pytest.mark.parametrize("settings", [
    {"mode": "linear", "axes": [2, 3]},
    {"mode": "cubic", "axes": [3, 2], "exclude_outside": 1, "coordinate_transformation_mode": "align_corners"},
    {"mode": "cubic", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
])  # fmt: skip
def test_a_resize_that_smooths_is_a_product(settings: Any, tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], antialias=1, **settings)
    proto = model([node], {"x": (FLOAT, [1, 2, 10, 12])}, {"y": (FLOAT, [1, 2, "h", "w"])}, sizes=np.int64([3, 5]))
    assert "MatMul" in operators(prepared(proto, "net"))
    agrees(proto, tmp_path)
