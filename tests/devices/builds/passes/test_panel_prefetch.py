"""Prefetches of the next panel of weights: the same results, and a prefetch only where it pays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.sym import Analyzer
from tvm.tirx import BufferLoad, IntImm, Var
from tvm_ffi import structural_map, structural_walk

from devices.builds.passes import panel_prefetch
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.targets import parse_target, resolve_target

NATIVE = parse_target(resolve_target("native", 2))


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


def built(schedule: tvm.s_tir.Schedule) -> tuple[tvm.runtime.Module, int]:
    """The kernel, and the number of prefetches in its source."""
    use_kernel_passes()
    kernel = tvm.tirx.build(schedule.mod, target=NATIVE)
    return kernel, len(re.findall(r"call void @llvm\.prefetch", kernel.inspect_source("ll")))


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "block", "lanes", "panels", "parts", "has_prefetch"),
    [
        (64, 64, 32, 4, 32, 1, 1, True),  # 16 blocks, a line every 8 steps
        (32, 64, 32, 4, 32, 1, 1, True),  # 8 blocks, every 4 steps
        (64, 128, 32, 4, 32, 2, 1, True),  # two panels for each block
        (64, 64, 32, 4, 32, 1, 4, True),  # two loops over the terms
        (16, 64, 32, 4, 32, 1, 1, False),  # 4 blocks would prefetch every 2 steps
        (64, 64, 30, 4, 32, 1, 1, False),  # 30 terms are no multiple of 4
        (4, 64, 32, 4, 32, 1, 1, False),  # a panel is read once
    ],
)
def test_the_product_is_the_same_and_prefetches_where_the_blocks_are_many(
    rows: int, columns: int, terms: int, block: int, lanes: int, panels: int, parts: int, has_prefetch: bool
) -> None:
    kernel, prefetches = built(product(rows, columns, terms, block, lanes, panels, parts))
    assert bool(prefetches) is has_prefetch
    rng = np.random.default_rng(0)
    a = rng.random((rows, terms), dtype=np.float32)
    b = rng.random((columns // lanes, terms, lanes), dtype=np.float32)
    result = tvm.runtime.tensor(np.zeros((rows, columns), np.float32))
    kernel["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    expected = a @ b.transpose(1, 0, 2).reshape(terms, columns)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("rows", [64, 80, 400])
def test_all_blocks_together_prefetch_the_next_panel(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The places that are prefetched, for all values of the loops."""
    places: list[Any] = []

    def load(buffer: Any, indices: list[Any]) -> Any:
        places.append(indices[0])
        return BufferLoad(buffer, indices)

    monkeypatch.setattr(panel_prefetch, "BufferLoad", load)
    terms, lanes = 32, 32
    built(product(rows, 128, terms, 4, lanes))
    [place] = places
    variables: list[Any] = []
    structural_walk(place, [(Var, variables.append)])
    panel, block, part = dict.fromkeys(variables)  # in the order of the expression
    found = {
        value_of(place, {panel: 1, block: at, part: step}) for at in range(rows // 4) for step in range(terms // 8)
    }
    size = terms * lanes
    assert found == set(range(2 * size, 3 * size, 16))  # panel 2, while panel 1 is read; 16 floats are a line


def value_of(expression: Any, values: dict[Any, int]) -> int:
    def replaced(each: Any) -> Any:
        return IntImm("int32", values[each])

    return int(Analyzer().simplify(structural_map(expression, (Var, replaced))))


def test_an_accumulation_over_images_is_not_taken_for_a_panel() -> None:
    """Both operands change with the rows: nothing is read again."""
    a, b = te.placeholder((64, 32, 32), name="a"), te.placeholder((64, 32, 32), name="b")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((64, 32), lambda i, j: te.sum(a[i, k, j] * b[i, k, j], axis=k), name="c")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b, c]))
    sums = schedule.get_sblock("c")
    i, j, k = schedule.get_loops(sums)
    schedule.reorder(i, k, j)
    schedule.vectorize(j)
    schedule.decompose_reduction(sums, k)
    assert built(schedule)[1] == 0
