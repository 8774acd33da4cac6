"""Layouts of convolutions: channels last (NHWC, weights HWIO, and their like), on CPUs and on CUDA, where that pays.

On a CPU the output channels are then the contiguous axis of input, weights and output: register-blocked kernels
vectorise over them whatever the image size is. On CUDA neighbouring threads take neighbouring channels, so that all
three are read and written in whole memory transactions, and the convolution has the form of a matrix product, which
tensor-core sketches need. Both are also the forms that MetaSchedule's rules are written for; NCHW loses that on images
of 7x7 and 14x14.

A network pays for it where values go from one layout to the other: a deep one at its ends, one of a single convolution
for each. On a Zen 5 a change of layout takes 20 ps a byte, and tuned convolutions (128 channels, 28x28) are 1.14 to 1.2
times as fast with channels last, which is 0.3 ps an operation.
"""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from devices.builds.executables import calls

_DESIRED_LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
    # Named, or it takes the layout of its input, which TVM cannot lower.
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}
_CONVOLUTIONS = frozenset(_DESIRED_LAYOUTS) - {"relax.nn.conv2d_transpose"}
# Element-wise operators for which TVM forgot to register how layouts pass through them: without a rule ConvertLayout
# puts transposes around every ReLU6.
_ELEMENTWISE_WITHOUT_LAYOUT = ("relax.clip", "relax.nn.leakyrelu", "relax.nn.softplus")
# Operators whose rule in TVM is wrong: it raises, or (repeat of all elements) gives them in another order. Without one
# they get their inputs in the layout that they had.
_WRONG_LAYOUT_RULES = ("relax.stack", "relax.repeat", "relax.nn.dropout")
# Operations of convolutions for each byte that changes its layout, from which on it pays: between a depthwise
# convolution alone (2; 1.7 times as fast as it was) and a dense one (70 to 300).
_WORTHWHILE = 32


def has_convolutions(main: Any) -> bool:
    """Whether ``main`` has operators that :func:`channels_last` is about."""
    return any(_operator(call) in _CONVOLUTIONS for call in calls(main.body))


def channels_last(module: Any) -> Any:
    """``module`` with its convolutions channels-last, and transposes where values go between layouts."""
    _register_layouts()
    return relax.transform.ConvertLayout(_DESIRED_LAYOUTS)(module)


def pays(before: Any, after: Any) -> bool:
    """Whether ``main`` of ``after`` (channels last) is worth its transposes, compared with ``before`` (as it was)."""
    moved = _moved_bytes(after["main"]) - _moved_bytes(before["main"])
    return _operations(before["main"]) >= _WORTHWHILE * moved


def _moved_bytes(main: Any) -> int:
    """Bytes of the results of all transposes in ``main`` that move elements in memory."""
    transposes = [call for call in calls(main.body) if _operator(call) == "relax.permute_dims"]
    return sum(_bytes(call.ty) for call in transposes if not isinstance(call.args[0], GenericConst) and _moves(call))


def _moves(transpose: Call) -> bool:
    """Whether the order of the axes that are longer than one changes."""
    shape = [int(extent) for extent in transpose.args[0].ty.shape.values]
    axes = transpose.attrs.axes
    order = [int(axis) for axis in axes] if axes is not None else list(reversed(range(len(shape))))
    long = [axis for axis in order if shape[axis] > 1]
    return long != sorted(long)


def _operations(main: Any) -> int:
    """Floating-point operations of the convolutions of ``main`` (weights OI...): two for each product."""
    convolutions = [call for call in calls(main.body) if _operator(call) in _CONVOLUTIONS]
    return sum(
        2 * _elements(call.ty) * prod(int(extent) for extent in call.args[1].ty.shape.values[1:])
        for call in convolutions
    )


def _elements(tensor: Any) -> int:
    return prod(int(extent) for extent in tensor.shape.values)


def _bytes(tensor: Any) -> int:
    return _elements(tensor) * int(np.dtype(str(tensor.dtype)).itemsize)


def _operator(call: Call) -> str:
    return str(call.op.name) if isinstance(call.op, tvm.ir.Op) else ""


@functools.cache
def _register_layouts() -> None:
    """Gives the operators without a layout rule the one that TVM has for ReLU, and takes the wrong ones away."""
    attribute = "FRelaxInferLayout"
    rule = tvm.ir.Op.get("relax.nn.relu").get_attr(attribute)
    for name in _ELEMENTWISE_WITHOUT_LAYOUT:
        if tvm.ir.Op.get(name).get_attr(attribute) is None:
            tvm.ir.register_op_attr(name, attribute, rule)
    for name in _WRONG_LAYOUT_RULES:
        tvm.ir.Op.get(name).reset_attr(attribute)
