"""ONNX's If, Loop and Scan without branches and loops, if their control flow is known before the network runs.

- An If with a constant condition becomes the branch that is taken. Otherwise both branches are computed and a result is
  selected, as branches have no side effects.
- A Loop with a known number of iterations is unrolled. So is a Scan, whose number of iterations follows from a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from devices.networks.onnx.folding import constants_of, reads, values_of
from devices.networks.onnx.nodes import Array, NodeWriter, OnnxNode, UnknownValueError, as_array

MOST_TURNS = 2048
_MOST_NODES = 50_000
"""Most nodes of all iterations together: more would be too many operators."""


def choose_branch(node: OnnxNode, write: NodeWriter) -> list[str]:
    """Return the outputs of an If."""
    branches = node.attributes["then_branch"], node.attributes["else_branch"]
    condition = node.graph.constants.get(node.input(0))
    if condition is not None:
        return _inlined(branches[0 if bool(as_array(condition).reshape(())) else 1], [], write)
    if not all(name in node.graph.shapes for name in node.proto.output):
        raise UnknownValueError  # the branches' results differ in shape
    one, other = (_inlined(branch, [], write) for branch in branches)
    return [write("Where", node.input(0), *pair) for pair in zip(one, other, strict=True)]


def unroll_loop(node: OnnxNode, write: NodeWriter) -> list[str]:
    """Return the outputs of a Loop."""
    body: onnx.GraphProto = node.attributes["body"]
    turns = int(node.constant(0).reshape(())) if node.has(0) else MOST_TURNS + 1
    going = bool(node.constant(1).reshape(())) if node.has(1) else True
    carried = [node.input(at) for at in range(2, len(node.proto.input))]
    collected: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    course, turn = _Course(body, node), 0
    while going and turn < turns:
        if turn >= MOST_TURNS or len(write.nodes) > _MOST_NODES:
            raise UnknownValueError
        number, truth = np.asarray(turn, np.int64), np.asarray(True)
        going = course.goes_on_after(number)
        results = _inlined(body, [write.constant(number), write.constant(truth), *carried], write)[1:]
        carried, scanned = results[: len(carried)], results[len(carried) :]
        for values, value in zip(collected, scanned, strict=True):
            values.append(write.unsqueeze(value, 0))
        turn += 1
    if collected and not turn:
        raise UnknownValueError
    return [*carried, *(write("Concat", *values, axis=0) for values in collected)]


def unroll_scan(node: OnnxNode, write: NodeWriter) -> list[str]:
    """Return the outputs of a Scan."""
    body: onnx.GraphProto = node.attributes["body"]
    scanned = int(node.attributes["num_scan_inputs"])
    if node.graph.opset < 9:
        raise UnknownValueError  # the operator had a batch dimension before opset 9
    states = [node.input(at) for at in range(len(node.proto.input) - scanned)]
    positions = range(len(states), len(node.proto.input))
    results_of = len(body.output) - len(states)

    def setting(name: str, count: int) -> list[int]:
        return list(node.attributes.get(name) or [0] * count)

    axes = [axis % len(node.shape(at)) for axis, at in zip(setting("scan_input_axes", scanned), positions, strict=True)]
    turns = node.shape(positions[0])[axes[0]]
    if not 0 < turns <= MOST_TURNS or turns * len(body.node) > _MOST_NODES:
        raise UnknownValueError
    backwards = setting("scan_input_directions", scanned)
    collected: list[list[str]] = [[] for _ in range(results_of)]
    out_axes = setting("scan_output_axes", results_of)
    for turn in range(turns):
        parts = []
        for at, axis, back in zip(positions, axes, backwards, strict=True):
            place = turns - 1 - turn if back else turn
            shape = [extent for dimension, extent in enumerate(node.shape(at)) if dimension != axis]
            parts.append(write.reshape(write.take(node.input(at), place, place + 1, axis), shape))
        results = _inlined(body, [*states, *parts], write)
        states = results[: len(states)]
        for values, value, axis in zip(collected, results[len(states) :], out_axes, strict=True):
            values.append(write.unsqueeze(value, axis))
    for values, back in zip(collected, setting("scan_output_directions", results_of), strict=True):
        if back:
            values.reverse()
    return [*states, *(write("Concat", *v, axis=axis) for v, axis in zip(collected, out_axes, strict=True))]


def _inlined(body: onnx.GraphProto, arguments: Sequence[str], write: NodeWriter) -> list[str]:
    """Write the nodes of ``body`` with ``arguments`` as its inputs. The values that it defines get unique names."""
    names = dict(zip((value.name for value in body.input), arguments, strict=True))
    prefix = write.fresh_prefix()
    for tensor in body.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name] = f"{prefix}/{tensor.name}"
        write.constants.append(copy)
    for node in body.node:
        names.update((name, f"{prefix}/{name}") for name in node.output if name)
    for node in body.node:
        write.nodes.append(_renamed(node, names))
        if write.nodes[-1].name:
            write.nodes[-1].name = f"{prefix}/{node.name}"
    return [names.get(value.name, value.name) for value in body.output]


def _renamed(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    """Return ``node`` with its inputs and outputs renamed by ``names``, also in its subgraphs."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    for field in (result.input, result.output):
        for at, name in enumerate(field):
            field[at] = names.get(name, name)
    for attribute in result.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            outer = {name: new for name, new in names.items() if name not in own}
            renamed = [_renamed(inner, outer) for inner in graph.node]
            del graph.node[:]
            graph.node.extend(renamed)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)
    return result


class _Course:
    """The conditions of a Loop for further iterations, as far as they are known before the network runs."""

    def __init__(self, body: onnx.GraphProto, node: OnnxNode) -> None:
        self._body, self._graph = body, node.graph
        carried = body.input[2:]
        self._results = {value.name: result.name for value, result in zip(carried, body.output[1:], strict=False)}
        given = zip(carried, node.proto.input[2:], strict=True)
        constants = node.graph.constants
        self._carried = {value.name: constants[name] for value, name in given if name in constants}
        self._nodes = self._deciding()

    def goes_on_after(self, turn: Array) -> bool:
        """Return true if the body asks for another iteration after ``turn``. Raises :class:`UnknownValueError` if that
        depends on data. Must be called for the iterations in order."""
        number, still = (value.name for value in self._body.input[:2])
        known: dict[str, Any] = {**self._graph.constants, **constants_of(self._body), **self._carried}
        known.update({number: turn, still: np.asarray(True)})
        for node in self._nodes:
            values = values_of(node, known, self._graph.shapes, self._graph.opset)
            known.update(zip(node.output, values or (), strict=values is not None))
        self._carried = {name: known[result] for name, result in self._results.items() if result in known}
        condition = known.get(self._body.output[0].name)
        if condition is None:
            raise UnknownValueError
        return bool(as_array(condition).reshape(()))

    def _deciding(self) -> list[onnx.NodeProto]:
        """Return the nodes that compute the condition, directly or through values carried from earlier iterations."""
        wanted = {self._body.output[0].name}
        while True:
            nodes: list[onnx.NodeProto] = []
            before = len(wanted)
            for node in reversed(self._body.node):
                if wanted & set(node.output):
                    nodes.insert(0, node)
                    wanted.update(name for name in reads(node) if name)
            wanted.update(result for name, result in self._results.items() if name in wanted)
            if len(wanted) == before:
                return nodes
