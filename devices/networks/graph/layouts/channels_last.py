"""Layouts of convolutions: channels last (NHWC, weights HWIO, and similar), on CPUs and on CUDA, where that pays.

On a CPU the output channels are then the contiguous axis of input, weights and output: register-blocked kernels
vectorise over them whatever the image size is. On CUDA neighbouring threads take neighbouring channels, so that all
three are read and written in whole memory transactions, and the convolution has the form of a matrix product, which
tensor-core sketches need. MetaSchedule's rules are also written for these forms. NCHW loses these advantages on images
of 7x7 and 14x14.

The cost is the change of layout: a deep network pays for it at its ends, a network with single convolutions for each of
them. On a Zen 5 a change of layout takes 20 ps a byte, and tuned convolutions (128 channels, 28x28) are 1.14 to 1.2
times as fast with channels last, which is 0.3 ps an operation, a tenth of its time. A convolution that goes over its
rows in steps of two uses only every other number of a vector in the original layout: it is twice as fast with channels
last (ShuffleNet's first one, 3 to 24 channels: 43 us on one thread instead of 129).

So the convolutions of a network are divided into *islands*. When all convolutions are channels last, values pass
between those of one island without a change of layout. If the convolutions of an island do too little work to pay for
the changes of layout at its borders, it keeps its layout. Examples are a depthwise convolution between products and
attention, and ShuffleNet's units: all its tuned kernels but the last product take 0.54 ms on one thread instead of
0.57. The other islands have channels last.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Container, Iterator
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from devices.builds.executables import calls
from devices.networks.graph.ir.dynamic_extents import is_long, known
from devices.networks.graph.machine_balance import WORTHWHILE

_DESIRED_LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
}
_CONVOLUTIONS = frozenset(_DESIRED_LAYOUTS)
# An operator that is not listed takes the layout of its input, and TVM cannot lower a transposed convolution then.
_LAYOUTS_AS_GIVEN = {
    "relax.nn.conv1d": ["NCW", "OIW"],
    "relax.nn.conv2d": ["NCHW", "OIHW"],
    "relax.nn.conv3d": ["NCDHW", "OIDHW"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}
# Element-wise operators without a layout rule in TVM. Without one, ConvertLayout puts transposes around every ReLU6.
_ELEMENTWISE_WITHOUT_LAYOUT = ("relax.clip", "relax.nn.leakyrelu", "relax.nn.softplus")
# Operators whose rule in TVM is wrong: it raises, or (repeat of all elements) changes their order. Without a rule, they
# get their inputs in the original layout.
_WRONG_LAYOUT_RULES = ("relax.stack", "relax.repeat", "relax.nn.dropout")
# Time of an operation, relative to the time that channels last saves on it.
_OPERATION = 10


def has_convolutions(main: Any) -> bool:
    """Return true if ``main`` has convolutions that :func:`channels_last` changes."""
    return bool(_convolutions(main))


def channels_last(module: Any, apart: Container[int] = ()) -> Any:
    """Return ``module`` with its convolutions channels-last, except for those at the positions ``apart`` in the order
    of ``main``, and transposes where values change between layouts."""
    _register_layouts()
    stay = {convolution for at, convolution in enumerate(_convolutions(module["main"])) if at in apart}
    desired = {**_LAYOUTS_AS_GIVEN, **_DESIRED_LAYOUTS}
    choose = relax.transform.ConvertLayout(desired, lambda call: _LAYOUTS_AS_GIVEN if call in stay else desired)
    return choose(module)


def gain(before: Any, after: Any) -> float:
    """Return how much faster ``after`` is than ``before``, the same network in other layouts. The unit is the time that
    channels last saves on one operation. It is 0 or more if the saving is worth the transposes."""
    saved = sum(_saved(call) for call in _convolutions(after["main"]))
    return saved - WORTHWHILE * (moved_bytes(after["main"]) - moved_bytes(before["main"]))


def not_worthwhile(before: Any, after: Any) -> frozenset[int]:
    """Return the positions, in the order of ``main`` of ``before``, of the convolutions that have channels last in
    ``after``, but whose islands there do too little work for the changes of layout at their borders.

    Empty if ``after`` has other convolutions, or has them in another order.
    """
    given, convolutions = (_convolutions(module["main"]) for module in (before, after))
    if [_work(call) for call in given] != [_work(call) for call in convolutions]:
        return frozenset()
    islands = _Islands(after["main"])
    of = [islands.of(call) for call in convolutions]
    saved: defaultdict[Any, float] = defaultdict(float)
    for island, call in zip(of, convolutions, strict=True):
        saved[island] += _saved(call)
    return frozenset(
        at
        for at, (island, call) in enumerate(zip(of, convolutions, strict=True))
        if _has_channels_last(call) and saved[island] < WORTHWHILE * islands.borders[island]
    )


class _Islands:
    """The values of a function, divided into islands. Only transposes that move elements lead from one island to
    another."""

    def __init__(self, main: Any) -> None:
        self._above: dict[Any, Any] = {}
        self._island: dict[Any, Any] = {}
        crossings = []
        for binding in (binding for block in main.body.blocks for binding in block.bindings):
            value = binding.value
            self._island[value] = binding.var
            if isinstance(value, Call) and _operator(value) == "relax.permute_dims" and _moves(value):
                crossings.append((value, binding.var))
                continue
            for read in _variables(value):
                if _has_layout(read.ty):
                    self._above[self._root(read)] = self._root(binding.var)
        #: For each island, the bytes of the results of the transposes that lead to it or away from it.
        self.borders: defaultdict[Any, int] = defaultdict(int)
        for call, result in crossings:
            for island in {self._root(call.args[0]), self._root(result)}:
                self.borders[island] += _bytes(call.ty)

    def of(self, call: Call) -> Any:
        """Return the island of a call's result. None for a call in a branch: it has no borders."""
        return self._root(self._island.get(call))

    def _root(self, value: Any) -> Any:
        path = []
        while (above := self._above.get(value, value)) != value:
            path.append(value)
            value = above
        self._above.update((each, value) for each in path)
        return value


