"""ONNX's floats of 8 bits and integers of 4 bits, between the operators of a network, in types that kernels support.

A float of 8 bits becomes a float32 of the same value, an integer of 4 bits an integer of 8. Operators that make them
(Cast, CastLike, QuantizeLinear) round to numbers of the narrow type. Operators that read them (Cast, DequantizeLinear)
convert the wider numbers, and operators that move them move the wider numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from devices.networks.onnx.folding import known
from devices.networks.onnx.nodes import Array, NodeWriter, OnnxNode, UnknownValueError, as_array

_MOVING = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose"}
    | {"Unsqueeze"}
)
"""Operators that only move elements of their inputs, of any type."""


@dataclass(frozen=True)
class _Floats:
    """The numbers of a float type of 8 bits."""

    least_exponent: int
    """Exponent of the smallest normal number."""
    mantissa: int
    """Bits of the mantissa after the point."""
    largest: float
    beyond: float
    """Value that a number above the largest becomes without saturation."""
    signed_zero: bool = True

    @property
    def exponents(self) -> int:
        """Bits of a counter of exponents, up to the first exponent that is too large."""
        return (int(np.log2(self.largest)) + 1 - self.least_exponent).bit_length()


_FLOATS = {
    TensorProto.FLOAT8E4M3FN: _Floats(-6, 3, 448, np.nan),
    TensorProto.FLOAT8E4M3FNUZ: _Floats(-7, 3, 240, np.nan, signed_zero=False),
    TensorProto.FLOAT8E5M2: _Floats(-14, 2, 57344, np.inf),
    TensorProto.FLOAT8E5M2FNUZ: _Floats(-15, 2, 57344, np.nan, signed_zero=False),
}
_INTEGERS = {TensorProto.INT4: (np.int8, -8, 7), TensorProto.UINT4: (np.uint8, 0, 15)}
"""The wider type, the least and the largest number of each narrow type."""
_NARROW = frozenset({*_FLOATS, *_INTEGERS})
_WHOLE = frozenset(getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64))


def in_wider_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` without narrow types between its operators. It is unchanged if an input or output has a narrow
    type, or if an operator with one cannot be rewritten."""
    graph = known(model)
    narrow = {name for name, kind in graph.types.items() if kind in _NARROW}
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    if not narrow or narrow & ends:
        return model
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    try:
        for proto in model.graph.node:
            write = NodeWriter(next(name for name in proto.output if name), graph.opset)
            result = _converted(OnnxNode(proto, graph), write, narrow)
            nodes += [proto] if result is None else write.nodes
            if result is not None:
                nodes.append(onnx.helper.make_node("Identity", [result], proto.output, f"{proto.name}/is"))
            constants += write.constants
    except UnknownValueError:
        return model
    result_model = onnx.ModelProto()
    result_model.CopyFrom(model)
    for values in (result_model.graph.value_info, result_model.graph.initializer):
        kept = [value for value in values if value.name not in narrow]
        del values[:]
        values.extend(kept)
    wide = (numpy_helper.from_array(_wide(each), each.name) for each in model.graph.initializer if each.name in narrow)
    del result_model.graph.node[:]
    result_model.graph.node.extend(nodes)
    result_model.graph.initializer.extend([*wide, *constants])
    return result_model


def _wide(tensor: onnx.TensorProto) -> Array:
    integers = _INTEGERS.get(tensor.data_type)
    return as_array(tensor).astype(np.float32 if integers is None else integers[0])


def _converted(node: OnnxNode, write: NodeWriter, narrow: set[str]) -> str | None:
    """Write the replacement of a node and return its result. None if the node can stay. Raises
    :class:`UnknownValueError` if the node cannot be rewritten."""
    convert = _CONVERTED.get(node.proto.op_type) if node.proto.domain in ("", "ai.onnx") else None
    names = {*node.proto.input, *node.proto.output} & narrow
    if convert is not None and names:
        return convert(node, write, narrow)
    if names and node.proto.op_type not in _MOVING:
        raise UnknownValueError
    return None


