"""ONNX's Resize and Upsample in the forms that TVM misreads, written axis by axis.

TVM computes the factors from the extents, and only resizes the axes after batch and channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from devices.networks.onnx.nodes import Array, NodeWriter, OnnxNode
from devices.networks.resampling import CUBIC_REACH, LINEAR_REACH, Filter, cubic, linear, smoothing

_WHOLE = 1e-3  # rounding error of an extent that is computed with a float32 factor


@dataclass(frozen=True)
class _ResizedAxis:
    """One axis to resize."""

    at: int
    extent: int
    size: int
    """Extent of the result."""
    factor: float
    """Distance of two elements of the data in the result: ``size / extent``, apart from rounding of the size."""

    @property
    def exact(self) -> bool:
        return abs(self.extent * self.factor - self.size) <= _WHOLE


def upsampled(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write Upsample, and Resize in its first version. It takes the nearest element before a position, or
    interpolates."""
    shape = node.shape(0)
    scales = node.attributes.get("scales") or node.constant(1).tolist()
    axes = [_ResizedAxis(at, shape[at], int(shape[at] * scale), scale) for at, scale in enumerate(scales)]
    mode = "nearest" if node.attributes["mode"] == "nearest" else "linear"
    settings = {"mode": mode, "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return [_along_axes(node, write, axes, settings)]


def resized(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a Resize of some axes as a Resize of all axes if TVM reads that correctly, otherwise axis by axis."""
    settings = node.attributes
    if settings.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return _of_all_axes(node, write) if settings.get("axes") else None
    if node.input(0) not in node.graph.shapes:
        return None
    given = 3 if node.has(3) and node.constant(3).size else 2
    axes = _axes(node, given)
    if settings.get("antialias"):
        return _smoothed(node, write, axes)
    if not _misread(node, axes, settings):
        if given == 2 and not settings.get("axes"):
            return None
        plain = not settings.get("axes") and settings.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        return None if plain else _of_all_axes(node, write)
    return [_along_axes(node, write, axes, settings)]


def _axes(node: OnnxNode, given: int) -> list[_ResizedAxis]:
    """Return the axes to resize. ``given``: the input with factors (2) or sizes (3)."""
    shape = node.shape(0)
    places = [axis % len(shape) for axis in node.attributes.get("axes") or range(len(shape))]
    extents, values = [shape[at] for at in places], node.constant(given).tolist()
    if given == 2:
        # In float32, as in ONNX Runtime and PyTorch: the rounding decides positions halfway between two elements.
        return [
            _ResizedAxis(at, extent, math.floor(extent * factor + _WHOLE), float(np.float32(factor)))
            for at, extent, factor in zip(places, extents, values, strict=True)
        ]
    factors = [size / extent for size, extent in zip(values, extents, strict=True)]
    policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        factors = [(min if policy == "not_larger" else max)(factors)] * len(factors)
        values = [math.floor(factor * extent + 0.5) for factor, extent in zip(factors, extents, strict=True)]
    return [_ResizedAxis(*axis) for axis in zip(places, extents, values, factors, strict=True)]


def _misread(node: OnnxNode, axes: Sequence[_ResizedAxis], settings: dict[str, Any]) -> bool:
    rank = len(node.shape(0))
    outer = any(axis.at < 2 and axis.size != axis.extent for axis in axes)
    symmetric = settings.get("coordinate_transformation_mode") == "half_pixel_symmetric"
    return rank not in (3, 4, 5) or outer or symmetric or not all(axis.exact for axis in axes)


def _of_all_axes(node: OnnxNode, write: NodeWriter) -> Sequence[str]:
    """Write a Resize of all axes with sizes, so that its factors follow from the extents."""
    shape = node.shape(0)
    axes = [axis % len(shape) for axis in node.attributes.get("axes") or range(len(shape))]
    settings = {
        name: value for name, value in node.attributes.items() if name not in ("axes", "keep_aspect_ratio_policy")
    }
    region: Array | None = None
    if node.has(1) and node.constant(1).size:
        begins, ends = np.split(node.constant(1), 2)
        region = np.concatenate([np.zeros(len(shape)), np.ones(len(shape))]).astype(node.constant(1).dtype)
        region[axes], region[[len(shape) + axis for axis in axes]] = begins, ends
    sizes = np.asarray(shape, np.int64)
    for axis in _axes(node, 3 if node.has(3) and node.constant(3).size else 2):
        sizes[axis.at] = axis.size
    return [write("Resize", node.input(0), region, None, sizes, **settings)]


def _along_axes(node: OnnxNode, write: NodeWriter, axes: Sequence[_ResizedAxis], settings: dict[str, Any]) -> str:
    """Write a resize, axis by axis, as weighted sums of gathered elements."""
    value = node.input(0)
    for axis in axes:
        if axis.size == axis.extent and axis.factor == 1:
            continue
        places, weights = _taps(axis, settings)
        column = [-1 if at == axis.at else 1 for at in range(len(node.shape(0)))]
        total = ""
        for place, weight in zip(places, weights, strict=True):
            taken = write("Gather", value, np.clip(place, 0, axis.extent - 1).astype(np.int64), axis=axis.at)
            if not (weight == 1).all():
                taken = write("Mul", taken, weight.reshape(column).astype(node.dtype(0)))
            total = write("Add", total, taken) if total else taken
        value = total
    return value if value != node.input(0) else write("Identity", value)


def _smoothed(node: OnnxNode, write: NodeWriter, axes: Sequence[_ResizedAxis]) -> Sequence[str] | None:
    """Write a Resize that smooths before it shrinks (antialias): a product with a matrix for each axis."""
    settings, shape = node.attributes, node.shape(0)
    mode, dtype = settings.get("mode"), node.dtype(0)
    if mode not in ("linear", "cubic") or dtype.kind != "f":
        return None
    weigh: Filter = linear
    reach = LINEAR_REACH
    if mode == "cubic":
        weigh, reach = cubic(settings.get("cubic_coeff_a", -0.75)), CUBIC_REACH
    value = node.input(0)
    for axis in axes:
        if axis.size == axis.extent and axis.factor == 1:
            continue
        places = _PLACES[settings.get("coordinate_transformation_mode", "half_pixel")](
            np.arange(axis.size, dtype=np.float32), axis, np.float32(axis.factor)
        )
        repeat = not settings.get("exclude_outside")
        matrix = smoothing(places.astype(np.float64) + 0.5, axis.extent, 1 / axis.factor, weigh, reach, repeat)
        if axis.at == len(shape) - 2:
            value = write("MatMul", matrix.astype(dtype), value)
            continue
        order = [*(other for other in range(len(shape)) if other != axis.at), axis.at]
        last = axis.at == len(shape) - 1
        moved = value if last else write("Transpose", value, perm=order)
        value = write("MatMul", moved, np.ascontiguousarray(matrix.T).astype(dtype))
        value = value if last else write("Transpose", value, perm=np.argsort(order).tolist())
    return [value if value != node.input(0) else write("Identity", value)]


def _taps(axis: _ResizedAxis, settings: dict[str, Any]) -> tuple[list[Array], list[Array]]:
    """Return the positions along an axis whose elements are summed for each element of the result, and their
    weights."""
    places = _PLACES[settings.get("coordinate_transformation_mode", "half_pixel")](
        np.arange(axis.size, dtype=np.float32), axis, np.float32(axis.factor)
    )
    mode = settings.get("mode", "nearest")
    if mode == "nearest":
        return [_NEAREST[settings.get("nearest_mode", "round_prefer_floor")](places)], [np.ones_like(places)]
    if mode == "linear":
        places = np.clip(places, 0, axis.extent - 1)
    low = np.floor(places)
    share = places - low
    if mode == "linear":
        return [low, low + 1], [1 - share, share]
    taps = [low + step for step in (-1, 0, 1, 2)]
    factor = settings.get("cubic_coeff_a", -0.75)
    weights = [_cubic(np.abs(places - tap), factor) for tap in taps]
    if settings.get("exclude_outside"):
        inside = [weight * ((tap >= 0) & (tap < axis.extent)) for weight, tap in zip(weights, taps, strict=True)]
        weights = [weight / sum(inside) for weight in inside]
    return taps, weights


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    result: Array = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    return result


def _symmetric(at: Array, axis: _ResizedAxis, factor: np.float32) -> Array:
    """Return positions at which both ends share the rounding to a whole size."""
    middle = np.float32(axis.extent / 2 * (1 - axis.size / (axis.extent * float(factor))))
    result: Array = middle + (at + np.float32(0.5)) / factor - np.float32(0.5)
    return result


def _half_pixel(at: Array, axis: _ResizedAxis, factor: np.float32) -> Array:  # noqa: ARG001 - as all of the table
    result: Array = (at + np.float32(0.5)) / factor - np.float32(0.5)
    return result


_PLACES: dict[str, Callable[[Array, _ResizedAxis, np.float32], Array]] = {
    "asymmetric": lambda at, _, factor: at / factor,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda at, axis, factor: _half_pixel(at, axis, factor) if len(at) > 1 else 0 * at,
    "align_corners": lambda at, axis, _: at * np.float32(max(axis.extent - 1, 0)) / np.float32(max(axis.size - 1, 1)),
}
"""Positions in the data of the elements of a result, by the mode of the coordinate transformation."""

_NEAREST: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    # Adding a half to a number just below another half would round it up.
    "round_prefer_floor": lambda places: np.floor(places) + (places - np.floor(places) > 0.5),
    "round_prefer_ceil": lambda places: np.ceil(places) - (np.ceil(places) - places > 0.5),
}
