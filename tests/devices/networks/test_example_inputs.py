"""The inputs on which a network is compared with its framework: given by the user, or made up."""

from __future__ import annotations

import io
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from devices.networks.frontend import Network, load_network
from devices.networks.input_ranges import MADE_UP
from devices.networks.network import EXAMPLE
from fleet_tune.base.errors import NetworkError

FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
Value = tuple[str, int, list[int]]


def onnx_file(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[Value],
    outputs: list[Value],
    **constants: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def by_name(network: Network) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return dict(zip(network.input_names, network.example_inputs, strict=True))


def test_made_up_inputs_are_in_the_ranges_that_the_graph_allows(tmp_path: Path) -> None:
    node = helper.make_node
    file = onnx_file(
        tmp_path / "net.onnx",
        [
            node("Gather", ["table", "ids"], ["words"]),
            node("Add", ["places", "two"], ["moved"]),
            node("Cast", ["moved"], ["cast"], to=INT64),
            node("Gather", ["positions", "cast"], ["where"]),
            node("Add", ["words", "where"], ["sum"]),
            node("Log", ["x"], ["log"]),
            node("Reshape", ["y", "shape"], ["flat"]),
            node("Sub", ["one", "flat"], ["rest"]),
            node("Sqrt", ["rest"], ["root"]),
            node("Div", ["log", "z"], ["ratio"]),
            node("Where", ["mask", "ratio", "root"], ["chosen"]),
            node("Mod", ["a", "b"], ["remainder"]),
        ],
        [
            ("ids", INT64, [4, 32]),
            ("places", INT32, [4, 32]),
            ("x", FLOAT, [2, 4]),
            ("y", FLOAT, [4, 2]),
            ("z", FLOAT, [2, 4]),
            ("mask", BOOL, [2, 4]),
            ("a", INT32, [4]),
            ("b", INT32, [4]),
        ],
        [("sum", FLOAT, [4, 32, 8]), ("chosen", FLOAT, [2, 4]), ("remainder", INT32, [4])],
        table=np.ones((50, 8), np.float32),
        positions=np.ones((10, 8), np.float32),
        two=np.array(2, np.int32),
        one=np.array(1, np.float32),
        shape=np.array([2, 4]),
    )
    network = load_network(file)
    values = by_name(network)
    assert network.inputs_from == MADE_UP
    assert set(np.unique(values["ids"])) <= set(range(50))
    assert len(np.unique(values["ids"])) > 30
    assert set(np.unique(values["places"])) == set(range(8))
    assert (values["x"] >= 0.09).all()
    assert (values["y"] <= 0.91).all()
    assert (values["z"] >= 0.49).all()
    assert values["mask"][:, 0].all()
    assert (values["b"] > 0).all()
    assert all(np.isfinite(array).all() for array in network.framework_outputs())
    assert all(np.array_equal(a, b) for a, b in zip(values.values(), load_network(file).example_inputs, strict=True))


def test_inputs_are_positive_where_others_give_no_numbers(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "y"], ["xy"]), helper.make_node("Sqrt", ["xy"], ["root"])]
    file = onnx_file(tmp_path / "net.onnx", nodes, [("x", FLOAT, [8]), ("y", FLOAT, [8])], [("root", FLOAT, [8])])
    network = load_network(file)
    assert network.inputs_from == f"{MADE_UP}, positive"
    assert all((array > 0).all() for array in network.example_inputs)
    assert np.isfinite(network.framework_outputs()[0]).all()


class Two(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x.float() + ids


def two(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Two(), (torch.zeros(2, 3, dtype=dtype), torch.zeros(2, 3, dtype=torch.int32))


X, IDS = np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3)


def test_given_inputs_take_the_place_of_the_examples(tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, ids=IDS, x=X)
    network = load_network(two(), file)
    assert (load_network(two()).inputs_from, network.inputs_from) == (EXAMPLE, str(file))
    assert [array.dtype.name for array in network.example_inputs] == ["float32", "int32"]
    np.testing.assert_array_equal(network.framework_outputs()[0], X + IDS)
    np.savez(file, X.astype(np.float32), IDS.astype(np.int32))  # by order
    np.testing.assert_array_equal(load_network(two(), file).framework_outputs()[0], X + IDS)


def test_bfloat16_is_given_as_itself_or_as_another_float(tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    for array in (X, X.astype(ml_dtypes.bfloat16)):
        np.savez(file, x=array, ids=IDS)
        network = load_network(two(torch.bfloat16), file)
        assert network.example_inputs[0].dtype.name == "bfloat16"
        np.testing.assert_array_equal(network.framework_outputs()[0], X + IDS)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": X}, "has no ids"),
        ({"x": X, "ids": IDS, "y": X}, "has y, which the network does not have"),
        ({"x": X[:1], "ids": IDS}, r"x has the shape \[1, 3\]"),
        ({"x": X.astype(np.int64), "ids": IDS}, "x is int64 and does not fit float32"),
        ({"x": X, "ids": IDS + 2**40}, "ids is int64 and does not fit int32"),
        ({"x": X, "ids": IDS + 0.5}, "ids is float64 and does not fit int32"),
        ({"x": X * 1e300, "ids": IDS}, "x has values that are infinite in float32"),
        ({"x": np.array([None]), "ids": IDS}, "cannot be read as arrays"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]], problem: str
) -> None:
    np.savez(tmp_path / "inputs.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match=problem) as caught:
        load_network(two(), tmp_path / "inputs.npz")
    assert caught.value.next_step.startswith(("save ", "give "))


def test_inputs_that_the_framework_refuses_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", np.array([1, 7]))
    network = load_network((nn.Embedding(5, 3), (torch.tensor([0, 1]),)), tmp_path / "inputs.npz")
    with pytest.raises(NetworkError, match="PyTorch cannot run the network on its inputs: IndexError: index out of"):
        network.framework_outputs()


def damaged_inputs() -> bytes:
    """Deflated arrays that cannot be inflated."""
    whole = io.BytesIO()
    np.savez_compressed(whole, x=np.arange(6000.0), ids=IDS)
    content = bytearray(whole.getvalue())
    content[200:400] = b"\xff" * 200
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no arrays", "is not an .npz file"),
        (b"", "is not an .npz file"),
        (b"\x93NUMPY", "holds one array, without a name"),
        (b"PK\x03\x04 damaged", "cannot be read as arrays"),
        (damaged_inputs(), "cannot be read as arrays"),
    ],
)
def test_a_file_that_is_no_file_of_arrays_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "inputs.npz").write_bytes(content)
    with pytest.raises(NetworkError, match=problem) as caught:
        load_network(two(), tmp_path / "inputs.npz")
    assert caught.value.next_step == "save x float32[2, 3], ids int32[2, 3] with numpy.savez"


def test_a_condition_that_is_one_value_is_made_up(tmp_path: Path) -> None:
    node = helper.make_node
    file = onnx_file(
        tmp_path / "net.onnx",
        [node("Where", ["condition", "x", "y"], ["out"])],
        [("condition", BOOL, []), ("x", FLOAT, [3]), ("y", FLOAT, [3])],
        [("out", FLOAT, [3])],
    )
    condition = by_name(load_network(str(file)))["condition"]
    assert condition.shape == ()
    assert condition.dtype == bool