def _variables(expression: Any) -> Iterator[Any]:
    """Yield the variables that an expression reads, those in tuples too."""
    if isinstance(expression, relax.Var):
        yield expression
    elif isinstance(expression, relax.Tuple):
        for field in expression.fields:
            yield from _variables(field)
    elif isinstance(expression, relax.TupleGetItem):
        yield from _variables(expression.tuple_value)
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from _variables(argument)


def _has_layout(kind: Any) -> bool:
    """Return true if the elements can have more than one order. A vector has one order, whatever its shape."""
    if isinstance(kind, relax.TupleType):
        return any(_has_layout(field) for field in kind.fields)
    return isinstance(kind, relax.TensorType) and sum(is_long(extent) for extent in kind.shape.values) > 1


def moved_bytes(main: Any) -> int:
    """Return the bytes of the results of all transposes in ``main`` that move elements in memory."""
    transposes = [call for call in calls(main.body) if _operator(call) == "relax.permute_dims"]
    return sum(_bytes(call.ty) for call in transposes if not isinstance(call.args[0], GenericConst) and _moves(call))


def _moves(transpose: Call) -> bool:
    """Return true if the order of the axes that are longer than one changes."""
    shape = transpose.args[0].ty.shape.values
    axes = transpose.attrs.axes
    order = [int(axis) for axis in axes] if axes is not None else list(reversed(range(len(shape))))
    long = [axis for axis in order if is_long(shape[axis])]
    return long != sorted(long)


def _convolutions(main: Any) -> list[Call]:
    return [call for call in calls(main.body) if _operator(call) in _CONVOLUTIONS]


def _has_channels_last(convolution: Call) -> bool:
    return str(convolution.attrs.data_layout).endswith("C")


def _saved(convolution: Call) -> float:
    """Return the saving of a convolution that has channels last: its number of operations, plus the time of all of them
    for each unit of its stride along the rows beyond one."""
    if not _has_channels_last(convolution):
        return 0
    step = int(convolution.attrs.strides[-1])
    return _operations(convolution) * (1 + _OPERATION * (step - 1))


def _operations(convolution: Call) -> int:
    """Return the floating-point operations of a convolution: two for each product."""
    weights = convolution.args[1].ty
    filters = int(weights.shape.values[str(convolution.attrs.kernel_layout).index("O")])
    return 2 * _elements(convolution.ty) * (_elements(weights) // filters)


def _work(convolution: Call) -> tuple[Any, ...]:
    """Return the properties of a convolution that are the same in all layouts."""
    settings = (convolution.attrs.groups, *convolution.attrs.strides, *convolution.attrs.dilation)
    return _operator(convolution), *map(int, settings), _elements(convolution.ty), _operations(convolution)


def _elements(tensor: Any) -> int:
    return prod(map(known, tensor.shape.values))


def _bytes(tensor: Any) -> int:
    return _elements(tensor) * int(np.dtype(str(tensor.dtype)).itemsize)


def _operator(call: Call) -> str:
    return str(call.op.name) if isinstance(call.op, tvm.ir.Op) else ""


@functools.cache
def _register_layouts() -> None:
    """Give the operators without a layout rule the one that TVM has for ReLU, and remove the wrong rules."""
    attribute = "FRelaxInferLayout"
    rule = tvm.ir.Op.get("relax.nn.relu").get_attr(attribute)
    for name in _ELEMENTWISE_WITHOUT_LAYOUT:
        if tvm.ir.Op.get(name).get_attr(attribute) is None:
            tvm.ir.register_op_attr(name, attribute, rule)
    for name in _WRONG_LAYOUT_RULES:
        tvm.ir.Op.get(name).reset_attr(attribute)
