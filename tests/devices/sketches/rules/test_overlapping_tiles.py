"""The rule "overlapping-tiles": where it applies, what its kernels compute, and how their traces are replayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import te, topi
from tvm_ffi import structural_equal

from devices.sketches.rules.overlapping_tiles import OVERLAPPING_TILES, TILES, with_overlapping_tiles
from devices.sketches.spaces import (
    DesignSpace,
    Scheduled,
    ScheduleError,
    apply_trace,
    parse_module,
    replay,
    unscheduled,
)
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Sketch
from policies.space.sampling import sample
from tests.helpers.programs import program_task
from tests.helpers.scheduled import run
from tests.helpers.workloads import TARGETS

CPU = resolve_target("native", 2)


def _product(
    rows: int = 37, inner: int = 24, columns: int = 64, *, bias: bool = False, batch: int = 0, target: str = CPU
) -> Task:
    outer = (batch,) if batch else ()
    a = te.placeholder((*outer, rows, inner), name="a")
    b = te.placeholder((*outer, inner, columns), name="b")
    out = topi.nn.batch_matmul(a, b, transpose_b=False) if batch else topi.matmul(a, b)
    if batch:
        task = program_task((a, b, out), target)
        # No weights, whatever topi says of the second operand.
        main = parse_module(task.workload.module)["main"].with_attr("layout_free_buffers", [])
        return replace(task, workload=replace(task.workload, module=tvm.ir.save_json(tvm.IRModule({"main": main}))))
    if not bias:
        return program_task((a, b, out), target, constants=(1,))
    added = te.placeholder((columns,), name="bias")
    return program_task((a, b, added, topi.nn.relu(topi.add(out, added))), target, constants=(1, 2))


def _convolution(height: int = 37, width: int = 12) -> Task:
    data, weight = te.placeholder((1, height, width, 8), name="data"), te.placeholder((3, 3, 8, 16), name="weight")
    return program_task((data, weight, topi.nn.conv2d_nhwc(data, weight, 2, 1, 1)), CPU, constants=(1,))


def _element_wise() -> Task:
    x = te.placeholder((37, 64), name="x")
    return program_task((x, topi.nn.relu(x)), CPU)


def _sketches(task: Task) -> list[Sketch]:
    return [sketch for sketch in DesignSpace(task).sketches if sketch.rule == OVERLAPPING_TILES]


def _candidates(task: Task, sketch: Sketch, count: int) -> list[Candidate]:
    rows = sample(sketch, count, np.random.default_rng(sketch.index))
    return [Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row))) for row in rows]


def _scheduled(space: DesignSpace, candidate: Candidate) -> Scheduled | None:
    """The program of a candidate; None where TVM refuses it, as where a padding stands in the loops of the tiles."""
    try:
        return space.schedule(candidate)
    except ScheduleError:
        return None


def _inputs(task: Task) -> list[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(4)
    return [rng.standard_normal(spec.shape).astype(np.float32) for spec in unscheduled(task).args]


@pytest.mark.parametrize(
    "task",
    [
        _product(rows=40),  # tiles of 4, 5, 8 and more
        _product(rows=31),  # one tile
        _product(rows=129 * 4),
        _product(rows=40, columns=40),  # tiles of 8 and 40; a tenth would be computed twice
        _product(target=resolve_target(TARGETS["sm_90"])),
        _element_wise(),
    ],
    ids=["40", "31", "516", "40 columns", "gpu", "no reduction"],
)
def test_what_schedules_can_cut_has_no_such_sketch(task: Task) -> None:
    assert _sketches(task) == []


def test_the_fewest_rows_are_computed_twice() -> None:
    sketches = _sketches(_product(rows=197))
    # 18 tiles of 11 are 198 rows, as 22 of 9 and 33 of 6 are; 18 has the most divisors.
    assert [f"[[0, {size}]]" in sketch.trace_text for sketch, size in zip(sketches, (11, 6), strict=True)] == [True] * 2
    assert TILES in sketches[0].trace_text


KERNELS = {
    "rows": _product(),
    "epilogue": _product(bias=True),
    "rows and columns": _product(rows=37, columns=41, batch=3),
    "columns": _product(rows=8, columns=41, batch=2),
    "weights": _product(rows=8, columns=41),
    "parts of vectors": _product(rows=37, columns=200, bias=True),
    "convolution": _convolution(height=73),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compute_the_same(name: str) -> None:
    task = KERNELS[name]
    space, inputs = DesignSpace(task), _inputs(task)
    expected = run(unscheduled(task), inputs, CPU)
    sketches = _sketches(task)
    assert sketches
    for sketch in sketches:
        assert sketch.undescribed == ""
        scheduled = [each for candidate in _candidates(task, sketch, 8) if (each := _scheduled(space, candidate))]
        assert scheduled
        for each in scheduled[:3]:
            outputs = run(each, inputs, CPU)
            np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-4, atol=1e-4)


def test_a_stored_trace_gives_the_same_program_again() -> None:
    task = _product(bias=True)
    space, module = DesignSpace(task), parse_module(task.workload.module)
    for sketch in _sketches(task):
        (candidate,) = _candidates(task, sketch, 1)
        scheduled = space.schedule(candidate)
        assert structural_equal(replay(task.workload.module, scheduled.trace).module, scheduled.module)
        in_network = apply_trace(module, scheduled.trace)["main"]
        assert [list(each.shape) for each in in_network.params] == [list(each.shape) for each in module["main"].params]
        with pytest.raises(ScheduleError, match="no product with such an axis"):
            replay(_product(rows=40, bias=True).workload.module, scheduled.trace)


def test_an_axis_that_is_shorter_than_its_tiles_has_none() -> None:
    """As where a trace of more rows is applied to fewer: the tile would begin before the axis."""
    tiling = ((0, 8), (1, 16))
    assert with_overlapping_tiles(parse_module(_product(37, columns=20).workload.module), tiling) is not None
    assert with_overlapping_tiles(parse_module(_product(37, columns=10).workload.module), tiling) is None


def test_the_draft_counts_what_is_computed_twice() -> None:
    (sketch, _) = _sketches(_product(rows=197, inner=24, columns=64))
    assert sketch.statements[0].operations == 2 * 18 * 11 * 24 * 64
