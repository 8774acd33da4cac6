"""Sketches over fewer rows: the schedule that a trace becomes there is the one that the draft scores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule, Trace

from devices.describing.cache import DescriptionCache, TaskDescription
from devices.protocol import decode_task, encode_task
from devices.sketches.spaces import DesignSpace, ScheduleError, parse_module
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, FewerRows, Task
from fleet_tune.base.sketch import Sketch, Tile
from policies.analysis.fewer_rows import applied
from policies.space.sampling import is_valid, sample
from tests.helpers.programs import matmul, program_task

TARGET = resolve_target("native", threads=2)


def product(rows: int) -> list[te.Tensor]:
    *inputs, result = matmul(rows, 32, 48)
    return [*inputs, topi.nn.relu(result)]


def norms(rows: int) -> list[te.Tensor]:
    x = te.placeholder((rows, 32), name="x")
    return [x, topi.nn.softmax(x)]


def task_of(make: Any, most: int, *fewer: int) -> Task:
    task = program_task(make(most), TARGET, constants=(1,) if make is product else ())
    others = [program_task(make(rows), TARGET, constants=(1,) if make is product else ()) for rows in fewer]
    return replace(task, fewer_rows=tuple(FewerRows(each.workload.module, 1.5) for each in others))


def tiles_of(module: Any, trace: str) -> list[list[int]]:
    """The factors of all tiles of a trace, as TVM replays it."""
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    replayed = schedule.trace
    return [
        [int(factor) for factor in replayed.decisions[step]]
        for step in replayed.insts
        if step.kind.name == "SamplePerfectTile"
    ]


def tiles(sketch: Sketch, vector: Any) -> list[list[int]]:
    return [
        [int(factor) for factor in vector[at : at + decision.parts]]
        for decision, at in zip(sketch.decisions, sketch.offsets, strict=True)
        if isinstance(decision, Tile)
    ]


@pytest.mark.parametrize(("most", "fewer"), [(64, (8, 1)), (12, (6, 4))])
def test_a_schedule_becomes_what_is_scored(most: int, fewer: tuple[int, ...]) -> None:
    task = task_of(product, most, *fewer)
    space = DesignSpace(task)
    compared = 0
    for sketch in space.sketches:
        assert [each.calls for each in sketch.fewer_rows] == [1.5] * len(fewer), sketch.rule
        matrix = sample(sketch, 12, np.random.default_rng(sketch.index))
        for vector in matrix:
            candidate = Candidate(task.id, sketch.index, sketch.id, tuple(map(int, vector)))
            try:
                trace = space.schedule(candidate).trace
            except ScheduleError:
                continue
            for each, program in zip(sketch.fewer_rows, task.fewer_rows, strict=True):
                (there,) = applied(sketch, each.sketch, vector[None])
                assert is_valid(each.sketch, there[None]).all()
                try:
                    assert tiles_of(parse_module(program.module), trace) == tiles(each.sketch, there)
                except tvm.error.InternalError:
                    continue  # a schedule that does not fit: such a network has no such tile
                compared += 1
    assert compared > 20


def test_rows_of_a_norm_are_described_too() -> None:
    space = DesignSpace(task_of(norms, 64, 4))
    described = [sketch for sketch in space.sketches if sketch.fewer_rows]
    assert any(sketch.row_wise is not None for sketch in described)
    assert all(each.sketch.described for sketch in described for each in sketch.fewer_rows)
    assert not any(sketch.variants for sketch in described), "their combinations of places take seconds"


def test_a_kernel_that_a_trace_does_not_fit_leaves_the_sketch_alone() -> None:
    task = task_of(product, 64, 8)
    other = program_task(norms(8), TARGET)
    space = DesignSpace(replace(task, fewer_rows=(*task.fewer_rows, FewerRows(other.workload.module, 1.0))))
    assert all(sketch.described and not sketch.fewer_rows for sketch in space.sketches)


def test_they_are_sent_and_kept_with_the_task(tmp_path: Any) -> None:
    task = task_of(product, 64, 8)
    sent = decode_task(json.loads(json.dumps(encode_task(task))))
    assert sent.fewer_rows == task.fewer_rows
    cache = DescriptionCache(tmp_path)
    sketches = DesignSpace(sent).sketches
    cache.store(task, TaskDescription(sketches, ()))
    kept = cache.find(task)
    assert kept is not None
    assert kept.sketches == sketches
    assert cache.find(replace(task, fewer_rows=())) is None, "a network of fixed shapes scores them alone"
