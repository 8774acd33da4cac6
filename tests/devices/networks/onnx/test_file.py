"""ONNX files whose weights lie beside them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.onnx import file as onnx_file
from devices.networks.tasks.lowering import check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError

CPU = DeviceClass("cpu", resolve_target("native", 2))


def model(file: Path, *, beside: bool) -> Path:
    """Two products, one weight read twice and one in half precision; ``beside``: with the weights in another file."""
    rng = np.random.default_rng(0)
    weights = {
        "w": (rng.standard_normal((64, 64)) / 8).astype(np.float32),
        "half": rng.standard_normal((64, 8)).astype(np.float16),
        "b": rng.standard_normal(8).astype(np.float32),
        "shape": np.asarray([2, 32], np.int64),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["1"], transB=1),
        helper.make_node("Gemm", ["1", "w"], ["2"]),
        helper.make_node("Cast", ["half"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["2", "c"], ["3"]),
        helper.make_node("Add", ["3", "b"], ["4"]),
        helper.make_node("Reshape", ["4", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, str(file), save_as_external_data=beside, size_threshold=0, location=f"{file.stem}.data")
    return file


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models count as large from 4 KiB on, their weights from 512 bytes."""
    monkeypatch.setattr(onnx_file, "LARGEST_MODEL", 4096)
    monkeypatch.setattr(onnx_file, "_LARGE", 512)


def test_weights_beside_a_small_model_are_read_into_it(tmp_path: Path) -> None:
    inside, beside = (model(tmp_path / f"{beside}.onnx", beside=beside) for beside in (False, True))
    assert onnx_file.read(beside).weights == {}
    assert load_network(beside).fingerprint == load_network(inside).fingerprint
    network = load_network(beside)
    assert check_network(import_network(network, CPU), network)[1] < 1e-5


@pytest.mark.usefixtures("large")
def test_weights_beside_a_large_model_stay_in_their_file(tmp_path: Path) -> None:
    file = model(tmp_path / "net.onnx", beside=True)
    read = onnx_file.read(file)
    assert set(read.weights) == {"w", "half"}
    assert all(isinstance(weight, np.memmap) for weight in read.weights.values())
    network = load_network(file)
    assert (network.input_names, len(network.example_inputs)) == (("x",), 1)
    lowered = import_network(network, CPU)
    assert lowered.left_out == ()
    assert check_network(lowered, network)[1] < 1e-5
    output = load(compile_network(lowered, {}, tmp_path / "out"))(*network.example_inputs)
    np.testing.assert_allclose(output, network.framework_outputs()[0], atol=1e-4)


@pytest.mark.usefixtures("large")
def test_the_fingerprint_of_a_large_model_follows_its_weights(tmp_path: Path) -> None:
    file = model(tmp_path / "net.onnx", beside=True)
    before = load_network(file).fingerprint
    assert load_network(file).fingerprint == before
    data = bytearray((tmp_path / "net.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "net.data").write_bytes(data)
    assert load_network(file).fingerprint != before


def test_weights_that_are_missing_are_told_in_one_line(tmp_path: Path) -> None:
    file = model(tmp_path / "net.onnx", beside=True)
    (tmp_path / "net.data").unlink()
    with pytest.raises(NetworkError, match=r"net\.data") as caught:
        load_network(file)
    assert "\n" not in str(caught.value)


def test_the_types_of_mapped_weights(tmp_path: Path) -> None:
    values = np.arange(4).astype(ml_dtypes.bfloat16)
    (tmp_path / "data").write_bytes(b"\0" * 64 + values.tobytes())
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [2, 2], values.view(np.uint16).tobytes(), raw=True)
    onnx.external_data_helper.set_external_data(weight, "data", offset=64, length=8)
    mapped = onnx_file._mapped(weight, tmp_path)
    assert mapped.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(np.asarray(mapped), values.reshape(2, 2))
