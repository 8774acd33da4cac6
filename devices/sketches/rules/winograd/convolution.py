"""Recognition of convolutions that Winograd's algorithm can compute."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.target import Target
from tvm.tirx import Add, BufferStore, Mul, PrimFunc
from tvm_ffi import structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION
from devices.sketches.inlining import blocks_of, inline_element_wise
from devices.sketches.nests import FLOAT, are_equal, axes_of, is_element_wise

_CPU = Target({"kind": "llvm"})
_SIZES = (3, 5)


@dataclass(frozen=True)
class Convolution:
    """A convolution (NHWC by HWIO, stride 1) that a program computes, with its element-wise blocks inlined."""

    main: PrimFunc
    block: SBlock
    padding: SBlock | None
    """The block that computes the convolution's data."""
    epilogue: SBlock | None
    """The block that reads the convolution's result."""

    @property
    def data(self) -> Any:
        """Buffer (images, height, width, channels) that it reads."""
        return _operands(self.block)[0].source

    @property
    def weight(self) -> Any:
        """Buffer (rows, columns, input channels, output channels) of its weights."""
        return _operands(self.block)[1].source

    @property
    def result(self) -> Any:
        """Buffer (images, height, width, channels) that it writes."""
        return self.block.writes[0].source

    @property
    def size(self) -> int:
        """Rows and columns of its weights."""
        return int(self.weight.shape[0])

    @property
    def index(self) -> str:
        """Type of the indices."""
        return str(self.block.iter_vars[0].var.ty.dtype)

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return 2 * prod(int(extent) for extent in self.result.shape) * self.size**2 * int(self.data.shape[-1])


def convolution_of(module: tvm.IRModule) -> Convolution | None:
    """Return the convolution that the function ``main`` of ``module`` computes; None if it computes something else, or
    a convolution with strides, groups, other types or weights that are not constant, which the algorithm cannot
    compute."""
    found: list[SBlock] = []
    structural_walk(module["main"].body.block.body, (SBlock, found.append))
    names = [block.name_hint for block in found if _is_convolution(block)]
    if len(names) != 1:
        return None
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    inline_element_wise(schedule, _CPU, keep=names)
    main = schedule.mod["main"]
    blocks = blocks_of(schedule)
    block = next(each for each in blocks if each.name_hint == names[0])
    data, weight = (load.source for load in _operands(block))
    result = block.writes[0].source
    padding = next((each for each in blocks if each.writes[0].source.same_as(data)), None)
    epilogue = next((each for each in blocks if any(region.source.same_as(result) for region in each.reads)), None)
    constant = [main.params[int(at)] for at in (main.attrs or {}).get("layout_free_buffers", [])]
    if len(blocks) != 1 + (padding is not None) + (epilogue is not None):
        return None
    if not any(weight.same_as(each) for each in constant):
        return None
    if epilogue is not None and not is_element_wise(epilogue, result):
        return None
    return Convolution(main, block, padding, epilogue)


def _operands(block: SBlock) -> tuple[Any, Any]:
    """Return the two loads that a convolution multiplies."""
    product = block.body.value.b
    return product.a, product.b


def _is_convolution(block: SBlock) -> bool:
    """Return true for a convolution of stride 1 without groups or dilation, in float32, with weights of 3x3 or 5x5."""
    store = block.body
    kinds = [int(iteration.iter_type) for iteration in block.iter_vars]
    if kinds != [DATA_PARALLEL] * 4 + [REDUCTION] * 3 or block.init is None or not isinstance(store, BufferStore):
        return False
    added = store.value
    if not isinstance(added, Add) or not isinstance(added.b, Mul):
        return False
    factors = (added.b.a, added.b.b)
    if not all(isinstance(each, TensorLoad) and str(each.source.dtype) == FLOAT for each in factors):
        return False
    image, y, x, out, row, column, channel = axes_of(block)
    rows, columns = (int(block.iter_vars[at].dom.extent) for at in (4, 5))
    data, weight = ([*each.indices] for each in factors)
    return (
        rows == columns
        and rows in _SIZES
        and are_equal([*store.indices], [image, y, x, out])
        and are_equal(data, [image, y + row, x + column, channel])
        and are_equal(weight, [row, column, channel, out])
    )
