"""Recognition of products and convolutions that a library can compute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx import Add, BufferStore, IntImm, Mul, PrimFunc
from tvm_ffi import structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION
from devices.sketches.inlining import blocks_of, inline_element_wise
from devices.sketches.nests import FLOAT, are_equal, axes_of, is_element_wise, replaced

_CPU = Target({"kind": "llvm"})


@dataclass(frozen=True)
class ConvolutionWindow:
    """The window that a convolution (NHWC by HWIO) sums over."""

    size: tuple[int, int]
    """Rows and columns of the weights."""
    steps: tuple[int, int]
    """Pixels from one result to the next, down and across."""
    before: tuple[int, int]
    """Rows and columns of zeros before the image."""


@dataclass(frozen=True)
class Operator:
    """A product or convolution in float32 by constant weights, with its epilogue."""

    main: PrimFunc
    data: Any
    """Buffer that it reads: (..., inputs)."""
    weight: Any
    """Buffer of its weights: (inputs, outputs), or (rows, columns, inputs, outputs)."""
    result: Any
    """Buffer that it writes: (..., outputs)."""
    window: ConvolutionWindow | None
    """None for a product of matrices."""
    epilogue: SBlock | None
    """The element-wise block that reads its result; None if there is none."""

    @property
    def index(self) -> str:
        """Type of the indices."""
        return str(self.result.shape[0].ty.dtype)

    @property
    def images(self) -> int:
        """Images of a convolution; 1 for a product."""
        return 1 if self.window is None else int(self.result.shape[0])

    @property
    def rows(self) -> int:
        """Rows of a product, or of the image that a convolution makes."""
        return prod(map(int, self.result.shape[:-1])) if self.window is None else int(self.result.shape[1])

    @property
    def width(self) -> int:
        """Pixels in a row of the resulting image; 1 for a product."""
        return 1 if self.window is None else int(self.result.shape[2])

    @property
    def inputs(self) -> int:
        """Input channels."""
        return int(self.weight.shape[-2])

    @property
    def outputs(self) -> int:
        """Output channels."""
        return int(self.weight.shape[-1])


def operator_of(module: tvm.IRModule) -> Operator | None:
    """Return the operator that the function ``main`` of ``module`` computes. None if it computes something else, if it
    has groups, dilation or other types, if its weights are not constant, or if its data are not an argument (or an
    argument in a border of zeros)."""
    found: list[SBlock] = []
    structural_walk(module["main"].body.block.body, (SBlock, found.append))
    sums = [each for each in found if any(int(axis.iter_type) == REDUCTION for axis in each.iter_vars)]
    if len(sums) != 1 or not _multiplies(sums[0]):
        return None
    name, data = sums[0].name_hint, sums[0].body.value.b.a.source
    maker = next((each.name_hint for each in found if _writes(each, data)), None)
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    inline_element_wise(schedule, _CPU, keep=[name] if maker is None else [name, maker])
    _inline_the_rest(schedule, {name, maker})
    main, blocks = schedule.mod["main"], {each.name_hint: each for each in blocks_of(schedule)}
    block, padding = blocks.pop(name), None if maker is None else blocks.pop(maker)
    constant = [main.params[int(at)] for at in (main.attrs or {}).get("layout_free_buffers", [])]
    loads, result = block.body.value.b, block.writes[0].source
    epilogue = next(iter(blocks.values()), None)
    if len(blocks) > 1 or not any(loads.b.source.same_as(each) for each in constant):
        return None
    if epilogue is not None and not is_element_wise(epilogue, result):
        return None
    # With an epilogue, only a part of the result exists at a time: the result cannot be an argument.
    if epilogue is not None and any(result.same_as(each) for each in main.params):
        return None
    source, zeros = (loads.a.source, ()) if padding is None else _padded(padding)
    if source is None or not any(source.same_as(each) for each in main.params):
        return None
    return _product(main, block, source, epilogue, zeros) or _convolution(main, block, source, epilogue, zeros)


def _product(
    main: PrimFunc, block: SBlock, data: Any, epilogue: SBlock | None, zeros: Sequence[int]
) -> Operator | None:
    """Return the product of matrices that ``block`` computes; None if it computes none. A convolution with weights of
    one pixel is a product too."""
    axes, loads = axes_of(block), block.body.value.b
    summed = [axis for axis, each in zip(axes, block.iter_vars, strict=True) if int(each.iter_type) == REDUCTION]
    *rows, column = axes[: len(axes) - len(summed)]
    weight = loads.b.source
    if any(zeros) or not are_equal([*block.body.indices], [*rows, column]):
        return None
    single = len(summed) == 3 and all(int(extent) == 1 for extent in weight.shape[:2])
    if single:
        row, across, channel = summed
        read = [rows[0], rows[1] + row, rows[2] + across, channel]
        held = [row, across, channel, column]
    elif len(summed) == 1:
        read, held = [*rows, summed[0]], [summed[0], column]
    else:
        return None
    if are_equal([*loads.a.indices], read) and are_equal([*loads.b.indices], held):
        return Operator(main, data, weight, block.writes[0].source, None, epilogue)
    return None


def _convolution(
    main: PrimFunc, block: SBlock, data: Any, epilogue: SBlock | None, zeros: Sequence[int]
) -> Operator | None:
    """Return the convolution that ``block`` computes."""
    axes, loads = axes_of(block), block.body.value.b
    if [int(each.iter_type) for each in block.iter_vars] != [DATA_PARALLEL] * 4 + [REDUCTION] * 3:
        return None
    image, y, x, out, row, column, channel = axes
    steps = tuple(_step(index, axis) for index, axis in zip(loads.a.indices[1:3], (y, x), strict=True))
    read = [image, y * steps[0] + row, x * steps[1] + column, channel]
    analyzer = Analyzer()
    same = all(analyzer.can_prove_equal(one, other) for one, other in zip(loads.a.indices, read, strict=True))
    if not same or not are_equal([*loads.b.indices], [row, column, channel, out]):
        return None
    if not are_equal([*block.body.indices], [image, y, x, out]) or len(data.shape) != 4:
        return None
    size = tuple(int(extent) for extent in loads.b.source.shape[:2])
    top, left = zeros[1:3] if zeros else (0, 0)
    if zeros and (zeros[0] or zeros[3]):
        return None
    window = ConvolutionWindow((size[0], size[1]), (steps[0], steps[1]), (top, left))
    return Operator(main, data, loads.b.source, block.writes[0].source, window, epilogue)


def _step(index: Any, axis: Any) -> int:
    """Return the factor of an axis in an index."""
    difference = Analyzer().simplify(replaced(index, {axis: axis + 1}) - index)
    return int(difference) if isinstance(difference, IntImm) else 0


def _inline_the_rest(schedule: Schedule, kept: set[str | None]) -> None:
    """Inline all other blocks with one reader, including those that TVM prefers to compute once."""
    for block in reversed(schedule.get_child_blocks(schedule.get_sblock("root", "main"))):
        if schedule.get(block).name_hint not in kept and len(schedule.get_consumers(block)) == 1:
            with suppress(RuntimeError):
                schedule.compute_inline(block)


def _padded(block: SBlock) -> tuple[Any, tuple[int, ...]]:
    """Return the buffer that a block copies, and the number of zeros that it adds before the first element of each
    axis; None and an empty tuple if the block does anything else."""
    value, axes = block.body.value, axes_of(block)
    condition, inside = tirx.const(True, "bool"), value
    is_selection = isinstance(value, Call) and getattr(value.op, "name", "") == "prim.if_then_else"
    if is_selection:
        condition, inside, outside = value.args
        if float(getattr(outside, "value", 1.0)) != 0:
            return None, ()
    if not isinstance(inside, TensorLoad) or len(inside.indices) != len(axes):
        return None, ()
    analyzer = Analyzer()
    offsets = [analyzer.simplify(axis - index) for axis, index in zip(axes, inside.indices, strict=True)]
    if not all(isinstance(each, IntImm) for each in offsets):
        return None, ()
    zeros = tuple(int(each) for each in offsets)
    extents = [int(each.dom.extent) for each in block.iter_vars]
    sizes = [int(extent) for extent in inside.source.shape]
    # The condition must select the inside. It is tested at all corners of the image and of the border around it.
    corners = [
        sorted({0, before - 1, before, before + size - 1, before + size, extent - 1} & set(range(extent)))
        for before, size, extent in zip(zeros, sizes, extents, strict=True)
    ]
    for place in product(*corners):
        known = dict(zip(axes, (tirx.const(at, axes[0].ty.dtype) for at in place), strict=True))
        told = analyzer.simplify(replaced(condition, known))
        if not isinstance(told, IntImm):
            return None, ()
        is_inside = all(0 <= at - before < size for at, before, size in zip(place, zeros, sizes, strict=True))
        if bool(int(told)) != is_inside:
            return None, ()
    return inside.source, zeros


def _writes(block: SBlock, buffer: Any) -> bool:
    return isinstance(block.body, BufferStore) and block.body.buffer.same_as(buffer)


def _multiplies(block: SBlock) -> bool:
    """Return true for a sum of products of two elements in float32."""
    store = block.body
    if block.init is None or not isinstance(store, BufferStore) or not isinstance(store.value, Add):
        return False
    term = store.value.b
    if not isinstance(term, Mul) or not all(isinstance(each, TensorLoad) for each in (term.a, term.b)):
        return False
    return all(str(each.source.dtype) == FLOAT for each in (term.a, term.b))
