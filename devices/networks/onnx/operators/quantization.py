"""ONNX's operators on quantised tensors as operators on floats between DequantizeLinear and QuantizeLinear.

Older quantisers write ``QLinearConv`` and similar operators. These become the form of newer quantisers: every tensor is
dequantised, the operator computes in floats, and its result is quantised.
:mod:`devices.networks.graph.low_precision.quantization` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

_MICROSOFT = "com.microsoft"
Domain = tuple[str, str]
_SOFTMAX_OF_ONE_AXIS = 13
"""First version of ONNX's operators in which a softmax is over one axis."""


@dataclass
class _Expansion:
    """The nodes that replace ``node``."""

    node: onnx.NodeProto
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, operator: str, inputs: list[str], **attributes: object) -> str:
        """Write a node and return the name of its result."""
        name = f"{self.node.output[0]}/{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def input(self, at: int) -> str:
        """Return the name of an input. Empty if it is missing."""
        return str(self.node.input[at]) if at < len(self.node.input) else ""

    def floats(self, at: int, axis: int = 0) -> str:
        """Return the input ``at``, dequantised. Its scale and zero point are the inputs after it."""
        return self.add("DequantizeLinear", [self.input(at), self.scale(at + 1), *self.zero(at + 2)], axis=axis)

    def scale(self, at: int) -> str:
        """Return a scale in float32, as products of half-precision numbers would be rounded."""
        return self.add("Cast", [self.input(at)], to=TensorProto.FLOAT)

    def zero(self, at: int) -> list[str]:
        return [self.input(at)] if self.input(at) else []

    def bias(self, at: int, scales: tuple[int, int]) -> list[str]:
        """Return a bias of integers, dequantised. Its scale is the product of the factors' scales. Empty if it is
        missing."""
        if not self.input(at):
            return []
        scale = self.add("Mul", [self.scale(scale) for scale in scales])
        return [self.add("DequantizeLinear", [self.input(at), scale], axis=0)]

    def finish(self, result: str, scale: int) -> list[onnx.NodeProto]:
        """Quantise ``result`` with the inputs ``scale`` and ``scale + 1``, or pass it on if they are missing."""
        given = [self.scale(scale), *self.zero(scale + 1)] if self.input(scale) else []
        operator = "QuantizeLinear" if given else "Identity"
        self.nodes.append(helper.make_node(operator, [result, *given], [self.node.output[0]]))
        return self.nodes

    def turned(self, value: str, last: bool) -> str:
        """Move the channels of images (four axes) to the end, or back."""
        return self.add("Transpose", [value], perm=[0, 2, 3, 1] if last else [0, 3, 1, 2])

    def attributes(self, *without: str) -> dict[str, object]:
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute if a.name not in without}


def _convolution(new: _Expansion) -> list[onnx.NodeProto]:
    operands = [new.floats(0), new.floats(3), *new.bias(8, (1, 4))]
    return new.finish(new.add("Conv", operands, **new.attributes()), 6)


def _product(new: _Expansion) -> list[onnx.NodeProto]:
    """Write a product. Its scales are per row of the first operand, and per column of the second."""
    return new.finish(new.add("MatMul", [new.floats(0, axis=-2), new.floats(3, axis=-1)]), 6)


def _gemm(new: _Expansion) -> list[onnx.NodeProto]:
    transposed = bool(new.attributes().get("transB", 0))
    operands = [new.floats(0), new.floats(3, axis=0 if transposed else 1), *new.bias(6, (1, 4))]
    return new.finish(new.add("Gemm", operands, **new.attributes()), 7)


def _elementwise(operator: str) -> Callable[[_Expansion], list[onnx.NodeProto]]:
    return lambda new: new.finish(new.add(operator, [new.floats(0), new.floats(3)]), 6)


def _integer_convolution(new: _Expansion) -> list[onnx.NodeProto]:
    """Write a convolution with sums in float32: they are exact below 2^24, the sum of 258 products of the largest
    numbers."""
    data, weight = (new.add("Cast", [name], to=TensorProto.FLOAT) for name in new.node.input[:2])
    if new.input(2):
        data = new.add("Sub", [data, new.add("Cast", [new.input(2)], to=TensorProto.FLOAT)])
    if new.input(3):  # one for each output channel, the last axis of the transposed weight
        zeros = new.add("Cast", [new.input(3)], to=TensorProto.FLOAT)
        weight = new.add("Transpose", [new.add("Sub", [new.add("Transpose", [weight]), zeros])])
    result = new.add("Conv", [data, weight], **new.attributes())
    new.nodes.append(helper.make_node("Cast", [result], [new.node.output[0]], to=TensorProto.INT32))
    return new.nodes


def _of_one(operator: str, *dropped: str) -> Callable[[_Expansion], list[onnx.NodeProto]]:
    """Return the expansion of an operator on one quantised tensor, without the attributes ``dropped``."""
    return lambda new: new.finish(new.add(operator, [new.floats(0)], **new.attributes(*dropped)), 3)


