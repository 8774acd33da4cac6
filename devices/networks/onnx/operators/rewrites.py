"""ONNX operators that TVM lacks, or only reads in some of their forms, written with other operators.

A rewrite takes a node and a writer and returns the names of the node's outputs, or None if the node stays unchanged. It
raises :class:`UnknownValueError` if it needs a value that is not known before the network runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto

from devices.networks.onnx.nodes import Array, NodeWriter, OnnxNode
from devices.networks.onnx.operators.control_flow import choose_branch, unroll_loop, unroll_scan
from devices.networks.onnx.operators.fourier import fourier, short_time_fourier
from devices.networks.onnx.operators.images import (
    aligned_regions,
    convolution_at_offsets,
    folded_blocks,
    pooled,
    pooled_with_places,
    suppressed,
    to_depth,
    transposed_to_shape,
    unpooled,
)
from devices.networks.onnx.operators.recurrent import recurrent
from devices.networks.onnx.operators.resizing import resized

Rewrite = Callable[[OnnxNode, NodeWriter], Sequence[str] | None]

_SORTED = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64})
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


def _bit_shift(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a shift whose distance may be negative, or not less than the number of bits. The result is then 0, or -1
    for a negative number that is shifted to the right."""
    dtype = node.dtype(0)
    bits = np.asarray(dtype.itemsize * 8, dtype)
    zero = np.zeros((), dtype)
    if node.input(1) in node.graph.constants and bool(((node.constant(1) >= 0) & (node.constant(1) < bits)).all()):
        return None
    inside = write("Less", node.input(1), bits)
    if dtype.kind == "i":
        inside = write("And", inside, write("Not", write("Less", node.input(1), zero)))
    kept = write("Where", inside, node.input(1), zero)
    shifted = write.final("BitShift", node.input(0), kept, direction=node.attributes["direction"])
    outside: str | Array = zero
    if dtype.kind == "i" and node.attributes["direction"] == "RIGHT":
        outside = write("Where", write("Less", node.input(0), zero), np.full((), -1, dtype), zero)
    return [write("Where", inside, shifted, outside)]


