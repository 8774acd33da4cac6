"""The symbolic sketch says what the scheduled program does, for any decisions."""

from __future__ import annotations

import re
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, topi
from tvm.s_tir import Schedule

from devices.sketches.byte_operators import DOT4
from devices.sketches.description import location_combinations
from devices.sketches.description.accesses import block_facts, block_paths
from devices.sketches.half_operators import dot2
from devices.sketches.spaces import DesignSpace, parse_module
from devices.sketches.symbolic import describe
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Axis, Choice, Location, Sketch, Statement, Tile
from policies.analysis.quantities import touched_elements
from tests.helpers.programs import program_task
from tests.helpers.properties import examples

TARGET = resolve_target("native", threads=2)
CUDA = resolve_target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)


def _task(*tensors: te.Tensor, target: str = TARGET) -> Task:
    return program_task(tensors, target, constants=(1,) if len(tensors) > 2 else ())


def _conv(groups: int = 1, target: str = TARGET) -> Task:
    data = te.placeholder((1, 12, 12, 32), name="data")
    weight = te.placeholder((3, 3, 32 // groups, 32), name="weight")
    return _task(data, weight, topi.nn.relu(topi.nn.conv(data, weight, 1, 1, 1, groups, "NHWC", "HWIO")), target=target)


def _matmul(rows: int, target: str = TARGET) -> Task:
    a, b = te.placeholder((rows, 64), name="a"), te.placeholder((64, 48), name="b")
    return _task(a, b, topi.matmul(a, b), target=target)


TASKS = {"conv": _conv(), "depthwise": _conv(32), "matmul": _matmul(36), "dense": _matmul(1)}


@cache
def _space(name: str) -> DesignSpace:
    return DesignSpace(TASKS[name])


def _vector(sketch: Sketch, rng: np.random.Generator) -> tuple[int, ...]:
    vector: list[int] = []
    for decision in sketch.decisions:
        if isinstance(decision, Tile):
            factors = [0]
            while not 0 < factors[-1] <= decision.innermost_limit:
                rest, factors = decision.extent, []
                for _ in range(decision.parts - 1):
                    factors.append(int(rng.choice([n for n in range(1, rest + 1) if rest % n == 0])))
                    rest //= factors[-1]
                factors.append(rest)
            vector += factors
        else:
            options = decision.values if isinstance(decision, Choice) else decision.locations
            vector.append(int(rng.integers(len(options))))
    return tuple(vector)


def _real_loops(schedule: Schedule, block: str) -> list[tuple[int, str]]:
    kinds = ("serial", "parallel", "vectorize", "unroll", "thread")
    loops = [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock(block, "main"))]
    return [(int(loop.extent), kinds[int(loop.kind)]) for loop in loops]


def _extent(statement: Statement, at: int, vector: tuple[int, ...]) -> int:
    loop = statement.loops[at]
    return loop.extent if loop.column is None else vector[loop.column]


def _described_loops(statement: Statement, vector: tuple[int, ...]) -> list[tuple[int, str]]:
    """Loops as the schedule has them: the parallel ones are fused into one."""
    loops: list[tuple[int, str]] = []
    for at, loop in enumerate(statement.loops):
        extent = _extent(statement, at, vector)
        if loop.kind == "parallel" and loops and loops[-1][1] == "parallel":
            loops[-1] = (loops[-1][0] * extent, "parallel")
        else:
            loops.append((extent, loop.kind))
    return loops


@examples(60)
@given(name=st.sampled_from(sorted(TASKS)), choice=st.integers(0, 10), seed=st.integers(0, 2**32 - 1))
def test_loops_are_those_of_the_scheduled_program(name: str, choice: int, seed: int) -> None:
    space = _space(name)
    sketch = space.sketches[choice % len(space.sketches)]
    vector = _vector(sketch, np.random.default_rng(seed))
    schedule = space.apply(Candidate(TASKS[name].id, sketch.index, sketch.id, vector))
    main = sketch.statements[0]
    assert _described_loops(main, vector) == _real_loops(schedule, main.name)
    for index, axis in enumerate(main.axes):
        assert (
            prod(_extent(main, at, vector) for at, loop in enumerate(main.loops) if loop.axis == index) == axis.extent
        )


@examples(40)
@given(choice=st.integers(0, 10), seed=st.integers(0, 2**32 - 1))
def test_post_processing_vectorises_and_parallelises_what_the_limits_say(choice: int, seed: int) -> None:
    """For sketches that leave it to the post-processors; the epilogue in a nest of its own never ends the fusion."""
    space = _space("matmul")
    sketches = [s for s in space.sketches if s.statements[0].parallel_limit and len(s.statements) == 1]
    assert sketches
    sketch = sketches[choice % len(sketches)]
    vector = _vector(sketch, np.random.default_rng(seed))
    main = sketch.statements[0]
    scheduled = space.schedule(Candidate(TASKS["matmul"].id, sketch.index, sketch.id, vector))
    text = scheduled.module.script()
    extents = [_extent(main, at, vector) for at in range(len(main.loops))]
    fused, outer = 1, 0
    for loop, extent in zip(main.loops, extents, strict=True):
        if main.axes[loop.axis].reduction or fused > main.parallel_limit:
            break
        fused, outer = fused * extent, outer + 1
    if fused > 1:
        assert re.search(rf"in T\.parallel\({fused}[,)]", text)
    last = extents[-1]
    if 1 < last <= main.vectorize_limit:
        assert "T.vectorized(" in text


def test_every_sketch_of_the_common_operators_is_described() -> None:
    for name in TASKS:
        for sketch in _space(name).sketches:
            assert sketch.statements, f"{name}: {sketch.rule}: {sketch.undescribed}"


@pytest.mark.parametrize(
    ("kind", "operations", "arithmetic"),
    [
        ("float32", 2, "float32"),
        ("bytes by four", 2, "int8"),
        ("pairs", 2, "bfloat16"),
        ("bytes", 2, "float32"),
        ("looked up", 0, "float32"),
    ],
)
def test_operations_are_counted_with_what_they_are_on(kind: str, operations: int, arithmetic: str) -> None:
    dtype = {"float32": "float32", "bytes by four": "int32", "pairs": "int32"}.get(kind, "uint8")
    a, k = te.placeholder((8, 16), dtype, name="a"), te.reduce_axis((0, 16), name="k")

    def term(i: Any) -> Any:
        if kind == "bytes by four":
            return DOT4(a[i, k], a[i, k])
        if kind == "pairs":
            return dot2(a[i, k], a[i, k])
        if kind == "bytes":
            return a[i, k].astype("int32") * a[i, k].astype("int32")
        return a[i, k] * a[i, k]

    if kind == "looked up":
        result = te.compute((8, 16), lambda i, j: a[a[i, 0].astype("int32") * 1 + 1, j], name="result")
    else:
        result = te.compute((8,), lambda i: te.sum(term(i), axis=k), name="result")
    function = te.create_prim_func([a, result])
    facts = block_facts(function, block_paths(function)["result"])
    assert facts is not None
    assert (facts.flop_per_point, facts.arithmetic) == (operations, arithmetic)


def test_a_convolution_described_by_hand() -> None:
    sketch = _space("conv").sketches[0]
    assert sketch.rule == "register-blocked"
    main, *others = sketch.statements
    assert main.axes == (
        Axis("v_nn", 1, False),
        Axis("v_yy", 12, False),
        Axis("v_xx", 12, False),
        Axis("v_ff", 32, False),
        Axis("v_ry", 3, True),
        Axis("v_rx", 3, True),
        Axis("v_rc", 32, True),
    )
    assert main.flop_per_point == 2
    # parallel: batch, channels, rows, columns; then the middle tiles; the sums are kept over all that is inside.
    assert [loop.kind for loop in main.loops] == ["parallel"] * 4 + ["serial"] * 9 + ["unroll", "unroll", "vectorize"]
    assert main.accumulator_depth == 7
    reads = {access.buffer: access for access in main.accesses if not access.write}
    assert reads["weight"].packed
    assert reads["weight"].index == (
        (0, 0, 0, 0, 1, 0, 0),
        (0, 0, 0, 0, 0, 1, 0),
        (0, 0, 0, 0, 0, 0, 1),
        (0, 0, 0, 1, 0, 0, 0),
    )
    padded = next(access for buffer, access in reads.items() if buffer.startswith("pad"))
    assert padded.index[1] == (0, 1, 0, 0, 1, 0, 0)
    (written,) = [access for access in main.accesses if access.write]
    assert written.scope == "local"
    padding = next(s for s in others if any(a.write and a.buffer == padded.buffer for a in s.accesses))
    epilogue = next(s for s in others if s is not padding)
    (location,) = [d for d in sketch.decisions if isinstance(d, Location)]
    assert padding.location_column == sketch.offsets[sketch.decisions.index(location)]
    # At the root, or inside the fused parallel loop (the statement's loops 0 to 3), or a middle loop.
    assert location.locations == (-1, 3, 4, 5, 6)
    assert epilogue.fixed_depth == 7


def test_threads_of_a_gpu() -> None:
    space = DesignSpace(_matmul(64, CUDA))
    sketch = next(s for s in space.sketches if s.rule == "multi-level-tiling")
    kinds = [loop.kind for loop in sketch.statements[0].loops]
    assert {"blockIdx.x", "threadIdx.x", "vthread"} <= set(kinds)
    shared = {access.buffer for access in sketch.statements[0].accesses if access.scope == "shared"}
    assert len(shared) == 2


def test_what_is_not_interpreted_is_said() -> None:
    fresh = Schedule(parse_module(_matmul(64).workload.module))
    schedule = fresh.copy()
    block = schedule.get_sblock("T_matmul", "main")
    schedule.add_unit_loop(block)
    known = describe(fresh, schedule.trace)
    assert not known.statements
    assert "AddUnitLoop" in known.undescribed


def test_places_that_depend_on_each_other_are_variants() -> None:
    data = te.placeholder((16, 64), name="data")
    space = DesignSpace(_task(data, topi.nn.softmax(data)))
    sketch = next(s for s in space.sketches if s.rule == "loops")
    places = [d for d in sketch.decisions if isinstance(d, Location)]
    assert len(places) == 3
    assert len(sketch.variant_of) == prod(len(place.locations) for place in places)
    assert set(sketch.variant_of) == set(range(len(sketch.variants)))
    assert sketch.statements == sketch.variants[0]
    number = 0
    for place in places:  # all in the loop over the rows
        number = number * len(place.locations) + place.locations.index(0)
    main, *others = sketch.variants[sketch.variant_of[number]]
    found = {statement.name: statement for statement in others}
    assert main.name == "T_softmax_exp"
    # The loop over the rows is the main statement's own, what it computes there follows; no loop fuses beyond it.
    assert [(loop.axis, loop.extent, loop.rest) for loop in main.loops] == [(0, 16, False), (0, 0, True), (1, 0, True)]
    assert main.fusible == found["T_softmax_norm"].fusible == 1
    assert found["T_softmax_maxelem"].fixed_depth == 1
    assert found["T_softmax_expsum"].loops == main.loops


@pytest.mark.parametrize(("limit", "reason"), [("MAX_COMBINATIONS", "combinations"), ("MAX_STEPS", "nests")])
def test_too_many_places_are_said(limit: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_combinations, limit, 10)
    data = te.placeholder((16, 64), name="data")
    sketches = DesignSpace(_task(data, topi.nn.softmax(data))).sketches
    sketch = next(s for s in sketches if s.rule == "loops")
    assert not sketch.statements
    assert not sketch.variants
    assert not sketch.variant_of
    assert reason in sketch.undescribed
    assert "10" in sketch.undescribed


def test_two_buffers_of_one_name_are_told_apart() -> None:
    data = te.placeholder((16, 64), name="data")
    sketch = next(s for s in DesignSpace(_task(data, topi.nn.log_softmax(data))).sketches if s.rule == "loops")
    accesses = {access for statements in sketch.variants for s in statements for access in s.accesses}
    dimensions: dict[str, set[int]] = {}
    for access in accesses:
        dimensions.setdefault(access.buffer, set()).add(len(access.shape))
    assert {name.partition("#")[0] for name in dimensions} >= {"compute"}
    assert len([name for name in dimensions if name.startswith("compute")]) == 2
    assert all(len(found) == 1 for found in dimensions.values())


def test_a_look_up_touches_a_row_for_each_index() -> None:
    table, ids = te.placeholder((1000, 64), name="table"), te.placeholder((2, 10), "int32", name="ids")
    copied, sketch = DesignSpace(_task(table, ids, topi.take(table, ids, axis=0, mode="clip"))).sketches
    assert (copied.rule, sketch.rule) == ("row-copies", "loops")
    (main,) = sketch.statements
    accesses = {access.buffer: access for access in main.accesses}
    # Twenty rows of a thousand, as far apart as they can be; the ids themselves are read in order.
    assert accesses["table"].index == ((500, 50, 0), (0, 0, 1))
    assert accesses["ids"].index == ((1, 0, 0), (0, 1, 0))
    extents = [np.array([float(axis.extent)]) for axis in main.axes]
    assert touched_elements(main, accesses["table"], extents) == [20 * 64]


def test_windows_of_different_sizes_are_not_described() -> None:
    data = te.placeholder((1, 8, 7, 7), name="data")
    sketches = DesignSpace(_task(data, topi.nn.adaptive_pool(data, (3, 3), "avg"))).sketches
    assert sketches
    for sketch in sketches:
        assert not sketch.statements
        assert "depends on other loops" in sketch.undescribed


def test_partial_sums_of_a_reduction() -> None:
    data = te.placeholder((4, 4096), name="data")
    space = DesignSpace(_task(data, topi.sum(data, axis=1)))
    split_columns = set()
    for sketch in [s for s in space.sketches if s.rule == "rfactor"]:
        partial, final = sketch.statements
        assert [axis.reduction for axis in partial.axes] == [False, True, False]
        (summed,) = [loop.column for loop in partial.loops if loop.partial == 2]
        split_columns.add(summed)
        # The final sum runs over as many partial ones as the tile says.
        assert [loop.column for loop in final.loops if final.axes[loop.axis].reduction] == [summed]
        (buffer,) = [access for access in partial.accesses if access.write]
        assert buffer.shape == (4, 4096)
        assert buffer.index == ((1, 0, 0), (0, 0, 1))
    # One sketch sums the outer part of the split loop first, one the inner; which comes first is MetaSchedule's affair.
    assert split_columns == {0, 1}
