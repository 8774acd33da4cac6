"""The kernels of RoiAlign with a number of samples that depends on the size of each region (``sampling_ratio`` 0).

A bin of extent ``b`` is the mean of ``ceil(b)`` samples along each axis, each between two pixels. The mean over both
axes is a product of one along each:

    out[n, c, p, q] = sum over y, x of rows[n, p, y] * columns[n, q, x] * data[image of n, c, y, x]

At most six samples of an axis reach a pixel, as several samples are more than half a pixel apart. So no extent of the
weights depends on data, and the product only runs over the pixels of the bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from devices.networks.graph.ir.dynamic_extents import numbers
from devices.networks.graph.legalization.loops import in_parallel

_SAMPLES = 6
"""Most samples that a pixel takes part in, along one axis."""


def adaptive_regions(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the kernels of a call of ``relax.vision.roi_align``."""
    data, rois = call.args
    attrs, wanted = call.attrs, str(call.ty.dtype)
    last = str(attrs.layout) == "NHWC"
    if last:
        data = builder.emit(relax.op.permute_dims(data, [0, 3, 1, 2]))
    dtype = "float64" if wanted == "float64" else "float32"
    data, rois = (builder.emit(relax.op.astype(each, dtype)) for each in (data, rois))
    extents = numbers("roi_align", data.ty.shape)[2:]
    bins = [int(extent) for extent in attrs.pooled_size]
    scale, aligned = float(attrs.spatial_scale), bool(attrs.aligned)
    rows, columns = (
        builder.emit_te(_weights, rois, 1 - at, bins[at], extents[at], scale, aligned, primfunc_name_hint="bin_weights")
        for at in range(2)
    )
    result = builder.emit_te(_means, data, rois, rows, columns, scale, aligned, primfunc_name_hint="roi_align")
    result = builder.emit(relax.op.astype(result, wanted))
    return relax.op.permute_dims(result, [0, 2, 3, 1]) if last else result


class _Bins:
    """The bins of a region along one axis (0: x, 1: y), in pixels."""

    def __init__(self, rois: Any, region: Any, axis: int, count: int, scale: float, aligned: bool) -> None:
        def number(value: float) -> Any:
            return tirx.const(value, str(rois.dtype))

        self.start = rois[region, 1 + axis] * number(scale)
        extent = rois[region, 3 + axis] * number(scale) - self.start
        self.extent = (extent if aligned else te.max(extent, number(1))) / number(count)
        self.samples = te.ceil(self.extent)
        """Samples in each bin. 0 if the region has no extent."""

    def begin(self, at: Any) -> Any:
        return self.start + at * self.extent


def _weights(rois: te.Tensor, axis: int, count: int, extent: int, scale: float, aligned: bool) -> te.Tensor:
    """Return the weights (regions, bins, pixels) of the pixels of an axis in the means of the bins."""
    dtype = str(rois.dtype)

    def number(value: Any) -> Any:
        return tirx.Cast(dtype, value)

    ahead = te.reduce_axis((0, _SAMPLES), name="sample")

    def weight(region: Any, at: Any, pixel: Any) -> Any:
        bins = _Bins(rois, region, axis, count, scale, aligned)
        begin, half, one = bins.begin(number(at)), tirx.const(0.5, dtype), tirx.const(1, dtype)
        # The first sample that is at most one pixel before this pixel. If it would be before the bin, the bin's first
        # sample.
        first = te.floor((number(pixel) - one - begin) * bins.samples / bins.extent - half)
        sample = te.max(first, number(0)) + number(ahead)
        place = begin + (sample + half) * bins.extent / bins.samples
        inside = te.min(te.max(place, number(0)), number(extent - 1))
        share = te.max(one - te.abs(inside - number(pixel)), number(0)) / bins.samples
        counts = tirx.all(sample < bins.samples, place >= -one, place <= number(extent))
        return te.sum(tirx.if_then_else(counts, share, number(0)), axis=ahead)

    return te.compute((rois.shape[0], count, extent), weight, name="weights")


def _means(
    data: te.Tensor, rois: te.Tensor, rows: te.Tensor, columns: te.Tensor, scale: float, aligned: bool
) -> te.Tensor:
    """Return the sums over the pixels of each bin."""
    images, channels, *extents = numbers("roi_align", data.shape)
    regions, *bins = numbers("roi_align", (rows.shape[0], rows.shape[1], columns.shape[1]))
    shape = (regions, channels, *bins)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        values, boxes, of_rows, of_columns, result = map(T.buffer_proxy, (*ins, outs[0]))

        def pixels(region: Any, at: Any, axis: int) -> tuple[Any, Any]:
            """Return the first pixel of a bin and its number of pixels: at least one, whose weight may be zero."""
            along = _Bins(boxes, region, 1 - axis, bins[axis], scale, aligned)
            ends = [along.begin(tirx.Cast(str(boxes.dtype), at + more)) + shift for more, shift in ((0, -1), (1, 2))]
            first, last = (_within(end, extents[axis] - 1) for end in ends)
            return first, te.max(last - first, 0) + 1

        with IRBuilder() as builder:
            with in_parallel(regions * channels) as turn:
                region, channel = turn // channels, turn % channels
                image = _within(boxes[region, 0], images - 1)
                with T.serial(0, bins[0]) as p, T.serial(0, bins[1]) as q, T.seq_scope():
                    result[region, channel, p, q] = tirx.const(0, str(result.dtype))
                    first, high = pixels(region, p, 0)
                    with T.serial(0, high) as y:
                        start, wide = pixels(region, q, 1)
                        with T.serial(0, wide) as x:
                            result[region, channel, p, q] = result[region, channel, p, q] + (
                                of_rows[region, p, first + y]
                                * of_columns[region, q, start + x]
                                * values[image, channel, first + y, start + x]
                            )
            return builder.get()

    out = tirx.decl_buffer(shape, data.dtype, "means", layout=None)
    return te.extern([shape], [data, rois, rows, columns], body, dtype=data.dtype, out_buffers=[out], name="roi_align")


def _within(place: Any, last: int) -> Any:
    """Return a place as an index from 0 to ``last``, whatever number it is."""
    dtype = str(place.ty.dtype) if hasattr(place, "ty") else str(place.dtype)
    near = te.min(te.max(place, tirx.const(0, dtype)), tirx.const(last, dtype))
    return te.min(te.max(tirx.Cast("int32", near), 0), last)
