"""Transposed convolutions as convolutions whose results are interleaved.

TVM computes a transposed convolution of stride ``s`` as a convolution of its input with ``s - 1`` zeros put between the
elements: of ``s * s`` products in two dimensions all but one are with a zero. Instead, for one dimension and a kernel
of ``k`` elements, with ``i = output index + padding``,

    y[i - padding] = sum over t of x[i // s - t] * w[i % s + s * t],    t = 0 .. ceil(k / s) - 1

which is, for each remainder ``r = i % s``, a convolution with every ``s``-th element of the kernel, reversed. All ``s``
of them are one convolution with ``s`` times as many channels, whose results ``(q, r)`` become the elements ``q * s +
r``, cut at both ends: a plain convolution, and a copy into which what follows is fused.

Along an axis with one element of input nothing overlaps: with ``s = k`` it is a matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx
from tvm.ir import Call, GenericConst

from devices.networks.graph.main_function import replace_calls

_PLAIN = {f"relax.nn.conv{n}d_transpose": f"conv{n}d" for n in (1, 2, 3)}


@dataclass(frozen=True)
class _SpatialAxis:
    """One spatial axis; the quotients ``q`` from ``first`` to ``last`` are computed."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    padding: int
    output: int

    @property
    def taps(self) -> int:
        return -(-self.kernel // self.stride)

    @property
    def first(self) -> int:
        return self.padding // self.stride

    @property
    def last(self) -> int:
        return (self.output - 1 + self.padding) // self.stride

    @property
    def pads(self) -> tuple[int, int]:
        """Zeros before and after the input; negative where its ends are not read."""
        reach = self.dilation * (self.taps - 1)
        return reach - self.first, self.last - (self.extent - 1)

    @property
    def cut(self) -> int:
        """Position of the first interleaved element of the output."""
        return self.padding - self.first * self.stride


def replace_transposed_convolutions(module: Any) -> Any:
    """Return ``module`` with the transposed convolutions of ``main`` that have constant weights replaced."""
    return replace_calls(module, dict.fromkeys(_PLAIN, _as_convolution))


def _as_convolution(builder: relax.BlockBuilder, call: Call) -> Any:
    """Return a convolution and the interleaving of its results; the call itself, where it is not replaced."""
    axes = _axes(call) if isinstance(call.args[1], GenericConst) else None
    return call if axes is None else _interleaved(builder, call, axes)


def _interleaved(builder: relax.BlockBuilder, call: Call, axes: list[_SpatialAxis]) -> Any:
    groups = int(call.attrs.groups)
    weight = _weight(call.args[1].value.numpy(), groups, axes)
    data = _cropped(builder, call.args[0], axes)
    define = getattr(relax.op.nn, _PLAIN[call.op.name])
    pads = [max(pad, 0) for side in (0, 1) for pad in (axis.pads[side] for axis in axes)]
    dilation = [axis.dilation for axis in axes]
    result = builder.emit(
        define(
            data,
            relax.const(weight),
            padding=pads,
            dilation=dilation,
            groups=groups,
            out_dtype=call.attrs.out_dtype,
        )
    )
    strides, n = [axis.stride for axis in axes], len(axes)
    if prod(strides) > 1:
        batch = result.ty.shape.values[0]
        channels, *positions = (int(extent) for extent in result.ty.shape.values[1:])
        each = channels // groups // prod(strides)
        # (batch, group, remainders, channel, quotients) to (batch, group, channel, quotient, remainder, ...)
        parts = builder.emit(relax.op.reshape(result, (batch, groups, *strides, each, *positions)))
        order = [0, 1, 2 + n, *(axis for at in range(n) for axis in (3 + n + at, 2 + at))]
        parts = builder.emit(relax.op.permute_dims(parts, order))
        whole = [position * stride for position, stride in zip(positions, strides, strict=True)]
        result = builder.emit(relax.op.reshape(parts, (batch, groups * each, *whole)))
    return _slice(builder, result, [axis.cut for axis in axes], [axis.output for axis in axes])


def _cropped(builder: relax.BlockBuilder, data: Any, axes: list[_SpatialAxis]) -> Any:
    begin = [max(-axis.pads[0], 0) for axis in axes]
    extents = [axis.extent - start - max(-axis.pads[1], 0) for axis, start in zip(axes, begin, strict=True)]
    return _slice(builder, data, begin, extents)


def _slice(builder: relax.BlockBuilder, data: Any, begin: list[int], extents: list[int]) -> Any:
    """Return ``extents`` elements from ``begin`` of each spatial axis."""
    if list(extents) == [int(extent) for extent in data.ty.shape.values[2:]]:
        return data
    end = [start + extent for start, extent in zip(begin, extents, strict=True)]
    spatial = list(range(2, 2 + len(begin)))
    return builder.emit(relax.op.strided_slice(data, spatial, begin, end, [1] * len(begin)))


def _axes(call: Call) -> list[_SpatialAxis] | None:
    """Return the spatial axes of a transposed convolution; None where it is not replaced."""
    attrs = call.attrs
    n = len(attrs.strides)
    layouts = (str(attrs.data_layout), str(attrs.out_layout), str(attrs.kernel_layout))
    if layouts not in [(f"NC{spatial}", f"NC{spatial}", f"IO{spatial}") for spatial in ("W", "HW", "DHW")]:
        return None
    if not isinstance(call.args[0].ty.shape, relax.ShapeExpr):
        return None
    shapes = [value.ty.shape.values[2:] for value in (*call.args, call)]
    if not all(isinstance(extent, tirx.IntImm) for shape in shapes for extent in shape):
        return None
    extents, kernels, outputs = ([int(extent) for extent in shape] for shape in shapes)
    axes = []
    for at in range(n):
        stride, dilation, padding = int(attrs.strides[at]), int(attrs.dilation[at]), int(attrs.padding[at])
        if dilation > 1 and stride > 1:
            return None
        if extents[at] == 1 and dilation == 1:
            stride = max(kernels[at], outputs[at] + padding)
        axis = _SpatialAxis(extents[at], kernels[at], stride, dilation, padding, outputs[at])
        if axis.extent + min(axis.pads[0], 0) + min(axis.pads[1], 0) <= 0:  # reads zeros alone
            return None
        axes.append(axis)
    return axes


def _weight(kernel: npt.NDArray[Any], groups: int, axes: list[_SpatialAxis]) -> npt.NDArray[Any]:
    """Return weights (output channels, inputs of a group, taps...) made of (inputs, outputs of a group, kernel...); the
    output channels are ordered by group, remainders, channel."""
    n = len(axes)
    ends = [(0, axis.taps * axis.stride - axis.kernel) for axis in axes]
    inputs, each = kernel.shape[0] // groups, kernel.shape[1]
    split = np.pad(kernel, [(0, 0), (0, 0), *ends]).reshape(
        groups, inputs, each, *(extent for axis in axes for extent in (axis.taps, axis.stride))
    )
    taps, remainders = [3 + 2 * at for at in range(n)], [4 + 2 * at for at in range(n)]
    ordered = np.flip(split, tuple(taps)).transpose(0, *remainders, 2, 1, *taps)
    channels = groups * prod(axis.stride for axis in axes) * each
    return np.ascontiguousarray(ordered.reshape(channels, inputs, *(axis.taps for axis in axes)))
