"""Scheduled products for the tests of passes."""

from __future__ import annotations

import tvm
from tvm import te


def product(
    rows: int, columns: int, terms: int, block: int, lanes: int, panels: int = 1, parts: int = 1
) -> tvm.s_tir.Schedule:
    """``a @ b`` with packed ``b``, in blocks of rows: for each group of panels, for each block, for each panel."""
    a = te.placeholder((rows, terms), name="a")
    b = te.placeholder((columns // lanes, terms, lanes), name="b")
    k = te.reduce_axis((0, terms), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[j // lanes, k, j % lanes], axis=k), name="c")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b, c]))
    sums = schedule.get_sblock("c")
    result = schedule.cache_write(sums, 0, "local")
    i, j, k = schedule.get_loops(sums)
    blocks, row = schedule.split(i, [None, block])
    groups, panel, lane = schedule.split(j, [None, panels, lanes])
    outer, inner = schedule.split(k, [parts, None])
    schedule.reorder(groups, blocks, panel, outer, inner, row, lane)
    schedule.reverse_compute_at(result, panel)
    schedule.vectorize(schedule.get_loops(result)[-1])
    schedule.vectorize(lane)
    schedule.unroll(row)
    schedule.parallel(groups)
    schedule.decompose_reduction(sums, outer)
    return schedule
