"""ONNX files as they are lowered, and shapes that no task can have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from devices.builds.executables import tensor_specs
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import (
    import_network,
)
from devices.protocol import TensorSpec
from fleet_tune.base.errors import UnsupportedNetworkError
from tests.helpers.lowered_networks import CPU, agrees, names


def test_an_onnx_network(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.uniform(0.1, 0.5, shape).astype("float32"), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"], epsilon=1e-3),
        helper.make_node("Clip", ["n", "low", "high"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "d", "e"], ["y"], transB=1),
    ]
    weights = [weight("w", 8, 3, 3, 3), *(weight(n, 8) for n in "bstmv"), weight("d", 5, 8), weight("e", 5)]
    weights += [numpy_helper.from_array(np.float32(v), n) for n, v in (("low", 0), ("high", 6))]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        weights,
    )
    file = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(file))
    network = load_network(file)
    lowered = import_network(network, CPU)
    agrees(lowered, network)
    assert names(lowered)[0] == "conv2d_add_maximum_minimum"


def default_onnx(
    path: Path, nodes: list[onnx.NodeProto], output: onnx.ValueInfoProto, *shapes: tuple[int, ...]
) -> Path:
    """A model of the newest versions of format and operators that the installed onnx writes; the image is 1x3x8x8 and
    the weights, of ``shapes``, are called w0, w1, ..."""
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(generator.uniform(-0.5, 0.5, shape).astype("float32"), f"w{index}")
        for index, shape in enumerate(shapes)
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", [image], [output], weights)), str(path))
    return path


def test_an_onnx_file_of_the_newest_version(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime may not know that version yet; then ONNX's own evaluator judges."""
    nodes = [
        helper.make_node("Conv", ["image", "w0", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "w3"], ["y"], transB=1),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])
    network = load_network(default_onnx(tmp_path / "net.onnx", nodes, output, (8, 3, 3, 3), (8,), (5, 512), (5,)))
    assert [array.shape for array in network.framework_outputs()] == [(1, 5)]
    lowered = import_network(network, CPU)
    assert [name for name in names(lowered) if "conv2d" in name]
    assert capfd.readouterr() == ("", "")
    agrees(lowered, network)


@pytest.mark.parametrize(("operator", "rank"), [("NonZero", 4), ("Unique", 1)])
@pytest.mark.parametrize("inside", [False, True])
def test_shapes_that_depend_on_data_are_refused(tmp_path: Path, operator: str, rank: int, inside: bool) -> None:
    kind = TensorProto.INT64 if operator == "NonZero" else TensorProto.FLOAT
    nodes = [helper.make_node("Relu", ["image"], ["r"]), helper.make_node(operator, ["r"], ["found"])]
    extents: list[int | str] = [4, "n"] if rank == 4 else ["n"]
    output = helper.make_tensor_value_info("found", kind, extents)
    if inside:
        nodes.append(helper.make_node("ReduceSum", ["found"], ["y"], keepdims=0))
        output = helper.make_tensor_value_info("y", kind, [])
    file = default_onnx(tmp_path / "net.onnx", nodes, output)
    with pytest.raises(
        UnsupportedNetworkError, match=rf"operator {operator} \('found'\) has .* depends on data"
    ) as refused:
        load_network(file)
    assert "leave it to what runs before or after" in refused.value.next_step


def test_tensors_without_a_fixed_shape_have_no_specification() -> None:
    unknown = tvm.relax.TensorType(dtype="float32", ndim=2)
    symbolic = tvm.relax.TensorType((tvm.tirx.Var("n", "int64"), 3), "float32")
    fixed = tvm.relax.TensorType((2, 3), "float32")
    assert tensor_specs([tvm.relax.TupleType([fixed])]) == (TensorSpec((2, 3), "float32"),)
    for kind in (unknown, symbolic, tvm.relax.TupleType([fixed, symbolic])):
        with pytest.raises(UnsupportedNetworkError, match="without a fixed shape"):
            tensor_specs([kind])
