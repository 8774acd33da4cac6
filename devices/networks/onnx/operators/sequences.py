"""ONNX's sequences of tensors as separate tensors, if lengths and positions are known before the network runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from devices.networks.onnx.folding import known, reads
from devices.networks.onnx.nodes import NodeWriter, OnnxNode, UnknownValueError

Elements = Sequence[str]
"""The names of a sequence's tensors."""
Made = Callable[[OnnxNode, Elements, NodeWriter], Elements]


def without_sequences(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    """Return ``model`` without sequences, and true if it had any. A model is unchanged if a sequence is an output or is
    read by another operator, or if a position or a length is not known."""
    if not any(node.op_type in SEQUENCE_OPERATORS for node in model.graph.node):
        return model, False
    graph = known(model)
    sequences: dict[str, Elements] = {}
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    try:
        for proto in model.graph.node:
            node = OnnxNode(proto, graph)
            write = NodeWriter(next(name for name in proto.output if name), graph.opset)
            given = sequences.get(proto.input[0], ()) if proto.input else ()
            is_known = bool(proto.input) and proto.input[0] in sequences
            if (proto.op_type in _MAKING and (is_known or proto.op_type not in _CHANGING)) or (
                proto.op_type == "Identity" and is_known
            ):
                sequences[proto.output[0]] = _MAKING.get(proto.op_type, _same)(node, given, write)
                nodes += write.nodes
            elif proto.op_type in _READING and is_known:
                result = _READING[proto.op_type](node, given, write)
                nodes += [*write.nodes, onnx.helper.make_node("Identity", [result], proto.output, f"{proto.name}/is")]
            else:
                if not sequences.keys().isdisjoint(reads(proto)):
                    return model, False
                nodes.append(proto)
            constants += write.constants
    except UnknownValueError:
        return model, False
    if not sequences.keys().isdisjoint(value.name for value in model.graph.output):
        return model, False
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(constants)
    return result, True


def _same(_node: OnnxNode, given: Elements, _write: NodeWriter) -> Elements:
    return given


def _place(node: OnnxNode, at: int, length: int, last: int) -> int:
    """Return the position in input ``at``, or ``last`` if the input is missing. Negative positions count from the
    end."""
    place = int(node.constant_or(at, last).reshape(()))
    place = place + length if place < 0 else place
    if not 0 <= place <= last:
        raise UnknownValueError
    return place


def _with_another(node: OnnxNode, given: Elements, _write: NodeWriter) -> Elements:
    place = _place(node, 2, len(given), len(given))
    return [*given[:place], node.input(1), *given[place:]]


def _with_one_less(node: OnnxNode, given: Elements, _write: NodeWriter) -> Elements:
    place = _place(node, 1, len(given), len(given) - 1)
    return [*given[:place], *given[place + 1 :]]


def _parts(node: OnnxNode, _given: Elements, write: NodeWriter) -> Elements:
    """Return slices of a tensor: of given sizes, of one size, or of single elements."""
    shape = node.shape(0)
    axis = node.attributes["axis"] % len(shape)
    extent, sizes = shape[axis], node.constant_or(1, 1)
    if not sizes.ndim:
        begins = range(0, extent, int(sizes))
        ends = [min(begin + int(sizes), extent) for begin in begins]
        bounds = list(zip(begins, ends, strict=True))
    else:
        stops = np.cumsum(sizes).tolist()
        bounds = list(zip([0, *stops[:-1]], stops, strict=True))
    parts = [write.take(node.input(0), begin, end, axis) for begin, end in bounds]
    if node.has(1) or node.attributes["keepdims"]:
        return parts
    return [write.reshape(part, [*shape[:axis], *shape[axis + 1 :]]) for part in parts]


def _element(node: OnnxNode, given: Elements, _write: NodeWriter) -> str:
    return given[_place(node, 1, len(given), len(given) - 1)]


def _joined(node: OnnxNode, given: Elements, write: NodeWriter) -> str:
    axis = node.attributes["axis"]
    if not given:
        raise UnknownValueError
    if node.attributes["new_axis"]:
        given = [write.unsqueeze(each, axis) for each in given]
    return write("Concat", *given, axis=axis)


_MAKING: dict[str, Made] = {
    "SequenceConstruct": lambda node, _given, _write: list(node.proto.input),
    "SequenceEmpty": lambda _node, _given, _write: [],
    "SequenceErase": _with_one_less,
    "SequenceInsert": _with_another,
    "SplitToSequence": _parts,
}
_CHANGING = frozenset({"SequenceErase", "SequenceInsert"})
"""Operators that make a sequence from another sequence."""
_READING: dict[str, Callable[[OnnxNode, Elements, NodeWriter], str]] = {
    "ConcatFromSequence": _joined,
    "SequenceAt": _element,
    "SequenceLength": lambda _node, given, write: write.constant(np.asarray(len(given), np.int64)),
}
SEQUENCE_OPERATORS = frozenset({*_MAKING, *_READING})
"""Operators that make or read sequences."""
