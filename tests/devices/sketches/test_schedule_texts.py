"""Schedules as texts."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import IntImm

from devices.sketches.schedule_texts import loop_nest, schedule_texts
from devices.sketches.spaces import ScheduleError


def matmul(rows: int = 8, columns: int = 32, summed: int = 16) -> tvm.IRModule:
    a, b = te.placeholder((rows, summed), name="a"), te.placeholder((summed, columns), name="b")
    k = te.reduce_axis((0, summed), name="k")
    product = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    function = te.create_prim_func([a, b, product])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def text_of(schedule: Schedule) -> str:
    return json.dumps(
        schedule.trace.as_json(), default=lambda value: int(value) if isinstance(value, IntImm) else str(value)
    )


def test_loops_of_a_kind_share_a_line_and_single_iterations_are_left_out() -> None:
    module = matmul()
    schedule = Schedule(module)
    block = schedule.get_sblock("product")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, [4, 2])
    j0, j1, j2 = schedule.split(j, [2, 1, 16])
    schedule.reorder(i0, j0, i1, j1, k, j2)
    schedule.parallel(i0)
    schedule.vectorize(j2)
    texts = schedule_texts(tvm.ir.save_json(module), text_of(schedule))
    assert texts.loops.splitlines() == [
        "parallel 4",
        "  for 2 × 2 × 16",
        "    vectorized 16",
        "      product: product from a, b",
    ]
    assert "T.vectorized(16)" in texts.script


def test_threads_of_a_gpu_are_named() -> None:
    schedule = Schedule(matmul())
    i, j, _ = schedule.get_loops(schedule.get_sblock("product"))
    schedule.bind(i, "blockIdx.x")
    schedule.bind(j, "threadIdx.x")
    lines = loop_nest(schedule.mod["main"].body).splitlines()
    assert [line.strip() for line in lines[:3]] == ["blockIdx.x 8", "threadIdx.x 32", "for 16"]


def test_a_trace_of_another_program_is_refused() -> None:
    schedule = Schedule(matmul())
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("product"))[0])
    trace = text_of(schedule).replace("product", "quotient")
    with pytest.raises(ScheduleError):
        schedule_texts(tvm.ir.save_json(matmul()), trace)
