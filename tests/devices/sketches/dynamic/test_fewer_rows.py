"""Sketches over fewer rows: the schedule that a trace becomes there is the one that the draft scores."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from tvm import te, topi
from tvm.s_tir import Schedule, Trace

from devices.describing.cache import DescriptionCache, TaskDescription
from devices.protocol import decode_task, encode_task
from devices.sketches import fewer_rows
from devices.sketches.dynamic.applied_schedule import AppliedSchedule, fitting_factors
from devices.sketches.generation import REFUSALS
from devices.sketches.rules.register_blocked import REGISTER_BLOCKED
from devices.sketches.spaces import DesignSpace, ScheduleError, parse_module
from devices.sketches.symbolic import describe
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, FewerRows, Task
from fleet_tune.base.sketch import Sketch, Tile
from policies.analysis.cpu.fewer_rows import applied
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


def tiles_of(schedule: Schedule) -> list[list[int]]:
    """The factors of all tiles of a schedule."""
    decisions = schedule.trace.decisions
    steps = [step for step in schedule.trace.insts if step.kind.name == "SamplePerfectTile"]
    return [[int(factor) for factor in decisions[step]] for step in steps]


def tiles(sketch: Sketch, vector: Any) -> list[list[int]]:
    return [
        [int(factor) for factor in vector[at : at + decision.parts]]
        for decision, at in zip(sketch.decisions, sketch.offsets, strict=True)
        if isinstance(decision, Tile)
    ]


@pytest.mark.parametrize(
    ("factors", "extent", "fitting"),
    [
        ([8, 8], 8, [1, 8]),
        ([8, 8], 28, [4, 7]),
        ([1, 8, 8], 28, [1, 4, 7]),
        ([8, 1, 8], 28, [4, 1, 7]),
        ([2, 4, 8], 4, [1, 1, 4]),
        ([2, 4, 2, 4], 16, [1, 2, 2, 4]),
        ([2, 4, 2, 4], 28, [1, 7, 1, 4]),  # 4, 4 and 28 rows inside, for 4, 8 and 32
        ([2, 4, 2, 4], 56, [1, 7, 2, 4]),  # 4, 8 and 56
        ([4, 4, 4], 56, [2, 7, 4]),  # 4 and 28, for 4 and 16
        ([2, 16, 2], 6, [1, 3, 2]),
        ([64, 1], 7, [7, 1]),
        ([1, 64], 13, [1, 13]),
        ([8, 8], 13, [13, 1]),
    ],
)
def test_factors_for_another_extent_by_hand(factors: list[int], extent: int, fitting: list[int]) -> None:
    assert fitting_factors(factors, extent) == fitting


def test_the_search_and_the_schedule_fit_factors_alike() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        factors = [int(each) for each in rng.choice([1, 2, 3, 4, 7, 8, 16], size=int(rng.integers(2, 5)))]
        extent = int(rng.integers(1, 129))
        sketch, other = (of_one_tile(each, len(factors)) for each in (prod(factors) * 128 + 1, extent))
        scored = applied(sketch, other, np.array([factors]))[0]
        assert scored.tolist() == fitting_factors(factors, extent)


def of_one_tile(extent: int, parts: int) -> Sketch:
    return Sketch(0, "test", "test", (Tile(extent, parts, extent),), ())


@pytest.mark.parametrize(("most", "fewer"), [(64, (28, 8, 1)), (12, (6, 4))])
def test_a_schedule_becomes_what_is_scored(most: int, fewer: tuple[int, ...]) -> None:
    task = task_of(product, most, *fewer)
    space = DesignSpace(task)
    compared = 0
    for sketch in space.sketches:
        assert [each.work for each in sketch.fewer_rows] == [1.5] * len(fewer), sketch.rule
        matrix = sample(sketch, 12, np.random.default_rng(sketch.index))
        for vector in matrix:
            candidate = Candidate(task.id, sketch.index, sketch.id, tuple(map(int, vector)))
            try:
                trace = space.schedule(candidate).trace
            except ScheduleError:
                continue
            schedule = AppliedSchedule(parse_module(task.workload.module), trace)
            for each, program in zip(sketch.fewer_rows, task.fewer_rows, strict=True):
                (there,) = applied(sketch, each.sketch, vector[None])
                assert is_valid(each.sketch, there[None]).all()
                with contextlib.suppress(ScheduleError, *REFUSALS):  # where it does not fit, there is no such tile
                    assert tiles_of(schedule.schedule(parse_module(program.module))) == tiles(each.sketch, there)
                    compared += 1
    assert compared > 20


@pytest.mark.parametrize(
    ("inner", "rows", "must_fill", "fits"),
    [(8, 28, True, True), (8, 6, True, True), (4, 28, True, True), (4, 14, True, False), (4, 14, False, True)],
)
def test_a_tile_in_registers_that_gets_much_smaller_does_not_fit_where_others_serve(
    inner: int, rows: int, must_fill: bool, fits: bool
) -> None:
    task = task_of(product, 64)
    space = DesignSpace(task)
    sketch = next(each for each in space.sketches if each.rule == REGISTER_BLOCKED)
    decisions = (64 // inner, 1, inner, 3, 1, 16)
    assert is_valid(sketch, np.array([decisions]))[0]
    trace = space.schedule(Candidate(task.id, sketch.index, sketch.id, decisions)).trace
    schedule = AppliedSchedule(parse_module(task.workload.module), trace)
    assert (schedule.of(parse_module(task_of(product, rows).workload.module), must_fill) is not None) == fits


def test_a_kernel_that_a_trace_does_not_fit_leaves_the_sketch_alone() -> None:
    task = task_of(product, 64, 8)
    other = program_task(norms(8), TARGET)
    space = DesignSpace(replace(task, fewer_rows=(*task.fewer_rows, FewerRows(other.workload.module, 1.0))))
    assert all(sketch.described and not sketch.fewer_rows for sketch in space.sketches)


def test_what_is_drawn_for_fewer_rows_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[str]] = []

    def described(fresh: Schedule, trace: Trace) -> Any:
        drawn.append([str(trace.decisions[step]) for step in trace.insts if step in trace.decisions])
        return describe(fresh, trace)

    space = DesignSpace(task_of(product, 64, 48))
    monkeypatch.setattr(fewer_rows, "describe", described)
    at = next(each.index for each in space.undescribed if each.rule == REGISTER_BLOCKED)
    for _ in range(4):
        space.described(at)
    assert drawn == [drawn[0]] * 4


def test_who_only_schedules_reads_no_kernel_of_fewer_rows() -> None:
    task = replace(task_of(product, 64), fewer_rows=(FewerRows("no program", 1.0),))
    space = DesignSpace(task)
    sketch = space.undescribed[0]
    decisions = sample(sketch, 1, np.random.default_rng(0))[0]
    assert space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(map(int, decisions)))).trace


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
    assert all(each.fewer_rows for each in kept.sketches)
    assert cache.find(task_of(product, 64, 4)) is None


def test_a_task_of_a_store_of_records_finds_the_sketches_of_the_most_rows(tmp_path: Any) -> None:
    """Which has no fewer rows, whatever the network had that it was tuned for."""
    task = task_of(product, 64, 8)
    alone, cache = replace(task, fewer_rows=()), DescriptionCache(tmp_path)
    cache.store(task, TaskDescription(DesignSpace(task).sketches, (("rule", "reason"),)))
    assert cache.find(alone) == TaskDescription(DesignSpace(alone).sketches, (("rule", "reason"),))
    other = task_of(product, 32)
    cache.store(other, TaskDescription((), (("", "its own"),)))
    cache.store(replace(other, fewer_rows=task.fewer_rows), TaskDescription(()))
    assert cache.find(other) == TaskDescription((), (("", "its own"),)), "what was described by itself stays"
