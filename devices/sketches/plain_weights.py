"""Scheduled programs that take the weights of the original program. If a sketch rule has transformed the weights, the
transformation becomes part of the program, and runs once, when the network is compiled.

The transformation is part of the block at the root that changes the layout of the weights to the order of the loops
(see :func:`devices.sketches.spaces.apply_trace`). If there is no such block, one is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferStore, PrimFunc, SeqStmt
from tvm_ffi import structural_map

from devices.sketches.nests import block_of, nest, variables_of
from devices.sketches.rules.library.program import BLOCKS, element_of_block
from devices.sketches.rules.overlapping_tiles import element_of_tile
from devices.sketches.rules.winograd.weights import element_of_points

LAYOUT_REWRITE = "meta_schedule.layout_rewrite_preproc"


def with_plain_weights(scheduled: PrimFunc, original: PrimFunc) -> PrimFunc:
    """Return a scheduled program with the arguments of the ``original`` one. If a rule has changed the weights, the
    program computes the changed weights from the original ones. Any other program stays unchanged."""
    pairs = zip(original.params, scheduled.params, strict=True)
    position = next((at for at, (param, other) in enumerate(pairs) if _shape(param) != _shape(other)), None)
    if position is None:
        return scheduled
    change = _Change(original.params[position], scheduled.params[position])
    root = scheduled.body.block
    buffers = list(root.alloc_buffers)
    body = structural_map(root.body, (SBlock, change.rewritten))
    if not change.found:
        body = SeqStmt([change.nest(), body])
        buffers.append(scheduled.params[position])
    params = list(scheduled.params)
    params[position] = original.params[position]
    block = SBlock([], [], [], root.name_hint, body, None, buffers, annotations=root.annotations)
    function = PrimFunc(params, SBlockRealize([], True, block), scheduled.ret_type)
    return function.with_attr(dict(scheduled.attrs))


def _shape(param: Any) -> list[int]:
    return [int(extent) for extent in param.shape]


class _Change:
    """The change of ``weight`` to ``changed`` by a rule."""

    def __init__(self, weight: Any, changed: Any) -> None:
        self.found = False
        """True once a block was found that changes the layout of the changed weights."""
        self._weight, self._changed = weight, changed

    def rewritten(self, block: SBlock) -> SBlock:
        """Return a layout-change block of the changed weights, which now computes them instead of reading them. Any
        other block stays unchanged."""
        if LAYOUT_REWRITE not in block.annotations or not block.reads[0].source.same_as(self._changed):
            return block
        self.found = True
        body = structural_map(block.body, (TensorLoad, self._computed))
        return block_of(block.name_hint, block.iter_vars, body, annotations=block.annotations)

    def nest(self) -> Any:
        """Return a loop nest that writes all changed weights."""
        shape = self._changed.shape
        variables = variables_of(len(shape), str(shape[0].ty.dtype))
        body = BufferStore(self._changed, self._element(variables), variables)
        return nest("weights", shape, variables, body, annotations={LAYOUT_REWRITE: True})

    def _computed(self, load: Any) -> Any:
        return self._element(load.indices) if load.source.same_as(self._changed) else load

    def _element(self, at: Sequence[Any]) -> Any:
        """Return an element of the changed weights as an expression of the original ones. The form of the change
        follows from the changed buffer: blocks of columns by its name, overlapping tiles by its additional dimension;
        else it is the points of Winograd's algorithm."""
        if self._changed.name == f"{self._weight.name}{BLOCKS}":
            return element_of_block(self._weight, self._changed, at)
        has_tiles = len(self._changed.shape) > len(self._weight.shape)
        return (element_of_tile if has_tiles else element_of_points)(self._weight, self._changed, at)
