"""torchvision's native operators that TVM's importer lacks or misreads. torchvision need not be installed.

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from tvm import relax

Convert = Callable[[fx.Node], Any]

_HALF = (torch.float16, torch.bfloat16)


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return decompositions of the operators that are registered. They are registered if torchvision was imported."""
    operators = torch.ops.torchvision
    return {operators.deform_conv2d.default: _deformed} if hasattr(operators, "deform_conv2d") else {}


def translations(importer: Any) -> dict[str, Convert]:
    """Return translations by the operators' names, for TVM's ``importer`` of torch's programs."""

    def regions(node: fx.Node) -> Any:
        """Cut regions out of images. TVM moves aligned regions by half a pixel before it scales them, instead of
        after."""
        arguments: Any = node.args
        data, rois, scale, rows, columns, ratio, aligned = arguments
        boxes = importer.env[rois]
        if aligned:
            half = 0.5 / scale
            moved = relax.const([[0.0, half, half, half, half]], str(boxes.ty.dtype))
            boxes = importer.block_builder.emit(relax.op.subtract(boxes, moved))
        cut = relax.op.vision.roi_align(
            importer.env[data],
            boxes,
            pooled_size=(rows, columns),
            spatial_scale=scale,
            sample_ratio=ratio,
            aligned=aligned,
            layout="NCHW",
            mode="avg",
        )
        return importer.block_builder.emit(cut)

    return {"roi_align.default": regions}


def _deformed(
    data: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    """Return a convolution whose taps read between pixels, each at its own offset: bilinear samples, then a product
    with the weights. Pixels outside of the image are zero."""
    batch, channels, height, width = data.shape
    outputs, _, kernel_rows, kernel_columns = weight.shape
    rows, columns = offset.shape[2:]
    taps, places = kernel_rows * kernel_columns, rows * columns
    if offset.dtype in _HALF:  # half types are not exact above 2048, or 256
        offset = offset.float()
    offset = offset.reshape(batch, offset_groups, taps, 2, rows, columns)
    tap = torch.arange(taps, device=data.device)[:, None, None]
    down = torch.arange(rows, device=data.device)[:, None] * stride_h - pad_h
    across = torch.arange(columns, device=data.device) * stride_w - pad_w
    y = offset[:, :, :, 0] + (down + torch.div(tap, kernel_columns, rounding_mode="floor") * dilation_h)
    x = offset[:, :, :, 1] + (across + tap % kernel_columns * dilation_w)
    pixels = data.reshape(batch, offset_groups, channels // offset_groups, height * width)
    line = (batch, offset_groups, 1, taps * places)
    sampled = torch.zeros_like(pixels[..., :1])
    for far_down in (0, 1):
        for far_across in (0, 1):
            row, row_share = _corner(y, far_down, height)
            column, column_share = _corner(x, far_across, width)
            index = (row * width + column).reshape(line).expand(-1, -1, channels // offset_groups, -1)
            share = (row_share * column_share).reshape(line).to(data.dtype)
            sampled = sampled + pixels.gather(3, index) * share
    if use_mask:
        sampled = sampled * mask.reshape(line)
    blocks = sampled.reshape(batch, groups, channels // groups * taps, places)
    product = weight.reshape(1, groups, outputs // groups, -1) @ blocks
    return product.reshape(batch, outputs, rows, columns) + bias.reshape(1, -1, 1, 1)


def _corner(coordinate: Tensor, far: int, extent: int) -> tuple[Tensor, Tensor]:
    """Return the pixel before a coordinate (after it if ``far`` is 1), and its share of the sample. The share is zero
    outside of the image."""
    place = torch.floor(coordinate) + far
    inside = torch.clamp(place, 0, extent - 1)
    share = 1 - torch.abs(coordinate - place)
    return inside.to(torch.int64), torch.where(place == inside, share, 0.0)
