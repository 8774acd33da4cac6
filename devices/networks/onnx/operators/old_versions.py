"""Operators whose meaning changed between versions, but that onnx's conversion to a newer version does not convert, or
converts wrongly.

Each is written so that it means the same in the old version and in the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from devices.networks.onnx.nodes import NodeWriter, OnnxNode
from devices.networks.onnx.operators.resizing import upsampled
from devices.networks.onnx.operators.rewrites import Rewrite


def _hardmax(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a Hardmax over all axes from ``axis`` on, as it was before version 13."""
    if node.graph.opset >= 13:
        return None
    rows = write("Flatten", node.input(0), axis=node.attributes["axis"] % len(node.shape(0)))
    return [write.reshape(write("Hardmax", rows, axis=1), node.shape(0))]


def _broadcast(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write the second operand with trailing axes of 1. Before version 7, its axes were those of the first operand from
    ``axis`` on."""
    attributes = dict(node.attributes)
    if node.graph.opset >= 7 or not attributes.pop("broadcast", 0):
        return None
    rank, begin = len(node.shape(0)), attributes.pop("axis", None)
    attributes.pop("consumed_inputs", None)
    end = rank if begin is None else begin % rank + len(node.shape(1))
    other = node.input(1)
    if end < rank:
        own = len(node.shape(1))
        other = write("Unsqueeze", other, axes=list(range(own, own + rank - end)))
    return [write(node.proto.op_type, node.input(0), other, **attributes)]


def _leaky(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a PRelu with a slope for each channel, as it was before version 7."""
    if node.graph.opset >= 7 or len(node.shape(1)) != 1:
        return None
    slopes = node.constant(1).reshape([-1, *[1] * (len(node.shape(0)) - 2)])
    return [write("PRelu", node.input(0), slopes)]


def _first_resize(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write Resize in its first version, whose transformation of coordinates the conversion loses."""
    return upsampled(node, write) if node.graph.opset < 11 else None


REWRITES: dict[str, Rewrite] = {
    **dict.fromkeys(("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"), _broadcast),
    "Hardmax": _hardmax,
    "PRelu": _leaky,
    "Resize": _first_resize,
    "Upsample": upsampled,
}
"""The rewrite of each operator."""
