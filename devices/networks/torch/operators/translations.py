"""Operators of torch that TVM's importer lacks, or translates wrongly for all types.

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from devices.networks.graph.ir.dynamic_extents import numbers
from devices.networks.torch.dynamic_extents import SymbolVariables, scalar

Convert = Callable[[fx.Node], Any]


class Translations(ExportedProgramImporter):  # type: ignore[misc]
    """TVM's importer of exported programs with the operators of this module's docstring."""

    def __init__(self) -> None:
        self.symbols = SymbolVariables()
        super().__init__()

    def create_convert_map(self) -> dict[Any, Convert]:
        table: dict[Any, Convert] = super().create_convert_map()
        return {
            **table,
            "cat.default": self._joined(table["cat.default"]),
            "amax.default": self._extremum(relax.op.max),
            "amin.default": self._extremum(relax.op.min),
            "prod.dim_int": self._product_along,
            "clamp.default": self._clamped(table["clamp.default"]),
            "index.Tensor": self._indexed,
            "index_put.default": self._placed,
            "upsample_nearest2d.vec": self._nearest,
            "grid_sampler_2d.default": self._sampled,
            "convolution.default": self._convolved(table["convolution.default"]),
        }

    def _joined(self, convert: Convert) -> Convert:
        """Join tensors without the empty ones. torch allows an empty tensor of one dimension among tensors of several
        dimensions."""

        def converted(node: fx.Node) -> Any:
            arguments: Any = node.args
            filled = [each for each in arguments[0] if each.meta["val"].numel()]
            if len(filled) == 1:
                return self.env[filled[0]]
            if filled:
                node.update_arg(0, filled)
            return convert(node)

        return converted

    def _extent(self, value: Any) -> list[Any]:
        """Return the extents of a tensor. Fixed extents are integers."""
        return [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in self.shape_of(value)]

    def _extremum(self, operator: Callable[..., Any]) -> Convert:
        def converted(node: fx.Node) -> Any:
            axes: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
            axes = [axes] if isinstance(axes, int) else list(axes)
            keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
            return self.block_builder.emit(operator(self.env[node.args[0]], axes or None, keepdims=keep))

        return converted

    def _product_along(self, node: fx.Node) -> Any:
        value = relax.op.astype(self.env[node.args[0]], self._convert_data_type(node.meta["val"].dtype))
        keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
        return self.block_builder.emit(relax.op.prod(value, node.args[1], keepdims=keep))

    def _clamped(self, convert: Convert) -> Convert:
        """Clamp integers to the given bounds: TVM takes infinity for a missing bound, which integers do not have."""

        def converted(node: fx.Node) -> Any:
            dtype = node.meta["val"].dtype
            bounds = [node.args[at] if len(node.args) > at else None for at in (1, 2)]
            if dtype.is_floating_point or None not in bounds:
                return convert(node)
            result = self.env[node.args[0]]
            for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
                if bound is not None:
                    result = operator(result, relax.const(bound, self._convert_data_type(dtype)))
            return self.block_builder.emit(result)

        return converted

    def _indexed(self, node: fx.Node) -> Any:
        """Return ``data[indices]``. Indices are tensors of integers, which are broadcast together, or None for a whole
        axis. Negative integers count from the end. The indexed axes are merged into one, along which one ``take``
        reads."""
        indices: Any = node.args[1]
        data = self.env[node.args[0]]
        if any(index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices):
            raise ValueError("a mask as index gives a tensor whose shape depends on data")
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        places = [self.env[indices[axis]] for axis in axes]
        if len(axes) == 1:
            return self.block_builder.emit(relax.op.take(data, places[0], axis=axes[0], mode="wrap"))
        extents = self._extent(data)
        if axes != list(range(axes[0], axes[-1] + 1)):  # numpy's and torch's rule then puts the new axes first
            others = [axis for axis in range(len(extents)) if axis not in axes]
            data = self.block_builder.emit(relax.op.permute_dims(data, [*axes, *others]))
            extents = [extents[axis] for axis in (*axes, *others)]
            axes = list(range(len(axes)))
        first, end = axes[0], axes[-1] + 1
        joined = [*extents[:first], prod(extents[first:end]), *extents[end:]]
        data = self.block_builder.emit(relax.op.reshape(data, joined))
        place = self._joint_place(places, extents[first:end])
        return self.block_builder.emit(relax.op.take(data, place, axis=first, mode="clip"))

    def _placed(self, node: fx.Node) -> Any:
        """Return ``data`` with ``values`` at ``indices`` (see :meth:`_indexed`), or with ``values`` added there. With a
        mask as index, there must be only one value."""
        arguments: Any = node.args
        data, indices, values, *rest = arguments
        result, updates = self.env[data], self.env[values]
        extents = self._extent(result)
        if any(index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices):
            if len(indices) > 1 or prod(self._extent(updates)) != 1 or rest[:1] == [True]:
                raise ValueError("a mask as index gives a tensor whose shape depends on data")
            mask = self.env[indices[0]]
            rank = len(extents) - len(self._extent(mask))
            mask = self.block_builder.emit(relax.op.reshape(mask, [*self._extent(mask), *([1] * rank)]))
            one = self.block_builder.emit(relax.op.reshape(updates, [1] * len(extents)))
            return self.block_builder.emit(relax.op.where(mask, one, result))
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        others = [axis for axis in range(len(extents)) if axis not in axes]
        order = [*axes, *others]
        shape = list(np.broadcast_shapes(*(tuple(indices[axis].meta["val"].shape) for axis in axes)))
        places = []
        for axis in axes:
            place = self.env[indices[axis]]
            size = scalar(self, extents[axis], str(place.ty.dtype))
            place = self.block_builder.emit(relax.op.floor_mod(place, size))
            places.append(self.block_builder.emit(relax.op.broadcast_to(place, shape)))
        joint = self.block_builder.emit(relax.op.stack(places, axis=len(shape)))
        # The axes of the indices replace the indexed axes, or come first if the indexed axes are not adjacent.
        ahead = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
        rest_of = [extents[axis] for axis in others]
        wanted = [*rest_of[:ahead], *shape, *rest_of[ahead:]]
        updates = self.block_builder.emit(relax.op.broadcast_to(updates, wanted))
        if ahead:
            inner, end = range(ahead, ahead + len(shape)), range(ahead + len(shape), len(wanted))
            updates = self.block_builder.emit(relax.op.permute_dims(updates, [*inner, *range(ahead), *end]))
        moved = self.block_builder.emit(relax.op.permute_dims(result, order))
        reduction = "add" if rest[:1] == [True] else "update"
        moved = self.block_builder.emit(relax.op.scatter_nd(moved, joint, updates, reduction))
        back = [order.index(axis) for axis in range(len(order))]
        return self.block_builder.emit(relax.op.permute_dims(moved, back))

    def _joint_place(self, places: Sequence[Any], extents: Sequence[Any]) -> Any:
        """Return indices of several axes as one index of the merged axes."""
        total: Any = None
        for place, extent in zip(places, extents, strict=True):
            dtype = str(place.ty.dtype)
            size = scalar(self, extent, dtype)
            place = self.block_builder.emit(relax.op.floor_mod(place, size))
            if total is not None:
                scaled = self.block_builder.emit(relax.op.multiply(total, size))
                place = self.block_builder.emit(relax.op.add(scaled, place))
            total = place
        return total

    def _nearest(self, node: fx.Node) -> Any:
        """Resize to the nearest pixel, whose position is the result's position times the ratio of the sizes, rounded
        down."""
        size = numbers("upsample_nearest2d", node.meta["val"].shape[2:])
        places = {"coordinate_transformation_mode": "asymmetric", "rounding_method": "floor"}
        resized = relax.op.image.resize2d(
            self.env[node.args[0]], size, layout="NCHW", method="nearest_neighbor", **places
        )
        return self.block_builder.emit(resized)

    def _sampled(self, node: fx.Node) -> Any:
        """Sample at the positions of a grid. TVM wants the grid's two coordinates as the second axis."""
        arguments: Any = node.args
        data, grid, *options = arguments
        methods, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
        moved = self.block_builder.emit(relax.op.permute_dims(self.env[grid], [0, 3, 1, 2]))
        sampled = relax.op.image.grid_sample(
            self.env[data],
            moved,
            method=methods[options[0]],
            layout="NCHW",
            padding_mode=paddings[options[1]],
            align_corners=bool(options[2]),
        )
        return self.block_builder.emit(sampled)

    def _convolved(self, convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            in_space = node.args[6] and len(node.meta["val"].shape) == 5
            return self._transposed_in_space(node) if in_space else convert(node)

        return converted

    def _transposed_in_space(self, node: fx.Node) -> Any:
        """Return a transposed convolution of three dimensions, which TVM's importer lacks."""
        arguments: Any = node.args
        data, weight, bias, strides, padding, dilation, _, output_padding, groups = arguments
        half = node.meta["val"].dtype in (torch.float16, torch.bfloat16)
        result = self.block_builder.emit(
            relax.op.nn.conv3d_transpose(
                self.env[data],
                self.env[weight],
                strides=list(strides),
                padding=list(padding),
                output_padding=list(output_padding),
                dilation=list(dilation),
                groups=groups,
                out_dtype="float32" if half else None,
            )
        )
        if bias is None:
            return result
        added = relax.op.reshape(self.env[bias], (1, -1, 1, 1, 1))
        return self.block_builder.emit(relax.op.add(result, added))
