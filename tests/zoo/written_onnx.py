"""ONNX graphs written node by node in the style of exporters other than torch's, and of old and new opsets.

ONNX Runtime, or ONNX's own evaluator where it does not know a form, says what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from tests.zoo.catalogue import Example, Make

_Array = npt.NDArray[Any]


class OnnxGraph(nn.Module):
    """An ONNX model as a module: what its framework computes from tensors."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        onnx.checker.check_model(model)
        self.model = model

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        given = {each.name: value.numpy() for each, value in zip(_inputs(self.model), values, strict=True)}
        return tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in self._outputs(given))

    def _outputs(self, given: dict[str, _Array]) -> Sequence[_Array]:
        import onnxruntime
        from onnx.reference import ReferenceEvaluator

        text = self.model.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
            return list(session.run(None, given))
        except Exception:  # a version or a form that it does not know
            return list(ReferenceEvaluator(text).run(None, given))


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in constants]


class _Writer:
    """Nodes and weights of one graph."""

    def __init__(self, seed: int = 3) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def __call__(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Write a node; returns the name of its first output, of which the others differ by their number."""
        base = f"{operator}_{len(self.nodes)}"
        names = [f"{base}:{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=base, **attributes))
        return names[0]

    def weight(self, *shape: int) -> str:
        """Draw a weight whose products with the rest keep their size."""
        scale = 1 / np.sqrt(shape[-1] if len(shape) < 4 else np.prod(shape[1:]))
        return self.constant((self._random.standard_normal(shape) * scale).astype(np.float32))

    def scale(self, *shape: int) -> str:
        return self.constant(self._random.uniform(0.5, 1.5, shape).astype(np.float32))

    def constant(self, value: _Array | Sequence[int]) -> str:
        array = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, np.int64)
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def model(
        self,
        inputs: dict[str, tuple[int, list[int]]],
        outputs: dict[str, list[int]],
        opset: int,
        weights_as_inputs: bool = False,
    ) -> onnx.ModelProto:
        given = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
        if weights_as_inputs:  # as before IR version 4
            given += [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in self.weights]
        given_back = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, "tf2onnx", given, given_back, self.weights)
        version = 3 if weights_as_inputs else min(10, onnx.IR_VERSION)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)


def _normal(*shape: int) -> _Array:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


_WORDS, _STEPS, _WIDTH, _HIDDEN = 50, 9, 12, 16


def _language_model(layout: int, directions: int, opset: int = 15) -> Example:
    """A Keras language model as tf2onnx writes it: ids as int32, an embedding as Gather, LSTMs between transposes to
    time-major and back (or with ``layout`` 1), the sequence flattened by Reshape for the last product."""
    write, batch = _Writer(), 2
    data = write("Gather", write.constant(_normal(_WORDS, _WIDTH)), write("Cast", "ids", to=TensorProto.INT64), axis=0)
    width = _WIDTH
    for _ in range(2):
        weights = [
            write.weight(directions, 4 * _HIDDEN, width),
            write.weight(directions, 4 * _HIDDEN, _HIDDEN),
            write.weight(directions, 8 * _HIDDEN),
        ]
        direction = "bidirectional" if directions == 2 else "forward"
        settings: dict[str, Any] = {"hidden_size": _HIDDEN, "direction": direction}
        if layout:
            data = write("LSTM", data, *weights, outputs=3, layout=1, **settings)
        else:
            data = write("LSTM", write("Transpose", data, perm=[1, 0, 2]), *weights, outputs=3, **settings)
            data = write("Transpose", data, perm=[2, 0, 1, 3])
        width = directions * _HIDDEN
        data = write("Reshape", data, write.constant([0, 0, -1]))
    flat = write("Reshape", data, write.constant([-1, width]))
    logits = write("Add", write("MatMul", flat, write.constant(_normal(width, _WORDS))), write.weight(_WORDS))
    sizes = write("Slice", write("Shape", "ids"), write.constant([0]), write.constant([2]))
    logits = write("Reshape", logits, write("Concat", sizes, write.constant([-1]), axis=0))
    write.nodes.append(helper.make_node("Softmax", [logits], ["Identity:0"], axis=-1))
    model = write.model({"ids": (TensorProto.INT32, [batch, _STEPS])}, {"Identity:0": [batch, _STEPS, _WORDS]}, opset)
    return OnnxGraph(model), (torch.randint(0, _WORDS, (batch, _STEPS), dtype=torch.int32),)


def _keras_gru() -> Example:
    """A Keras GRU, whose reset gate comes after the product, on the last state alone, with a mask of lengths."""
    write = _Writer()
    time_major = write("Transpose", "features", perm=[1, 0, 2])
    write(
        *("GRU", time_major, write.weight(1, 3 * _HIDDEN, _WIDTH), write.weight(1, 3 * _HIDDEN, _HIDDEN)),
        *(write.weight(1, 6 * _HIDDEN), "lengths"),
        outputs=2,
        hidden_size=_HIDDEN,
        linear_before_reset=1,
    )
    state = write("Squeeze", f"{write.nodes[-1].name}:1", write.constant([0]))
    logits = write("Gemm", state, write.weight(_HIDDEN, 3), write.weight(3))
    write.nodes.append(helper.make_node("Sigmoid", [logits], ["dense"]))
    inputs = {"features": (TensorProto.FLOAT, [2, _STEPS, _WIDTH]), "lengths": (TensorProto.INT32, [2])}
    model = write.model(inputs, {"dense": [2, 3]}, 13)
    return OnnxGraph(model), (torch.randn(2, _STEPS, _WIDTH), torch.tensor([_STEPS, 5], dtype=torch.int32))


def _channels_last_network() -> Example:
    """A Keras network of separable convolutions: NHWC outside, so a Transpose on either side of what ONNX has in NCHW
    only; batch norms as scale and shift, ReLU6 as Min and Max, Pad before a convolution of stride 2."""
    write, channels = _Writer(), 8
    data = write("Transpose", "image", perm=[0, 3, 1, 2])
    data = write("Pad", data, write.constant([0, 0, 0, 0, 0, 0, 1, 1]), write.constant(np.zeros((), np.float32)))
    data = write("Conv", data, write.weight(channels, 3, 3, 3), strides=[2, 2], kernel_shape=[3, 3])
    for _ in range(2):
        data = write("Transpose", data, perm=[0, 2, 3, 1])
        data = write("Add", write("Mul", data, write.scale(channels)), write.weight(channels))
        low, high = (write.constant(np.asarray(value, np.float32)) for value in (0, 6))
        data = write("Min", write("Max", data, low), high)
        data = write("Transpose", data, perm=[0, 3, 1, 2])
        data = write("Conv", data, write.weight(channels, 1, 3, 3), group=channels, auto_pad="SAME_UPPER")
        data = write("Conv", data, write.weight(channels, channels, 1, 1), auto_pad="VALID")
    data = write("Transpose", data, perm=[0, 2, 3, 1])
    data = write("Concat", data, write("LeakyRelu", data, alpha=0.3), axis=3)
    pooled = write("ReduceMean", data, axes=[1, 2], keepdims=0)
    squeezed = write("Squeeze", write("Unsqueeze", pooled, write.constant([1])), write.constant([1]))
    logits = write("MatMul", squeezed, write.weight(2 * channels, 6))
    write.nodes.append(helper.make_node("Softmax", [logits], ["predictions"]))
    model = write.model({"image": (TensorProto.FLOAT, [2, 17, 20, 3])}, {"predictions": [2, 6]}, 15)
    return OnnxGraph(model), (torch.randn(2, 17, 20, 3),)


def _of_opset_7() -> Example:
    """A network of 2018: weights are inputs too; pads, axes, shapes of slices and factors are attributes; Softmax takes
    the axes behind its own together."""
    write, channels = _Writer(), 6
    data = write("Pad", "image", pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")
    data = write("Conv", data, write.weight(channels, 3, 3, 3), write.weight(channels), kernel_shape=[3, 3])
    norm = [write.scale(channels), write.weight(channels), write.weight(channels), write.scale(channels)]
    data = write("BatchNormalization", data, *norm, epsilon=1e-3, momentum=0.9)
    data = write("Clip", write("PRelu", data, write.scale(channels, 1, 1)), min=-3.0, max=6.0)
    data = write("MaxPool", data, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    data = write("Dropout", data, ratio=0.4)
    larger = write("Upsample", data, mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
    smaller = write("Slice", larger, axes=[2, 3], starts=[1, 0], ends=[9, -2])
    data = write("Sum", smaller, write("Mul", smaller, smaller), write("LRN", smaller, size=3))
    weights = write("Softmax", write("ReduceMean", data, axes=[1], keepdims=1), axis=2)
    data = write("Reshape", write("Mul", data, weights), write.constant([0, -1]))
    mean = write("Squeeze", write("Unsqueeze", data, axes=[2]), axes=[2])
    logits = write("Gemm", mean, write.weight(5, channels * 80), write.weight(5), transB=1)
    write.nodes.append(helper.make_node("LogSoftmax", [logits], ["scores"], axis=1))
    inputs = {"image": (TensorProto.FLOAT, [1, 3, 11, 11])}
    model = write.model(inputs, {"scores": [1, 5]}, 7, weights_as_inputs=True)
    return OnnxGraph(model), (torch.randn(1, 3, 11, 11),)


def _of_opset_23() -> Example:
    """A decoder layer in the operators of 2025: RMSNormalization, RotaryEmbedding, and Attention with grouped heads and
    a cache of keys and values."""
    write, width, heads, groups, past, new = _Writer(), 32, 4, 2, 6, 3
    each = width // heads
    data = write("RMSNormalization", "data", write.scale(width), epsilon=1e-5)
    query, key, value = (
        write(
            "Transpose",
            write(
                "Reshape", write("MatMul", data, write.weight(width, count * each)), write.constant([0, 0, count, each])
            ),
            perm=[0, 2, 1, 3],
        )
        for count in (heads, groups, groups)
    )
    angles = np.arange(40)[:, None] / 100.0 ** (np.arange(each // 2) / (each // 2))
    tables = [write.constant(table(angles).astype(np.float32)) for table in (np.cos, np.sin)]
    query, key = (write("RotaryEmbedding", one, *tables, "positions") for one in (query, key))
    mask = write("Unsqueeze", write("Cast", "mask", to=TensorProto.BOOL), write.constant([1, 2]))
    attended = write("Attention", query, key, value, mask, "past_key", "past_value", outputs=3, is_causal=0)
    keys, values = f"{write.nodes[-1].name}:1", f"{write.nodes[-1].name}:2"
    rows = write("Reshape", write("Transpose", attended, perm=[0, 2, 1, 3]), write.constant([0, 0, -1]))
    data = write("Add", "data", write("MatMul", rows, write.weight(width, width)))
    hidden = write("Gelu", write("MatMul", data, write.weight(width, 64)), approximate="tanh")
    result = write("Add", data, write("MatMul", hidden, write.weight(64, width)))
    for name, source in (("result", result), ("present_key", keys), ("present_value", values)):
        write.nodes.append(helper.make_node("Identity", [source], [name]))
    cache = [1, groups, past, each]
    inputs = {
        "data": (TensorProto.FLOAT, [1, new, width]),
        "positions": (TensorProto.INT64, [1, new]),
        "mask": (TensorProto.INT64, [1, past + new]),
        **dict.fromkeys(("past_key", "past_value"), (TensorProto.FLOAT, cache)),
    }
    longer = [1, groups, past + new, each]
    model = write.model(inputs, {"result": [1, new, width], "present_key": longer, "present_value": longer}, 23)
    mask_values = torch.tensor([[0, 0] + [1] * (past + new - 2)])
    positions = torch.arange(past - 2, past - 2 + new)[None]
    return OnnxGraph(model), (
        torch.randn(1, new, width),
        positions,
        mask_values,
        *(torch.randn(cache) for _ in range(2)),
    )


NETWORKS: dict[str, Make] = {
    "lstm_language_model": lambda: _language_model(0, 1),
    "lstm_of_two_directions": lambda: _language_model(0, 2),
    "keras_gru": _keras_gru,
    "keras_channels_last": _channels_last_network,
    "opset_7": _of_opset_7,
    "opset_23": _of_opset_23,
}
