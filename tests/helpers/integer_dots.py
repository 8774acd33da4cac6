"""A kernel of products of bytes by one of the operators for whole numbers, and numbers for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import te
from tvm.s_tir import Schedule

from devices.sketches.byte_operators import IntegerDot

Numbers = npt.NDArray[Any]
ROWS = 64


def scheduled(dot: IntegerDot, groups: int, columns: int, lanes: int) -> tvm.IRModule:
    """Sums of ``(ROWS, groups)`` by ``(groups, columns)``, vectorised over so many columns at once."""
    a, b = te.placeholder((ROWS, groups), "int32", "a"), te.placeholder((groups, columns), "int32", "b")
    k = te.reduce_axis((0, groups), "k")
    c = te.compute((ROWS, columns), lambda i, j: te.sum(dot(a[i, k], b[k, j]), axis=k), "c")
    return vectorised(a, b, c, lanes)


def vectorised(a: te.Tensor, b: te.Tensor, c: te.Tensor, lanes: int) -> tvm.IRModule:
    """A kernel of the product ``c``, called so, of two matrices, with so many columns in a vector."""
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    schedule = Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock("c", "main")
    i, j, over = schedule.get_loops(block)
    outer, inner = schedule.split(j, [None, lanes])
    schedule.reorder(i, outer, over, inner)
    if lanes > 1:
        schedule.vectorize(inner)
    return schedule.mod


def operands(dot: IntegerDot, a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Numbers ``(ROWS, k)`` and ``(k, n)`` as 32-bit numbers that hold the terms of an operator each."""
    dtype = f"<i{dot.bits // 8}"
    packed = b.astype(dtype).reshape(-1, dot.terms, b.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(a.astype(dtype)).view("<i4"), np.ascontiguousarray(packed).view("<i4")[..., 0]


def ends(dot: IntegerDot, length: int, columns: int) -> tuple[Numbers, Numbers]:
    """Numbers at the ends of what an operator takes, ``(ROWS, length)`` and ``(length, columns)``: with the greatest
    and the least of all products in the first sums."""
    rng = np.random.default_rng(length)
    low, high = dot.least, dot.least + 255
    left = rng.choice([low, low + 1, low + 127, low + 128, high], (ROWS, length))
    right = rng.choice([-128, -127, -1, 0, 1, 127], (length, columns))
    left[0], left[1], right[:, 0], right[:, 1] = high, low, -128, 127
    return left, right