def _cast(node: OnnxNode, write: NodeWriter, _narrow: set[str]) -> str:
    target = node.attributes["to"] if node.proto.op_type == "Cast" else node.type(1)
    source = node.type(0)
    if target not in _NARROW:
        return write.cast(node.input(0), target)
    if target in _FLOATS:
        saturates = bool(node.attributes.get("saturate", 1))
        return _rounded(write, write.cast(node.input(0), TensorProto.FLOAT), _FLOATS[target], saturates)
    if source not in (*_WHOLE, *_INTEGERS):
        raise UnknownValueError  # ONNX truncates, ONNX Runtime rounds
    dtype, least, _ = _INTEGERS[target]
    offset, turn = np.asarray(-least, np.int64), np.asarray(16, np.int64)
    whole = write("Add", write.cast(node.input(0), TensorProto.INT64), offset)
    wrapped = write("Sub", write("Mod", whole, turn), offset)
    return write.cast(wrapped, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _quantized(node: OnnxNode, write: NodeWriter, _narrow: set[str]) -> str | None:
    target = node.graph.types.get(node.proto.output[0])
    if target not in _NARROW or node.attributes.get("block_size"):
        raise UnknownValueError
    if target in _FLOATS:  # the zero point of floats is zero
        data, scale = (write.cast(node.input(at), TensorProto.FLOAT) for at in (0, 1))
        shares = write("Div", data, _along_axis(node, write, scale))
        return _rounded(write, shares, _FLOATS[target], bool(node.attributes.get("saturate", 1)))
    dtype, least, largest = _INTEGERS[target]
    zero = node.input(2) if node.has(2) else write.constant(np.zeros(node.shape(1), dtype))
    whole = write("QuantizeLinear", node.input(0), node.input(1), zero, axis=node.attributes.get("axis", 1))
    return write("Min", write("Max", whole, np.asarray(least, dtype)), np.asarray(largest, dtype))


def _dequantized(node: OnnxNode, write: NodeWriter, narrow: set[str]) -> str | None:
    if node.input(0) not in narrow or node.attributes.get("block_size"):
        raise UnknownValueError
    target = node.attributes.get("output_dtype") or node.type(1)
    if node.type(0) in _FLOATS:
        data, scale = (write.cast(name, target) for name in (node.input(0), node.input(1)))
        return write("Mul", data, _along_axis(node, write, scale))
    inputs = [node.input(at) for at in range(3) if node.has(at)]
    return write.cast(write("DequantizeLinear", *inputs, axis=node.attributes.get("axis", 1)), target)


def _along_axis(node: OnnxNode, write: NodeWriter, scale: str) -> str:
    """Return one scale, or one for each position along the node's axis, shaped to broadcast."""
    sizes, rank = node.shape(1), len(node.shape(0))
    if not sizes or sizes == (1,):
        return write.reshape(scale, [])
    line = [1] * rank
    line[node.attributes.get("axis", 1)] = sizes[0]
    return write.reshape(scale, line)


def _rounded(write: NodeWriter, value: str, kind: _Floats, saturates: bool) -> str:
    """Write the nearest number of a narrow type; ties round to even. The value is rounded to a multiple of the distance
    between numbers of its magnitude, a power of two."""
    limit = _number(kind.largest if saturates else 2.0 ** (int(np.log2(kind.largest)) + 1))
    kept = write("Max", write("Min", value, limit), -limit)
    rest = write("Max", write("Abs", kept), _number(2.0**kind.least_exponent))
    distance: str | Array = _number(2.0 ** (kind.least_exponent - kind.mantissa))
    for bit in reversed(range(kind.exponents)):
        steps = 1 << bit
        less = write("Less", rest, _number(2.0 ** (kind.least_exponent + steps)))
        rest = write("Where", less, rest, write("Mul", rest, _number(2.0**-steps)))
        factor = write("Where", less, _number(1), _number(2.0**steps))
        distance = write("Mul", factor, distance)
    result = write("Mul", write("Round", write("Div", kept, distance)), distance)
    if not kind.signed_zero:
        result = write("Where", write("Equal", result, _number(0)), _number(0), result)
    if saturates:
        return result
    for sign, compare in ((1, "Greater"), (-1, "Less")):
        outside = write(compare, result, _number(sign * kind.largest))
        result = write("Where", outside, _number(sign * kind.beyond), result)
    return result


def _number(value: float) -> Array:
    return np.asarray(value, np.float32)


_CONVERTED: dict[str, Callable[[OnnxNode, NodeWriter, set[str]], str | None]] = {
    "Cast": _cast,
    "CastLike": _cast,
    "DequantizeLinear": _dequantized,
    "QuantizeLinear": _quantized,
}
