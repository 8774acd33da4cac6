"""What changes of layout bring and cost, by hand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from tvm import relax

from devices.builds.executables import calls
from devices.networks.graph.layouts.channels_last import channels_last, gain, not_worthwhile
from devices.networks.graph.rewrites.rewriter import rewrite


def _module(groups: int) -> Any:
    """A 3x3 convolution of 1x32x6x6 to 32 channels in ``groups``, its rows in pairs, which no layout passes, and
    a dense convolution of that."""
    builder, generator = relax.BlockBuilder(), np.random.default_rng(1)

    def weights(*shape: int) -> Any:
        return relax.const(generator.standard_normal(shape).astype(np.float32))

    x = relax.Var("x", relax.TensorType((1, 32, 6, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.conv2d(x, weights(32, 32 // groups, 3, 3), padding=(1, 1), groups=groups))
            between = builder.emit(relax.op.reshape(first, (1, 64, 3, 6)))
            output = builder.emit_output(relax.op.nn.conv2d(between, weights(64, 64, 3, 3), padding=(1, 1)))
        builder.emit_func_output(output)
    return builder.get()


def _converted(module: Any, apart: Collection[int] = ()) -> Any:
    return rewrite(relax.transform.Normalize()(channels_last(module, apart)))


_DENSE, _DEPTHWISE = 2 * 32 * 36 * 32 * 9, 2 * 32 * 36 * 9
_SECOND = 2 * 64 * 18 * 64 * 9
_MOVED = 2 * 32 * 36 * 4  # bytes of the input and the output of each


def test_the_gain_is_operations_less_32_for_each_byte_that_moves() -> None:
    for groups, first in ((1, _DENSE), (32, _DEPTHWISE)):
        module = _module(groups)
        assert gain(module, _converted(module)) == first + _SECOND - 32 * 2 * _MOVED
        assert gain(module, _converted(module, {0})) == _SECOND - 32 * _MOVED
        assert gain(module, module) == 0


def test_steps_over_rows_count_as_what_they_leave_out() -> None:
    """An operation takes ten times what channels last save of one; of two numbers in a row one is used."""
    x = relax.Var("x", relax.TensorType((1, 8, 16, 16), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            weights = relax.const(np.ones((8, 1, 3, 3), np.float32))
            convolution = relax.op.nn.conv2d(x, weights, strides=(1, 2), padding=(1, 1), groups=8)
            output = builder.emit_output(convolution)
        builder.emit_func_output(output)
    module = builder.get()
    operations, moved = 2 * 8 * 16 * 8 * 9, 8 * 16 * (16 + 8) * 4
    assert gain(module, _converted(module)) == 11 * operations - 32 * moved
    assert not_worthwhile(module, _converted(module)) == {0}


def test_an_island_counts_by_itself() -> None:
    assert _DEPTHWISE < 32 * _MOVED < _DENSE
    dense, depthwise = _module(1), _module(32)
    assert not_worthwhile(dense, _converted(dense)) == frozenset()
    assert not_worthwhile(depthwise, _converted(depthwise)) == {0}
    assert not_worthwhile(depthwise, depthwise) == frozenset()  # nothing has channels last


def test_the_convolutions_that_stay_are_named_by_their_place() -> None:
    for apart, layouts in (((), ["NHWC", "NHWC"]), ({0}, ["NCHW", "NHWC"]), ({1}, ["NHWC", "NCHW"])):
        found = [call for call in calls(_converted(_module(32), apart)["main"].body) if "conv2d" in str(call.op.name)]
        assert [str(call.attrs.data_layout) for call in found] == layouts
