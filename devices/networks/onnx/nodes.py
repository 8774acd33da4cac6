"""One ONNX node with the known facts about it, and a writer of the nodes that replace it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]

FINAL = "rewritten"
"""Doc string that a rewrite gives to nodes that must not be rewritten again."""


class UnknownValueError(Exception):
    """A shape, type or value that a rewrite needs is not known before the network runs."""


@dataclass(frozen=True)
class GraphFacts:
    """Known facts of a graph by name."""

    constants: dict[str, Any]
    """Tensors and arrays."""
    shapes: dict[str, tuple[int, ...]]
    """Fixed shapes."""
    types: dict[str, int]
    """Element types, as ONNX numbers them."""
    opset: int
    """Version of ONNX's own operators that the graph is written in."""

    @cached_property
    def infinite(self) -> bool:
        """True if a constant contains minus infinity, as masks of attention do."""
        arrays = (as_array(value) for value in self.constants.values())
        return any(array.dtype.kind == "f" and bool(np.isneginf(array).any()) for array in arrays)


class OnnxNode:
    """A node of ``graph``: inputs and outputs by position, attributes with ONNX's defaults."""

    def __init__(self, proto: onnx.NodeProto, graph: GraphFacts) -> None:
        self.proto = proto
        self.graph = graph
        self.attributes: dict[str, Any] = {}
        if onnx.defs.has(proto.op_type, graph.opset, proto.domain):
            for name, attribute in onnx.defs.get_schema(proto.op_type, graph.opset, proto.domain).attributes.items():
                if attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
                    self.attributes[name] = _value(attribute.default_value)
        self.attributes.update((attribute.name, _value(attribute)) for attribute in proto.attribute)

    def has(self, at: int) -> bool:
        return at < len(self.proto.input) and bool(self.proto.input[at])

    def wants(self, at: int) -> bool:
        """Return true if output ``at`` is used."""
        return at < len(self.proto.output) and bool(self.proto.output[at])

    def input(self, at: int) -> str:
        if not self.has(at):
            raise UnknownValueError
        return str(self.proto.input[at])

    def shape(self, at: int) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._known(self.graph.shapes, at)
        return shape

    def type(self, at: int) -> int:
        """Return the element type as ONNX's number."""
        return int(self._known(self.graph.types, at))

    def dtype(self, at: int) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(self.type(at)))
        return dtype

    def constant(self, at: int) -> Array:
        return as_array(self._known(self.graph.constants, at))

    def constant_or(self, at: int, default: Any) -> Array:
        """Return the constant input ``at``, or ``default`` if it is missing."""
        return self.constant(at) if self.has(at) else np.asarray(default)

    def _known(self, table: dict[str, Any], at: int) -> Any:
        name = self.input(at)
        if name not in table:
            raise UnknownValueError
        return table[name]


class NodeWriter:
    """Writes the nodes and constants that replace a node.

    Called with an operator, its inputs (names, arrays, None) and attributes, it writes a node and returns the name of
    its output.
    """

    def __init__(self, prefix: str, opset: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._prefix = prefix
        self._opset = opset
        self._prefixes = 0

    def __call__(self, operator: str, *inputs: str | Array | None, **attributes: Any) -> str:
        [name] = self.several(1, operator, *inputs, **attributes)
        return name

    def several(self, count: int, operator: str, *inputs: str | Array | None, **attributes: Any) -> list[str]:
        names = [self.constant(x) if isinstance(x, np.ndarray | np.generic) else x or "" for x in inputs]
        outputs = [f"{self._prefix}/{len(self.nodes)}.{at}" for at in range(count)]
        self.nodes.append(helper.make_node(operator, names, outputs, name=f"{self._prefix}/{operator}", **attributes))
        return outputs

    def constant(self, array: Array | np.generic) -> str:
        name = f"{self._prefix}/constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def final(self, operator: str, *inputs: str | Array | None, **attributes: Any) -> str:
        """Write a node that is not rewritten again, usually of the operator that is being rewritten."""
        return self(operator, *inputs, doc_string=FINAL, **attributes)

    def fresh_prefix(self) -> str:
        """Return a prefix for names. Each call returns another one."""
        self._prefixes += 1
        return f"{self._prefix}/{self._prefixes}"

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        return self("Reshape", value, np.asarray(shape, np.int64))

    def cast(self, value: str, element_type: int) -> str:
        return self("Cast", value, to=element_type)

    def take(self, value: str, begin: int, end: int, axis: int) -> str:
        """Write ``value[begin:end]`` along ``axis``. Needs opset 10 or later."""
        bounds = (np.asarray([bound], np.int64) for bound in (begin, end, axis))
        return self("Slice", value, *bounds)

    def unsqueeze(self, value: str, axis: int) -> str:
        """Write ``value`` with a dimension of one at ``axis``."""
        if self._opset < 13:
            return self("Unsqueeze", value, axes=[axis])
        return self("Unsqueeze", value, np.asarray([axis], np.int64))

    def reduce(self, operator: str, value: str, axis: int) -> str:
        """Write the reduction ``operator`` over one axis, which stays with an extent of 1."""
        as_input = 13 if operator == "ReduceSum" else 18
        if self._opset < as_input:
            return self(operator, value, axes=[axis], keepdims=1)
        return self(operator, value, np.asarray([axis], np.int64), keepdims=1)

    def pad(self, value: str, pads: Sequence[int], filling: Array) -> str:
        """Write a padding. ``pads``: before each axis, then after each."""
        return self("Pad", value, np.asarray(pads, np.int64), filling, mode="constant")


def as_array(constant: Any) -> Array:
    if isinstance(constant, np.ndarray):
        return constant
    array: Array = numpy_helper.to_array(constant)
    return array


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [text.decode() for text in value]
    return value
