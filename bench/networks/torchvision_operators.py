"""torchvision's native operators in plain torch, for environments that cannot load torchvision's native library.

The library is built for one build of torch. With another one (for example the CPU build of torch and a wheel for CUDA)
it cannot be loaded, and torchvision refuses some of its networks. The operators here follow the papers and the
documentation of torchvision.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

_NAMESPACE = "torchvision"


def load_or_define() -> None:
    """Load torchvision's native operators, or :func:`define` them if the library cannot be loaded. Do nothing without
    torchvision."""
    package = importlib.util.find_spec(_NAMESPACE)
    if package is None or package.origin is None:
        return
    try:
        torch.ops.load_library(str(Path(package.origin).parent / "_C.so"))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError):
        define()


@functools.cache
def define() -> None:
    """Register the operators of this module. After that, this process cannot load torchvision's native library."""
    for name in ("nms", "qnms"):
        _define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", _suppressed, _some_boxes)
    _define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor",
        _cut,
        lambda data, rois, _scale, rows, columns, *_: data.new_empty(rois.shape[0], data.shape[1], rows, columns),
    )
    _define(
        "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
        "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
        "SymInt offset_groups, bool use_mask) -> Tensor",
        _convolved,
        lambda data, weight, offset, *_: data.new_empty(len(data), len(weight), *offset.shape[2:]),
    )


def _define(signature: str, compute: Callable[..., Tensor], shape: Callable[..., Tensor]) -> None:
    name = f"{_NAMESPACE}::{signature.partition('(')[0]}"
    torch.library.define(name, signature[signature.index("(") :])
    torch.library.impl(name, "cpu", compute)
    torch.library.register_fake(name, shape)


def _suppressed(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the indices of the boxes whose intersection over union with each kept box of a higher score is at most
    ``threshold`` (non-maximum suppression)."""
    kept: list[int] = []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    for at in scores.argsort(descending=True).tolist():
        low, high = torch.maximum(boxes[kept, :2], boxes[at, :2]), torch.minimum(boxes[kept, 2:], boxes[at, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        if not bool((shared / (areas[kept] + areas[at] - shared) > threshold).any()):
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int64)


def _some_boxes(boxes: Tensor, _scores: Tensor, _threshold: float) -> Tensor:
    count = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty(count, dtype=torch.int64)


def _samples(plane: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return the planes (channels, height, width) at coordinates ``y`` and ``x`` by bilinear interpolation, with zeros
    outside of the image. ``y`` and ``x`` have the same shape; the result has it after the channels."""
    height, width = plane.shape[-2:]
    total = plane.new_zeros(plane.shape[0], *y.shape)
    for row, column in itertools.product((0, 1), (0, 1)):
        places, shares = [], []
        for coordinate, extent, far in ((y, height, row), (x, width, column)):
            place = coordinate.floor() + far
            share = 1 - (coordinate - place).abs()
            places.append(place.clamp(0, extent - 1).long())
            shares.append(share * ((place >= 0) & (place < extent)))
        total += plane[:, places[0], places[1]] * (shares[0] * shares[1])
    return total


def _cut(data: Tensor, rois: Tensor, scale: float, rows: int, columns: int, ratio: int, aligned: bool) -> Tensor:
    """Return the mean of the samples in every bin of every region (Mask R-CNN's RoIAlign)."""
    height, width = data.shape[-2:]
    result = data.new_empty(rois.shape[0], data.shape[1], rows, columns)
    for at, region in enumerate(rois):
        left, top, right, bottom = (region[1:] * scale - (0.5 if aligned else 0.0)).tolist()
        extents = (bottom - top, right - left) if aligned else (max(bottom - top, 1.0), max(right - left, 1.0))
        axes = []
        for begin, extent, bins, pixels in ((top, extents[0], rows, height), (left, extents[1], columns, width)):
            count = ratio if ratio > 0 else math.ceil(extent / bins)
            places = begin + (torch.arange(bins * max(count, 0), dtype=data.dtype) + 0.5) * (
                extent / bins / max(count, 1)
            )
            inside = (places >= -1) & (places <= pixels)
            axes.append((places.clamp(0, pixels - 1), inside, count))
        if min(down for _, _, down in axes) <= 0:  # an empty region has no samples
            result[at] = 0
            continue
        (y, rows_inside, down), (x, columns_inside, across) = axes
        taken = _samples(data[int(region[0])], *torch.meshgrid(y, x, indexing="ij"))
        taken = taken * (rows_inside[:, None] & columns_inside)
        result[at] = taken.unflatten(2, (columns, across)).unflatten(1, (rows, down)).mean((2, 4))
    return result


def _convolved(
    data: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    *settings: int,
) -> Tensor:
    """Return a deformable convolution: each tap reads the input at its own offset."""
    strides, pads, dilations, (groups, offset_groups, masked) = settings[:2], settings[2:4], settings[4:6], settings[6:]
    count, channels = data.shape[:2]
    height, width = weight.shape[2:]
    rows, columns = offset.shape[2:]
    taps, share = height * width, channels // offset_groups
    offset = offset.view(count, offset_groups, taps, 2, rows, columns)
    read = data.new_empty(count, channels, taps, rows, columns)
    for image, group, tap in itertools.product(range(count), range(offset_groups), range(taps)):
        y, x = (
            (torch.arange(extent) * strides[axis] - pads[axis] + place * dilations[axis]).view(shape)
            + offset[image, group, tap, axis]
            for axis, extent, place, shape in ((0, rows, tap // width, (-1, 1)), (1, columns, tap % width, (1, -1)))
        )
        own = slice(group * share, (group + 1) * share)
        read[image, own, tap] = _samples(data[image, own], y, x)
        if masked:
            read[image, own, tap] *= mask.view(count, offset_groups, taps, rows, columns)[image, group, tap]
    columns_of = read.view(count, groups, -1, rows * columns)
    product = weight.view(groups, len(weight) // groups, -1) @ columns_of
    return product.view(count, len(weight), rows, columns) + bias[:, None, None]
