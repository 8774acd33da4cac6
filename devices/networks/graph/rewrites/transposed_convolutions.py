"""Transposed convolutions as convolutions whose results are interleaved.

TVM computes a transposed convolution of stride ``s`` as a convolution of its input with ``s - 1`` zeros put between the
elements: in two dimensions, all but one of ``s * s`` products are with a zero. Instead, for one dimension and a kernel
of ``k`` elements, with ``i = output index + padding``,

    y[i - padding] = sum over t of x[i // s - t] * w[i % s + s * t],    t = 0 .. ceil(k / s) - 1

For each remainder ``r = i % s`` this is a convolution with every ``s``-th element of the kernel, reversed. All ``s``
convolutions together are one convolution with ``s`` times as many channels. Its results ``(q, r)`` become the elements
``q * s + r``, cut at both ends. So there is a plain convolution, and a copy into which the next operators are fused.

For small images, many results are cut off. With ``k = 4``, ``s = 2``, ``padding = 1``, usual in generators, an output
of ``2 n`` elements has ``n + 1`` quotients, of which each remainder needs ``n``. If all remainders need equally many
quotients, but not the same ones, each remainder gets its own window of the input. The windows are the groups of one
convolution, which computes no result that is cut off. The price is a copy of the input for each remainder.

Along an axis with one input element nothing overlaps: with ``s = k`` it is a matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx
from tvm.ir import Call, GenericConst

from devices.networks.graph.ir.main_function import replace_calls
from devices.networks.graph.machine_balance import WORTHWHILE

_PLAIN = {f"relax.nn.conv{n}d_transpose": f"conv{n}d" for n in (1, 2, 3)}


@dataclass(frozen=True)
class _SpatialAxis:
    """One spatial axis. The quotients ``q`` from ``first`` to ``last`` are computed."""

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
        """Zeros before and after the input. Negative if elements at that end of the input are not read."""
        reach = self.dilation * (self.taps - 1)
        return reach - self.first, self.last - (self.extent - 1)

    @property
    def cut(self) -> int:
        """Position of the output's first element among the interleaved results."""
        return self.padding - self.first * self.stride

    @property
    def has_windows(self) -> bool:
        """True if all remainders have equally many elements of the output. Element ``j * stride + at`` is then the
        ``j``-th of its remainder."""
        return self.output % self.stride == 0

    @property
    def is_cut(self) -> bool:
        """True if some interleaved results are not elements of the output."""
        return (self.last - self.first + 1) * self.stride > self.output

    def remainder(self, at: int) -> int:
        """Return the remainder of the output elements ``at``, ``at + stride``, ..."""
        return (at + self.padding) % self.stride

    def begin(self, at: int) -> int:
        """Return the position of the first input element that these output elements read. Negative in the padding."""
        return (at + self.padding) // self.stride - (self.taps - 1)

    @property
    def window(self) -> int:
        """Number of input elements that the output elements of one remainder read."""
        return self.output // self.stride + self.taps - 1


def replace_transposed_convolutions(module: Any) -> Any:
    """Return ``module`` with the transposed convolutions of ``main`` that have constant weights replaced."""
    return replace_calls(module, dict.fromkeys(_PLAIN, _as_convolution))


def _as_convolution(builder: relax.BlockBuilder, call: Call) -> Any:
    """Return a convolution and the interleaving of its results; or the call itself if it is not replaced."""
    axes = _axes(call) if isinstance(call.args[1], GenericConst) else None
    if axes is None:
        return call
    in_windows = all(axis.has_windows and axis.dilation == 1 for axis in axes) and _saves_enough(call, axes)
    return (_in_windows if in_windows else _interleaved)(builder, call, axes)


