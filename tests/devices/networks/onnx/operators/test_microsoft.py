"""ONNX Runtime's operators on quantised tensors (com.microsoft), one network of each type, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from tests.helpers.lowered_networks import CPU

OPERATORS = {
    "QLinearAdd": ("a a_s a_z b b_s b_z y_s y_z", {}),
    "QLinearMul": ("a a_s a_z b b_s b_z y_s y_z", {}),
    "QLinearConcat": ("y_s y_z a a_s a_z b b_s b_z", {"axis": 1}),
    "QLinearWhere": ("mask a a_s a_z b b_s b_z y_s y_z", {}),
    "QLinearLeakyRelu": ("a a_s a_z y_s y_z", {"alpha": 0.1}),
    "QLinearSigmoid": ("a a_s a_z y_s y_z", {}),
    "QLinearSoftmax": ("a a_s a_z p_s p_z", {"axis": -1, "opset": 13}),
    "QLinearSoftmax of several axes": ("a a_s a_z p_s p_z", {"axis": 1, "opset": 12}),
    "QLinearGlobalAveragePool": ("a a_s a_z y_s y_z", {}),
    "QLinearGlobalAveragePool of last channels": ("a a_s a_z y_s y_z", {"channels_last": 1}),
    "QLinearAveragePool": ("a a_s a_z y_s y_z", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "QLinearAveragePool of padding": (
        "a a_s a_z y_s y_z",
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "QLinearAveragePool of last channels": ("a a_s a_z y_s y_z", {"kernel_shape": [2, 2], "channels_last": 1}),
    "QLinearConv": ("a a_s a_z w b_s b_z y_s y_z", {"channels_last": 1}),
    "NhwcMaxPool": ("a", {"kernel_shape": [2, 2], "strides": [2, 2]}),
}
TO_FLOATS = {
    "MatMulIntegerToFloat": "a m a_s b_s a_z b_z",
    "DynamicQuantizeMatMul": "x m b_s b_z bias",
}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_they_are_as_in_onnx_runtime(kind: type[np.generic], tmp_path: Path) -> None:
    """Up to a step of the quantisation, for one value in eight at most: both round, in another order."""
    rng, middle = np.random.default_rng(0), 0 if kind is np.int8 else 128

    def numbers(*shape: int) -> np.ndarray:
        return (rng.integers(-128, 128, shape) + middle).astype(kind)

    constants = {
        **{name: np.float32(scale) for name, scale in (("a_s", 0.02), ("b_s", 0.03), ("y_s", 0.04), ("p_s", 1 / 256))},
        **{name: np.asarray(middle + zero, kind) for name, zero in (("a_z", -28), ("b_z", 12), ("y_z", 2))},
        "p_z": np.asarray(middle - 128, kind),
        "w": numbers(5, 6, 1, 1),
        "m": numbers(6, 5),
        "mask": rng.integers(0, 2, (2, 4, 6, 6)).astype(bool),
        "bias": np.float32(rng.standard_normal(5)),
    }
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    rows = [(name, *given, element) for name, given in OPERATORS.items()]
    rows += [(name, operands, {}, TensorProto.FLOAT) for name, operands in TO_FLOATS.items()]
    nodes, outputs = [], []
    for at, (name, operands, attributes, type_) in enumerate(rows):
        operator = name.partition(" ")[0]
        nodes.append(helper.make_node(operator, operands.split(), [f"y{at}"], domain="com.microsoft", **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{at}", type_, [f"{at}.{axis}" for axis in range(4)]))
    value, shape = helper.make_tensor_value_info, [2, 4, 6, 6]
    inputs = [value("a", element, shape), value("b", element, shape), value("x", TensorProto.FLOAT, shape)]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    versions = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=8), str(tmp_path / "net.onnx"))
    network = load_network(tmp_path / "net.onnx")
    given = (numbers(*shape), numbers(*shape), rng.standard_normal(shape).astype(np.float32))
    network = network.given(given, "the test")
    ours = compile_host(import_network(network, CPU).module)(*given)
    for (name, *_), one, other in zip(rows, ours, network.framework_outputs(), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        if one.dtype == np.float32:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4, err_msg=name)
            continue
        apart = np.abs(one.astype(np.int32) - other.astype(np.int32))
        assert apart.max() <= 1, name
        assert np.count_nonzero(apart) <= apart.size / 8, name
