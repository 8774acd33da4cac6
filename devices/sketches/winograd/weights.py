"""The transform of a convolution's weights, which is computed once, when the network is compiled.

It takes the place of the change of layout by which the rewritten program gets its weights in the order of its loops: a
block at the root, which :func:`devices.sketches.spaces.apply_trace` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferStore, PrimFunc, SeqStmt
from tvm_ffi import structural_map

from devices.sketches.nests import block_of, nest, selected, variables_of
from devices.sketches.winograd.matrices import transforms

LAYOUT_REWRITE = "meta_schedule.layout_rewrite_preproc"
_EXACT = "float64"


def with_plain_weights(scheduled: PrimFunc, original: PrimFunc) -> PrimFunc:
    """Return a scheduled program with the arguments of the ``original`` one: one that was rewritten transforms the
    weights, any other one stays as it is."""
    pairs = zip(original.params, scheduled.params, strict=True)
    position = next((at for at, (param, other) in enumerate(pairs) if _shape(param) != _shape(other)), None)
    if position is None:
        return scheduled
    weight = original.params[position]
    points = scheduled.params[position]
    transform = _Transform(weight, points)
    root = scheduled.body.block
    buffers = list(root.alloc_buffers)
    body = structural_map(root.body, (SBlock, transform.rewritten))
    if not transform.found:
        body = SeqStmt([transform.nest(), body])
        buffers.append(points)
    params = list(scheduled.params)
    params[position] = weight
    changed = SBlock([], [], [], root.name_hint, body, None, buffers, annotations=root.annotations)
    function = PrimFunc(params, SBlockRealize([], True, changed), scheduled.ret_type)
    return function.with_attr(dict(scheduled.attrs))


def _shape(param: Any) -> list[int]:
    return [int(extent) for extent in param.shape]


class _Transform:
    """``G weights G^T`` of ``weight`` in place of ``points``."""

    def __init__(self, weight: Any, points: Any) -> None:
        self.found = False
        """True if the program changes the layout of the points."""
        self._weight, self._points = weight, points
        self._size = int(weight.shape[0])
        self._matrix = transforms(int(points.shape[0]) - self._size + 1, self._size).weight

    def rewritten(self, block: SBlock) -> SBlock:
        """Return a block that computes the points where it read them; any other block as it is."""
        if LAYOUT_REWRITE not in block.annotations or not block.reads[0].source.same_as(self._points):
            return block
        self.found = True
        body = structural_map(block.body, (TensorLoad, self._computed))
        return block_of(block.name_hint, block.iter_vars, body, annotations=block.annotations)

    def nest(self) -> Any:
        """Return a nest that writes all points."""
        variables = variables_of(4, str(self._points.shape[0].ty.dtype))
        body = BufferStore(self._points, self._value(variables), variables)
        return nest("points", self._points.shape, variables, body, annotations={LAYOUT_REWRITE: True})

    def _computed(self, load: Any) -> Any:
        return self._value(load.indices) if load.source.same_as(self._points) else load

    def _value(self, at: Sequence[Any]) -> Any:
        first, second, inputs, channels = at
        total = tirx.const(0.0, _EXACT)
        for row in range(self._size):
            for column in range(self._size):
                value = self._weight[row, column, inputs, channels].astype(_EXACT)
                total = total + value * self._factor(first, row) * self._factor(second, column)
        return total.astype(str(self._weight.dtype))

    def _factor(self, point: Any, at: int) -> Any:
        return selected(point, [tirx.const(float(row[at]), _EXACT) for row in self._matrix])
