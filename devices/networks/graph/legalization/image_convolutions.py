"""Convolutions that read images in their given layout, channel by channel, and write channels last.

With channels last (:mod:`devices.networks.graph.layouts.channels_last`) the image is transposed first, which takes 15
to 60 us of a network of a millisecond. The convolution's kernel reads single values of the image for vectors of output
channels, so the place of the next channel does not matter.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import Call

from devices.networks.graph.ir.main_function import replace_calls

_MOST_CHANNELS = 4
_CHANNELS_LAST = [0, 2, 3, 1]


def read_images_as_given(module: Any) -> Any:
    """Return ``module`` in which a convolution of a transposed image of few channels reads the image itself, if nothing
    else reads the transpose."""
    reads: Counter[Any] = Counter()
    transposes: dict[Any, Call] = {}

    def visit(each: Any) -> None:
        if isinstance(each, Call):
            reads.update(each.args)
        elif isinstance(each, relax.SeqExpr):
            bindings = [binding for block in each.blocks for binding in block.bindings]
            transposes.update({binding.var: binding.value for binding in bindings if _is_transpose(binding.value)})

    relax.analysis.post_order_visit(module["main"], visit)
    images = {transpose.args[0] for var, transpose in transposes.items() if reads[var] == 1}

    def convolution(builder: relax.BlockBuilder, call: Call) -> Any:
        attrs, data = call.attrs, call.args[0]
        transpose: Any = builder.lookup_binding(data) if isinstance(data, relax.Var) else None
        if not _is_transpose(transpose):
            return call
        image = transpose.args[0]
        layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
        if layouts != ("NHWC", "HWIO", "NHWC") or int(attrs.groups) != 1:
            return call
        if image not in images or attrs.out_dtype not in {None, "", str(image.ty.dtype)}:
            return call
        return relax.op.nn.conv2d(
            image,
            call.args[1],
            attrs.strides,
            attrs.padding,
            attrs.dilation,
            data_layout="NCHW",
            kernel_layout="HWIO",
            out_layout="NHWC",
        )

    return replace_calls(module, {"relax.nn.conv2d": convolution})


def _is_transpose(value: Any) -> bool:
    """Return true if a value is an image of few channels, transposed to channels last."""
    if not isinstance(value, Call) or getattr(value.op, "name", "") != "relax.permute_dims":
        return False
    axes = value.attrs.axes
    if axes is None or [int(axis) for axis in axes] != _CHANNELS_LAST:
        return False
    channels = value.args[0].ty.shape[1]
    return isinstance(channels, tirx.IntImm) and int(channels) <= _MOST_CHANNELS


def legalize_convolution(builder: relax.BlockBuilder, call: Call) -> Any:
    """Return the kernel of a call of ``relax.nn.conv2d``."""
    attrs = call.attrs
    if (str(attrs.data_layout), str(attrs.out_layout)) != ("NCHW", "NHWC"):
        return call.op.get_attr("FLegalize")(builder, call)
    options = ([int(each) for each in given] for given in (attrs.strides, attrs.padding, attrs.dilation))
    return builder.call_te(image_convolution, *call.args, *options, primfunc_name_hint="conv2d")


def image_convolution(
    image: te.Tensor, weights: te.Tensor, strides: list[int], padding: list[int], dilation: list[int]
) -> te.Tensor:
    """Return the convolution (n, height, width, filters) of an image (n, channels, height, width) by weights (height,
    width, channels, filters). ``padding``: at the top, the left, the bottom and the right."""
    rows, columns, channels, filters = weights.shape
    padded = topi.nn.pad(image, [0, 0, *padding[:2]], [0, 0, *padding[2:]], 0.0, name="pad_temp")
    height, width = (
        (padded.shape[2 + at] - dilation[at] * (extent - 1) - 1) // strides[at] + 1
        for at, extent in enumerate((rows, columns))
    )
    reduced = {"ry": rows, "rx": columns, "rc": channels}
    y, x, c = (te.reduce_axis((0, extent), name=name) for name, extent in reduced.items())
    return te.compute(
        (image.shape[0], height, width, filters),
        lambda n, i, j, f: te.sum(
            padded[n, c, i * strides[0] + y * dilation[0], j * strides[1] + x * dilation[1]] * weights[y, x, c, f],
            axis=[y, x, c],
        ),
        name="conv2d_nhwc",
    )
