"""ONNX's operators on images, or on signals of any number of dimensions after batch and channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from devices.networks.onnx.nodes import NodeWriter, OnnxNode, UnknownValueError


def to_depth(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write SpaceToDepth. The old channels are the outer or the inner part of the new ones, by its mode."""
    batch, channels, height, width = node.shape(0)
    block = node.attributes["blocksize"]
    order = [0, 1, 3, 5, 2, 4] if node.attributes.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    apart = write.reshape(node.input(0), [batch, channels, height // block, block, width // block, block])
    moved = write("Transpose", apart, perm=order)
    return [write.reshape(moved, [batch, channels * block * block, height // block, width // block])]


def transposed_to_shape(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write ConvTranspose with a given output shape, from which its padding follows."""
    wanted = node.attributes.get("output_shape")
    if not wanted:
        return None
    kernel, extents = node.shape(1)[2:], node.shape(0)[2:]
    ones = [1] * len(kernel)
    strides = node.attributes.get("strides") or ones
    dilations = node.attributes.get("dilations") or ones
    more = list(node.attributes.get("output_padding") or [0] * len(kernel))
    begins, ends = [], []
    for at, size in enumerate(wanted[-len(kernel) :]):
        total = strides[at] * (extents[at] - 1) + more[at] + (kernel[at] - 1) * dilations[at] + 1 - size
        if total < 0:
            more[at], total = more[at] - total, 0
        half = total // 2
        upper = node.attributes["auto_pad"] == "SAME_UPPER"
        begins.append(half if upper else total - half)
        ends.append(total - half if upper else half)
    inputs = [name or None for name in node.proto.input]
    settings = {"strides": strides, "dilations": dilations, "group": node.attributes["group"]}
    return [write("ConvTranspose", *inputs, pads=[*begins, *ends], output_padding=more, **settings)]


def folded_blocks(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write Col2Im as a transposed convolution: every row of a block has a kernel with a single 1, at the row's
    place."""
    image, kernel = node.constant(1).tolist(), node.constant(2).tolist()
    batch, rows, _ = node.shape(0)
    dimensions, size = len(image), math.prod(kernel)
    strides = node.attributes.get("strides") or [1] * dimensions
    dilations = node.attributes.get("dilations") or [1] * dimensions
    pads = node.attributes.get("pads") or [0] * 2 * dimensions
    reach = [dilation * (extent - 1) + 1 for dilation, extent in zip(dilations, kernel, strict=True)]
    padded = [image[at] + pads[at] + pads[dimensions + at] for at in range(dimensions)]
    blocks = [(padded[at] - reach[at]) // strides[at] + 1 for at in range(dimensions)]
    rest = [padded[at] - (blocks[at] - 1) * strides[at] - reach[at] for at in range(dimensions)]
    weights = np.tile(np.eye(size).reshape([size, 1, *kernel]), [rows // size, 1, *[1] * dimensions])
    data = write.reshape(node.input(0), [batch, rows, *blocks])
    settings = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": rest}
    return [write("ConvTranspose", data, weights.astype(node.dtype(0)), group=rows // size, **settings)]


def pooled_with_places(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a MaxPool that also returns the places of the maxima, as indices into the whole flattened input. It
    compares the elements of a window one after the other; the first of equal maxima counts."""
    if not node.wants(1):
        return pooled(node, write)
    shape = node.shape(0)
    outer, extents = shape[:2], shape[2:]
    ones = [1] * len(extents)
    kernel: list[int] = node.attributes["kernel_shape"]
    strides: list[int] = node.attributes.get("strides") or ones
    dilations: list[int] = node.attributes.get("dilations") or ones
    reach = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    begins, counts = _windows(node, extents, reach, strides)
    lowest = np.asarray(-np.inf if node.dtype(0).kind == "f" else np.iinfo(node.dtype(0)).min, node.dtype(0))
    needed = [(counts[at] - 1) * strides[at] + reach[at] for at in range(len(extents))]
    after = [max(0, needed[at] - begins[at] - extents[at]) for at in range(len(extents))]
    data = write.pad(node.input(0), [0, 0, *begins, 0, 0, *after], lowest)
    inner = np.arange(math.prod(extents)).reshape(extents, order="F" if node.attributes["storage_order"] else "C")
    inner = np.pad(inner, list(zip(begins, after, strict=True)))
    planes = np.arange(math.prod(outer)).reshape(*outer, *ones) * math.prod(extents)
    best = place = ""
    for offset in itertools.product(*map(range, kernel)):
        starts = [at * dilation for at, dilation in zip(offset, dilations, strict=True)]
        stops = [start + (n - 1) * step + 1 for start, n, step in zip(starts, counts, strides, strict=True)]
        axes = np.arange(2, len(shape))
        bounds = (np.asarray(bound, np.int64) for bound in (starts, stops, axes, strides))
        value = write("Slice", data, *bounds)
        where = tuple(slice(*bound) for bound in zip(starts, stops, strides, strict=True))
        here = write.constant((planes + inner[where]).astype(np.int64))
        if not best:
            best, place = value, here
            continue
        larger = write("Greater", value, best)
        best, place = write("Where", larger, value, best), write("Where", larger, here, place)
    return [best, place]


def pooled(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a pooling with automatic padding with explicit padding. Write an LpPool that rounds up its number of
    windows with zeros after the data, as TVM divides such windows by the number of their elements."""
    rounds_up = node.proto.op_type == "LpPool" and node.attributes.get("ceil_mode")
    if not node.attributes["auto_pad"].startswith("SAME") and not rounds_up:
        return None
    extents = node.shape(0)[2:]
    kernel = node.attributes["kernel_shape"]
    dilations = node.attributes.get("dilations") or [1] * len(extents)
    strides = node.attributes.get("strides") or [1] * len(extents)
    reach = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    begins, counts = _windows(node, extents, reach, strides)
    ends = [max(0, (counts[at] - 1) * strides[at] + reach[at] - extents[at] - begins[at]) for at in range(len(extents))]
    settings = {**node.attributes, "auto_pad": "NOTSET", "pads": [*begins, *ends]}
    if rounds_up:
        settings["ceil_mode"] = 0
    return [write(node.proto.op_type, node.input(0), **settings)]


def unpooled(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write MaxUnpool: zeros, with the maxima at their places. TVM's translation confuses the paddings of axes."""
    if node.has(2):
        return None
    shape, kernel = node.shape(0), node.attributes["kernel_shape"]
    rank = len(kernel)
    strides = node.attributes.get("strides") or [1] * rank
    pads = node.attributes.get("pads") or [0] * 2 * rank
    extents = [(shape[2 + at] - 1) * strides[at] + kernel[at] - pads[at] - pads[rank + at] for at in range(rank)]
    whole = [*shape[:2], *extents]
    flat = [write.reshape(node.input(at), [-1]) for at in range(2)]
    zeros = np.zeros(math.prod(whole), node.dtype(0))
    return [write.reshape(write("ScatterElements", zeros, flat[1], flat[0], axis=0), whole)]


def aligned_regions(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write RoiAlign of scaled boxes. TVM moves boxes by half a pixel before it scales them, instead of after."""
    scale = node.attributes["spatial_scale"]
    mode = node.attributes.get("coordinate_transformation_mode", "output_half_pixel")
    if mode != "half_pixel" or scale == 1:
        return None
    moved = write("Add", node.input(1), np.asarray(0.5 - 0.5 / scale, node.dtype(1)))
    return [write.final("RoiAlign", node.input(0), moved, node.input(2), **node.attributes)]


def suppressed(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a NonMaxSuppression that selects the same number of boxes for any data: those with the best scores."""
    boxes, classes, count = node.shape(1)
    wanted = min(int(node.constant_or(2, 0).reshape(())), count)
    nothing_overlaps = wanted == 1 or float(node.constant_or(3, 0).reshape(())) >= 1
    if node.has(4) or not wanted or not nothing_overlaps:
        return None
    scores, number = node.input(1), np.asarray([wanted], np.int64)
    _, best = write.several(2, "TopK", scores, number, axis=2, largest=1, sorted=1)
    image, kind, _ = np.indices((boxes, classes, wanted)).astype(np.int64).reshape(3, -1, 1)
    return [write("Concat", image, kind, write.reshape(best, [-1, 1]), axis=1)]


def _windows(
    node: OnnxNode, extents: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the padding before each dimension, and its number of windows."""
    pads = node.attributes.get("pads") or [0] * 2 * len(extents)
    auto = node.attributes["auto_pad"]
    begins, counts = [], []
    for at, extent in enumerate(extents):
        before, after = pads[at], pads[len(extents) + at]
        if auto.startswith("SAME"):
            total = max(0, (-(-extent // strides[at]) - 1) * strides[at] + reach[at] - extent)
            before, after = (
                (total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2)
            )
        room = extent + before + after - reach[at]
        count = (-(-room // strides[at]) if node.attributes.get("ceil_mode") else room // strides[at]) + 1
        if (count - 1) * strides[at] >= extent + before:
            count -= 1  # it would begin in the padding at the end
        begins.append(before)
        counts.append(count)
    return begins, counts


def convolution_at_offsets(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write DeformConv of images: bilinear samples at the offsets of each kernel element, then a product with the
    weights."""
    batch, channels, height, width = node.shape(0)
    outputs, _, *kernel = node.shape(1)
    rows, columns = node.shape(2)[2:]
    groups, offset_groups = node.attributes["group"], node.attributes["offset_group"]
    strides = node.attributes.get("strides") or [1, 1]
    dilations = node.attributes.get("dilations") or [1, 1]
    pads = node.attributes.get("pads") or [0] * 4
    dtype, taps, places = node.dtype(0), math.prod(kernel), rows * columns
    offsets = write.reshape(node.input(2), [batch, offset_groups, taps, 2, rows, columns])
    coordinates = []
    for at, count in enumerate((rows, columns)):
        tap = np.indices(kernel)[at].reshape(-1, 1, 1) * dilations[at] - pads[at]
        base = tap + (np.arange(count) * strides[at]).reshape([-1, 1] if at == 0 else [1, -1])
        own = write.reshape(write.take(offsets, at, at + 1, 3), [batch, offset_groups, taps, rows, columns])
        coordinates.append(write("Add", own, base.astype(dtype)))
    per_group = channels // offset_groups
    pixels = write.reshape(node.input(0), [batch, offset_groups, per_group, height * width])
    floors = [write("Floor", coordinate) for coordinate in coordinates]
    shares = [write("Sub", *pair) for pair in zip(coordinates, floors, strict=True)]
    one = np.ones((), dtype)
    sampled = ""
    for corner in itertools.product((0, 1), (0, 1)):
        weight, index = "", ""
        for at, extent in enumerate((height, width)):
            place = write("Add", floors[at], np.asarray(corner[at], dtype))
            share = shares[at] if corner[at] else write("Sub", one, shares[at])
            last = np.asarray(extent - 1, dtype)
            kept = write("Max", write("Min", place, last), np.zeros((), dtype))
            share = write("Where", write("Equal", place, kept), share, np.zeros((), dtype))  # zero outside of the image
            whole = write.cast(kept, TensorProto.INT64)
            weight = write("Mul", weight, share) if weight else share
            index = write("Add", write("Mul", index, np.asarray(width, np.int64)), whole) if index else whole
        flat = write.reshape(index, [batch, offset_groups, 1, taps * places])
        shape = np.asarray([batch, offset_groups, per_group, taps * places], np.int64)
        taken = write("GatherElements", pixels, write("Expand", flat, shape), axis=3)
        part = write("Mul", taken, write.reshape(weight, [batch, offset_groups, 1, taps * places]))
        sampled = write("Add", sampled, part) if sampled else part
    if node.has(4):
        sampled = write("Mul", sampled, write.reshape(node.input(4), [batch, offset_groups, 1, taps * places]))
    if channels % groups or outputs % groups:
        raise UnknownValueError
    blocks = write.reshape(sampled, [batch, groups, channels // groups * taps, places])
    weights = write.reshape(node.input(1), [1, groups, outputs // groups, channels // groups * taps])
    result = write.reshape(write("MatMul", weights, blocks), [batch, outputs, rows, columns])
    return [write("Add", result, write.reshape(node.input(3), [1, outputs, 1, 1])) if node.has(3) else result]