def _saves_enough(call: Call, axes: list[_SpatialAxis]) -> bool:
    """Return true if the results that windows do not compute save more than the windows' copies cost."""
    inputs, each = (int(extent) for extent in call.args[1].ty.shape.values[:2])  # of all groups; of one group
    places = prod(axis.stride for axis in axes)
    cut = prod(axis.last - axis.first + 1 for axis in axes) - prod(axis.output // axis.stride for axis in axes)
    operations = 2 * cut * places * inputs * each * prod(axis.taps for axis in axes)
    copied = places * inputs * prod(axis.window for axis in axes) * np.dtype(str(call.args[0].ty.dtype)).itemsize
    return cut > 0 and operations >= WORTHWHILE * 2 * copied  # written and read


def _in_windows(builder: relax.BlockBuilder, call: Call, axes: list[_SpatialAxis]) -> Any:
    """Return a convolution with a group for each remainder, and the interleaving of its results."""
    groups, strides, n = int(call.attrs.groups), [axis.stride for axis in axes], len(axes)
    places = [*np.ndindex(*strides)]
    weight = _weight(call.args[1].value.numpy(), groups, axes)
    kernels = weight.reshape(groups, *strides, -1, *weight.shape[1:])
    remainders: list[Any] = [[axis.remainder(at) for axis, at in zip(axes, place, strict=True)] for place in places]
    ordered = np.stack([kernels[(slice(None), *each)] for each in remainders]).reshape(-1, *weight.shape[1:])
    whole, before = _padded(builder, call.args[0], axes)
    windows = []
    for place in places:
        begin = [axis.begin(at) + zeros for axis, at, zeros in zip(axes, place, before, strict=True)]
        windows.append(_slice(builder, whole, begin, [axis.window for axis in axes]))
    define = getattr(relax.op.nn, _PLAIN[call.op.name])
    data = builder.emit(relax.op.concat(windows, 1))
    weights = relax.const(np.ascontiguousarray(ordered), str(call.args[1].ty.dtype))
    result = builder.emit(define(data, weights, groups=groups * len(places), out_dtype=call.attrs.out_dtype))
    batch = result.ty.shape.values[0]
    channels, *positions = (int(extent) for extent in result.ty.shape.values[1:])
    each = channels // len(places)
    # (batch, remainders, channel, quotients) to (batch, channel, quotient, remainder, ...)
    parts = builder.emit(relax.op.reshape(result, (batch, *strides, each, *positions)))
    order = [0, 1 + n, *(axis for at in range(n) for axis in (2 + n + at, 1 + at))]
    parts = builder.emit(relax.op.permute_dims(parts, order))
    return builder.emit(relax.op.reshape(parts, (batch, each, *(axis.output for axis in axes))))


def _padded(builder: relax.BlockBuilder, data: Any, axes: list[_SpatialAxis]) -> tuple[Any, list[int]]:
    """Return the input with the zeros that windows read, and the number of zeros before it on each axis."""
    before = [max(0, -min(axis.begin(at) for at in range(axis.stride))) for axis in axes]
    ends = [max(axis.begin(at) for at in range(axis.stride)) + axis.window for axis in axes]
    after = [max(0, end - axis.extent) for axis, end in zip(axes, ends, strict=True)]
    if not any(before) and not any(after):
        return data, before
    widths = [0, 0, 0, 0, *(width for pair in zip(before, after, strict=True) for width in pair)]
    return builder.emit(relax.op.nn.pad(data, widths)), before


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
            relax.const(weight, str(call.args[1].ty.dtype)),
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
    """Return the spatial axes of a transposed convolution. None if it is not replaced."""
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
        if axis.extent + min(axis.pads[0], 0) + min(axis.pads[1], 0) <= 0:  # it only reads zeros
            return None
        axes.append(axis)
    return axes


def _weight(kernel: npt.NDArray[Any], groups: int, axes: list[_SpatialAxis]) -> npt.NDArray[Any]:
    """Return weights (output channels, inputs of a group, taps...) made from (inputs, outputs of a group, kernel...).
    The output channels are ordered by group, remainders, channel."""
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