def _cast_like(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    return [write.cast(node.input(0), node.type(1))]


def _dropout(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write the identity outside of training, and for a ratio of 0. The mask is all true."""
    training = bool(node.constant_or(2, False))
    ratio = float(node.constant_or(1, 0.5))
    if (training and ratio) or (node.wants(1) and node.graph.opset < 12):
        return None
    outputs = [write("Identity", node.input(0))]
    if node.wants(1):
        outputs.append(write.constant(np.ones(node.shape(0), bool)))
    return outputs


def _expand(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Keep the value's extents where the shape has ones, or lacks dimensions."""
    wanted = tuple(int(extent) for extent in node.constant(1))
    shape = np.broadcast_shapes(node.shape(0), wanted)
    return None if shape == wanted else [write("Expand", node.input(0), np.asarray(shape, np.int64))]


def _eye_like(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    rows, columns = node.shape(0)
    element_type = node.attributes.get("dtype") or node.type(0)
    eye = write.constant(np.eye(rows, columns, k=node.attributes["k"], dtype=np.float32))
    return [write.cast(eye, element_type)]


def _is_inf(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    signs = [sign for sign, name in ((1, "positive"), (-1, "negative")) if node.attributes[f"detect_{name}"]]
    if len(signs) == 2:
        return None
    if not signs:
        return [write.constant(np.zeros(node.shape(0), bool))]
    return [write("Equal", node.input(0), np.asarray(signs[0] * np.inf, node.dtype(0)))]


def _lp_normalization(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    norm = write.reduce(f"ReduceL{node.attributes['p']}", node.input(0), node.attributes["axis"])
    zero = np.zeros((), node.dtype(0))
    share = write("Div", node.input(0), norm)
    return [write("Where", write("Equal", norm, zero), zero, share)]


def _mod(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a floating-point remainder with the divisor's sign."""
    if node.attributes["fmod"] or node.type(0) not in _FLOATS:
        return None
    zero = np.zeros((), node.dtype(0))
    rest = write("Mod", node.input(0), node.input(1), fmod=1)
    signs = write("Xor", write("Less", rest, zero), write("Less", node.input(1), zero))
    moved = write("And", signs, write("Not", write("Equal", rest, zero)))
    return [write("Where", moved, write("Add", rest, node.input(1)), rest)]


def _one_hot(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    depth = int(node.constant(1).reshape(()))
    rank = len(node.shape(0))
    axis = node.attributes["axis"] % (rank + 1)
    places = write.unsqueeze(write.cast(node.input(0), TensorProto.INT64), axis)
    wrapped = write("Add", places, np.asarray(depth, np.int64))
    places = write("Where", write("Less", places, np.zeros((), np.int64)), wrapped, places)
    counted = np.arange(depth).reshape([-1 if at == axis else 1 for at in range(rank + 1)])
    off, on = (write.reshape(write.take(node.input(2), at, at + 1, 0), []) for at in range(2))
    return [write("Where", write("Equal", places, counted), on, off)]


def _pow(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    base, exponent = node.type(0), node.type(1)
    if base not in _FLOATS and exponent not in _FLOATS:  # TVM only has powers of floats
        power = write("Pow", *(write.cast(node.input(at), TensorProto.DOUBLE) for at in range(2)))
        return [write.cast(power, base)]
    if base == exponent:
        return None
    if base in _FLOATS or exponent not in _FLOATS:
        return [write("Pow", node.input(0), write.cast(node.input(1), base))]
    power = write("Pow", write.cast(node.input(0), exponent), node.input(1))
    return [write.cast(power, base)]


def _reduce_max(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a maximum that is minus infinity if all values are, as in a row that a mask excludes. TVM's maximum begins
    at the lowest finite number. The rewrite is only done if a constant of the graph has minus infinity."""
    if node.type(0) == TensorProto.BOOL:
        return _extreme_of_booleans(node, write)
    if node.type(0) not in _FLOATS or not node.graph.infinite:
        return None
    data, *axes = (name for name in node.proto.input if name)
    infinity, zero = np.asarray(-np.inf, node.dtype(0)), np.zeros((), node.dtype(0))
    any_finite = write.cast(write("Greater", data, infinity), node.type(0))
    largest, finite = (write.final("ReduceMax", x, *axes, **node.attributes) for x in (data, any_finite))
    return [write("Where", write("Equal", finite, zero), infinity, largest)]


def _extreme_of_booleans(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    if node.type(0) != TensorProto.BOOL:
        return None
    data, *axes = (name for name in node.proto.input if name)
    numbers = write.cast(data, TensorProto.UINT8)
    return [write.cast(write(node.proto.op_type, numbers, *axes, **node.attributes), TensorProto.BOOL)]


def _of_single_elements(operator: str) -> Rewrite:
    """Return the rewrite of a reduction over no axis: it applies ``operator`` to each element. TVM returns the elements
    unchanged."""

    def rewritten(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
        if not node.attributes.get("noop_with_empty_axes") or node.constant_or(1, []).size:
            return None
        return [write(operator, *[node.input(0)] * (2 if operator == "Mul" else 1))]

    return rewritten


def _reverse_sequence(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write the reversal of every sequence up to its own length as a gather."""
    shape = node.shape(0)
    time, batch = node.attributes["time_axis"], node.attributes["batch_axis"]
    order = [time, batch, *range(2, len(shape))]
    steps, count = shape[time], shape[batch]
    lengths = write.reshape(write.cast(node.input(1), TensorProto.INT64), [1, count])
    here = np.arange(steps, dtype=np.int64).reshape(-1, 1)
    back = write("Sub", write("Sub", lengths, np.ones((), np.int64)), here)
    source = write("Where", write("Less", here, lengths), back, here)
    flat = write("Add", write("Mul", source, np.asarray(count, np.int64)), np.arange(count, dtype=np.int64))
    rows = write.reshape(write("Transpose", node.input(0), perm=order), [steps * count, -1])
    taken = write("Gather", rows, write.reshape(flat, [-1]), axis=0)
    return [write("Transpose", write.reshape(taken, [shape[at] for at in order]), perm=np.argsort(order).tolist())]


def _sign(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write the sign of a float, which is NaN for NaN."""
    if node.type(0) not in _FLOATS:
        return None
    return [write("Where", write("IsNaN", node.input(0)), node.input(0), write.final("Sign", node.input(0)))]


def _thresholded(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a selection: TVM multiplies by zero, which gives NaN for infinity."""
    bound, zero = np.asarray(node.attributes["alpha"], node.dtype(0)), np.zeros((), node.dtype(0))
    return [write("Where", write("Greater", node.input(0), bound), node.input(0), zero)]


def _tensor_scatter(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write the update of a cache of keys or values: each sequence's new rows begin at an index of its own."""
    shape, new = node.shape(0), node.shape(1)
    axis = node.attributes["axis"] % len(shape)
    column = [-1 if at == axis else 1 for at in range(len(shape))]
    begin = node.input(2) if node.has(2) else write.constant(np.zeros(shape[0], np.int64))
    begin = write.reshape(write.cast(begin, TensorProto.INT64), [shape[0]] + [1] * (len(shape) - 1))
    places = write("Add", begin, np.arange(new[axis]).reshape(column))
    if node.attributes["mode"] == "circular":
        places = write("Mod", places, np.asarray(shape[axis], np.int64))
    places = write("Expand", places, np.asarray(new, np.int64))
    return [write.final("ScatterElements", node.input(0), places, node.input(1), axis=axis)]


def _top_k(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Convert to a type that TVM sorts, and that holds all numbers of the original type."""
    if node.type(0) in _SORTED or node.type(0) == TensorProto.UINT64:
        return None
    wide = TensorProto.FLOAT if node.type(0) in _FLOATS else TensorProto.INT64
    values, places = write.several(2, "TopK", write.cast(node.input(0), wide), node.input(1), **node.attributes)
    return [write.cast(values, node.type(0)), places]


REWRITES: dict[str, Rewrite] = {
    "AveragePool": pooled,
    "BitShift": _bit_shift,
    "CastLike": _cast_like,
    "Col2Im": folded_blocks,
    "ConvTranspose": transposed_to_shape,
    "DFT": fourier,
    "DeformConv": convolution_at_offsets,
    "Dropout": _dropout,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "GRU": recurrent,
    "If": choose_branch,
    "IsInf": _is_inf,
    "LSTM": recurrent,
    "Loop": unroll_loop,
    "LpPool": pooled,
    "LpNormalization": _lp_normalization,
    "MaxPool": pooled_with_places,
    "MaxUnpool": unpooled,
    "Mod": _mod,
    "NonMaxSuppression": suppressed,
    "OneHot": _one_hot,
    "Pow": _pow,
    "RNN": recurrent,
    "ReduceL1": _of_single_elements("Abs"),
    "ReduceL2": _of_single_elements("Abs"),
    "ReduceLogSum": _of_single_elements("Log"),
    "ReduceMax": _reduce_max,
    "ReduceMin": _extreme_of_booleans,
    "ReduceSumSquare": _of_single_elements("Mul"),
    "Resize": resized,
    "ReverseSequence": _reverse_sequence,
    "RoiAlign": aligned_regions,
    "STFT": short_time_fourier,
    "Scan": unroll_scan,
    "Sign": _sign,
    "SpaceToDepth": to_depth,
    "TensorScatter": _tensor_scatter,
    "ThresholdedRelu": _thresholded,
    "TopK": _top_k,
}