def _pooled(operator: str) -> Callable[[_Expansion], list[onnx.NodeProto]]:
    def expand(new: _Expansion) -> list[onnx.NodeProto]:
        data, back = new.floats(0), False
        if new.attributes().get("channels_last"):
            data, back = new.turned(data, last=False), True
        result = new.add(operator, [data], **new.attributes("channels_last"))
        return new.finish(new.turned(result, last=True) if back else result, 3)

    return expand


def _convolution_of_either_layout(new: _Expansion) -> list[onnx.NodeProto]:
    if not new.attributes().get("channels_last"):
        return _convolution(new)
    operands = [new.turned(new.floats(0), last=False), new.floats(3), *new.bias(8, (1, 4))]
    return new.finish(new.turned(new.add("Conv", operands, **new.attributes("channels_last")), last=True), 6)


def _largest_of_last_layout(new: _Expansion) -> list[onnx.NodeProto]:
    """Write a MaxPool of integers as one of floats, which hold all numbers of 8 bits."""
    data = new.turned(new.add("Cast", [new.input(0)], to=TensorProto.FLOAT), last=False)
    result = new.turned(new.add("MaxPool", [data], **new.attributes()), last=True)
    new.nodes.append(helper.make_node("CastLike", [result, new.input(0)], [new.node.output[0]]))
    return new.nodes


def _softmax(new: _Expansion) -> list[onnx.NodeProto]:
    """Write a softmax. If its ``opset`` names an older version, it is over all axes from ``axis`` on."""
    settings = new.attributes()
    axis, data = settings.get("axis", -1), new.floats(0)
    if settings.get("opset", 1) >= _SOFTMAX_OF_ONE_AXIS:  # type: ignore[operator]
        return new.finish(new.add("Softmax", [data], axis=axis), 3)
    flat = new.add("Softmax", [new.add("Flatten", [data], axis=axis)], axis=-1)
    return new.finish(new.add("Reshape", [flat, new.add("Shape", [data])]), 3)


def _concatenation(new: _Expansion) -> list[onnx.NodeProto]:
    parts = [new.floats(at) for at in range(2, len(new.node.input), 3)]
    return new.finish(new.add("Concat", parts, **new.attributes()), 0)


def _choice(new: _Expansion) -> list[onnx.NodeProto]:
    return new.finish(new.add("Where", [new.input(0), new.floats(1), new.floats(4)]), 7)


def _product_to_floats(new: _Expansion) -> list[onnx.NodeProto]:
    """Write a product of integers, times both scales. The second operand may have a scale for each column."""
    left = new.add("DequantizeLinear", [new.input(0), new.scale(2), *new.zero(4)])
    right = new.add("DequantizeLinear", [new.input(1), new.scale(3), *new.zero(5)], axis=-1)
    return _with_bias(new, new.add("MatMul", [left, right]), 6)


def _product_of_floats(new: _Expansion) -> list[onnx.NodeProto]:
    """Write a product whose first operand is quantised dynamically, by its own range."""
    names = [f"{new.node.output[0]}/{part}" for part in ("quantized", "scale", "zero")]
    new.nodes.append(helper.make_node("DynamicQuantizeLinear", [new.input(0)], names))
    left = new.add("DequantizeLinear", names)
    right = new.add("DequantizeLinear", [new.input(1), new.scale(2), *new.zero(3)], axis=-1)
    return _with_bias(new, new.add("MatMul", [left, right]), 4)


def _with_bias(new: _Expansion, result: str, at: int) -> list[onnx.NodeProto]:
    operands = [result, new.input(at)] if new.input(at) else [result]
    new.nodes.append(helper.make_node("Add" if len(operands) == 2 else "Identity", operands, [new.node.output[0]]))
    return new.nodes


_EXPANSIONS: Mapping[Domain, Callable[[_Expansion], list[onnx.NodeProto]]] = {
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _product,
    ("", "ConvInteger"): _integer_convolution,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearAdd"): _elementwise("Add"),
    (_MICROSOFT, "QLinearMul"): _elementwise("Mul"),
    (_MICROSOFT, "QLinearAveragePool"): _pooled("AveragePool"),
    (_MICROSOFT, "QLinearConcat"): _concatenation,
    (_MICROSOFT, "QLinearConv"): _convolution_of_either_layout,
    (_MICROSOFT, "QLinearGlobalAveragePool"): _pooled("GlobalAveragePool"),
    (_MICROSOFT, "QLinearLeakyRelu"): _of_one("LeakyRelu"),
    (_MICROSOFT, "QLinearSigmoid"): _of_one("Sigmoid"),
    (_MICROSOFT, "QLinearSoftmax"): _softmax,
    (_MICROSOFT, "QLinearWhere"): _choice,
    (_MICROSOFT, "NhwcMaxPool"): _largest_of_last_layout,
    (_MICROSOFT, "MatMulIntegerToFloat"): _product_to_floats,
    (_MICROSOFT, "DynamicQuantizeMatMul"): _product_of_floats,
}


def in_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with the operators of this module's docstring expanded."""
    expansions = [_EXPANSIONS.get((node.domain.replace("ai.onnx", ""), node.op_type)) for node in model.graph.node]
    if not any(expansions):
        return model
    nodes: list[onnx.NodeProto] = []
    for node, expand in zip(model.graph.node, expansions, strict=True):
        nodes += [node] if expand is None else expand(_Expansion(node))
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result
