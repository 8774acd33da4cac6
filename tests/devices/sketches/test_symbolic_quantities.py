"""Every quantity that is worked out from the symbolic description is that of the scheduled program, for any decisions.

The program's side is read from TensorIR by evaluating its indices (tests/helpers/lowered.py).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from devices.sketches.rules.row_wise import ROW_WISE
from fleet_tune.base.domain import Candidate
from fleet_tune.base.sketch import Access, Location, Sketch, Statement
from policies.analysis.launch import accumulators, placed_inside
from policies.analysis.quantities import (
    contiguous_run,
    enclosing_depth,
    footprint,
    loop_extents,
    moved_elements,
    nest,
    parallel_extent,
    touched_elements,
    vector_extent,
)
from policies.arrays import Matrix
from policies.space.sampling import sample
from tests.helpers.lowered import Placed, Touch, common_loops, placed_blocks
from tests.helpers.properties import examples
from tests.helpers.workloads import TARGETS, WORKLOADS, space, task

pytestmark = pytest.mark.timeout(300)  # so that it begins early: others wait for what begins last

CPU = ("avx512", "avx2")
CUDA = ("sm_90", "sm_87")
MOST_POINTS = 1 << 19

spaces = st.tuples(st.sampled_from(sorted(TARGETS)), st.sampled_from(sorted(WORKLOADS)))
draws = st.tuples(st.integers(0, 20), st.integers(0, 2**32 - 1))


def drawn(target: str, workload: str, draw: tuple[int, int]) -> tuple[Sketch, Matrix, Candidate]:
    """A described sketch with the statements of a random candidate, the candidate as a matrix, and itself."""
    sketches = [each for each in space(target, workload).sketches if each.statements]
    sketch = sketches[draw[0] % len(sketches)]
    rows = sample(sketch, 1, np.random.default_rng(draw[1]))
    vector = tuple(int(value) for value in rows[0])
    if sketch.variants:
        number = 0
        for decision, column in zip(sketch.decisions, sketch.offsets, strict=True):
            if isinstance(decision, Location):
                number = number * len(decision.locations) + vector[column]
        described = replace(sketch, statements=sketch.variants[sketch.variant_of[number]], variants=(), variant_of=())
    else:
        described = sketch
    return described, rows, Candidate(task(target, workload).id, sketch.index, sketch.id, vector)


def applied(target: str, workload: str, candidate: Candidate) -> dict[str, Placed]:
    return placed_blocks(space(target, workload).apply(candidate).mod["main"])


def listed(statement: Statement) -> bool:
    """Whether a statement lists all loops around it."""
    return statement.location_column is None and not statement.fixed_depth


def ends_of_real_loops(statement: Statement, rows: Matrix, real: list[int]) -> list[int]:
    """For every depth of the real loops the depth in the statement's; fails where the loops are others."""
    mine = [int(extent) for extent in loop_extents(statement, rows)[:, 0]]
    ends, at = [0], 0
    for extent in real:
        size = 1
        while size < extent:
            assert at < len(mine), f"{mine} are not {real}"
            size *= mine[at]
            at += 1
        assert size == extent, f"{mine} are not {real}"
        ends.append(at)
    assert all(extent == 1 for extent in mine[at:]), f"{mine} are not {real}"
    return ends


def accesses_of(block: Placed, access: Access) -> list[Touch]:
    """The block's accesses to the same buffer in the same direction. Of two buffers with one name the description calls
    the second another."""
    name = access.buffer.partition("#")[0]
    return [t for t in block.touches() if t.buffer.name == name and t.write == access.write]


def touched(block: Placed, access: Access, free: list[int], gap: int = 1024) -> list[NDArray[np.int64]]:
    """The distinct addresses of each access of the block to the same buffer in the same direction."""
    found = accesses_of(block, access)
    return [np.unique(block.addresses(touch, free, gap=gap)) for touch in found]


def fetches(block: Placed, access: Access, depth: int) -> list[int]:
    """How often an access goes to elements that it has not just touched, while the loops outside of a depth run.

    Of each iteration of those loops the elements touched inside are compared with those of the one before: an axis
    that is inside begins at another element each time where the iterations do not divide by its extent, yet touches
    the same ones.
    """
    iterations = np.repeat(np.arange(prod(block.extents[:depth])), prod(block.extents[depth:]))
    counts = []
    for touch in accesses_of(block, access):
        everywhere = list(range(len(block.loops)))
        executed = block.points(everywhere)[1]
        distinct, element = np.unique(block.addresses(touch, everywhere), return_inverse=True)
        turn = np.unique(iterations[executed], return_inverse=True)[1]
        touches = np.unique(turn * len(distinct) + element)
        fresh = touches[~np.isin(touches - len(distinct), touches, assume_unique=True)]
        counts.append(len(np.unique(fresh // len(distinct))))
    return counts


def gone(sketch: Sketch, blocks: dict[str, Placed]) -> set[str]:
    """Buffers of the statements that this candidate computes inline."""
    missing = [statement for statement in sketch.statements if statement.name not in blocks]
    assert all(statement.location_column is not None for statement in missing)
    return {access.buffer for statement in missing for access in statement.accesses if access.write}


def reads_from(reader: Placed, writer: Placed) -> bool:
    written = {touch.buffer.name for touch in writer.touches() if touch.write}
    return reader is not writer and any(t.buffer.name in written for t in reader.touches() if not t.write)


def has_window(access: Access) -> bool:
    """Whether a dimension is moved by several digits."""
    return any(sum(c != 0 for c in row) > 1 for row in access.index)


def rounded_up(statement: Statement, rows: Matrix) -> bool:
    """Whether the loops of an axis have more iterations than it: the surplus does nothing."""
    extents = loop_extents(statement, rows)[:, 0]
    sizes = [
        prod(extent for extent, loop in zip(extents, statement.loops, strict=True) if loop.axis == at)
        for at in range(len(statement.axes))
    ]
    return any(loop.rest for loop in statement.loops) or any(
        size > axis.extent for size, axis in zip(sizes, statement.axes, strict=True)
    )


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_every_sketch_is_described(target: str, workload: str) -> None:
    for sketch in space(target, workload).sketches:
        assert sketch.described, sketch.undescribed
        assert not sketch.undescribed
        assert bool(sketch.statements) != (sketch.row_wise is not None)


@examples(110)
@given(where=spaces, draw=draws)
def test_loops_and_footprints(where: tuple[str, str], draw: tuple[int, int]) -> None:
    """Extents, order and kinds of the loops of every statement that lists its own; what it touches inside each."""
    check_loops_and_footprints(where, draw)


@examples(8)
@given(draw=draws)
def test_a_softmax_of_attention(draw: tuple[int, int]) -> None:
    """Five blocks have places that depend on each other, in up to 720 combinations."""
    where = ("avx512", "attention-softmax")
    rules = [sketch.rule for sketch in space(*where).sketches if not sketch.statements]
    assert rules == [ROW_WISE]
    assert len(space(*where).sketches) == 10
    check_loops_and_footprints(where, draw)


def check_loops_and_footprints(where: tuple[str, str], draw: tuple[int, int]) -> None:
    sketch, rows, candidate = drawn(*where, draw)
    blocks = applied(*where, candidate)
    inlined = gone(sketch, blocks)
    for statement in sketch.statements:
        if not listed(statement):
            continue
        block = blocks[statement.name]
        ends = ends_of_real_loops(statement, rows, block.extents)
        extents = loop_extents(statement, rows)[:, 0]
        for kind, (start, end) in zip(block.kinds(), pairwise(ends), strict=True):
            named = {
                loop.kind
                for loop, extent in zip(statement.loops[start:end], extents[start:end], strict=True)
                if extent > 1
            }
            assert named <= {kind}
        loops = nest(statement, rows)
        for depth, end in enumerate(ends):
            free = list(range(depth, len(block.loops)))
            if prod(block.extents[depth:]) > MOST_POINTS:
                continue
            for access in statement.accesses:
                counted = [len(addresses) for addresses in touched(block, access, free)]
                if not counted and access.buffer in inlined:
                    continue
                assert footprint(loops, access)[loops.compact_depth(end), 0] in counted, (statement.name, access, depth)


@examples(60)
@given(where=spaces, draw=draws, cut=st.integers(0, 100))
@example(where=("sm_87", "scaled-rows"), draw=(0, 0), cut=1)
@example(where=("avx512", "softmax-heads"), draw=(12, 3601747118), cut=28)
def test_contiguous_runs_and_moved_elements(where: tuple[str, str], draw: tuple[int, int], cut: int) -> None:
    """At one depth of the main statement: what lies in a row in memory, and what comes into a cache that holds it."""
    sketch, rows, candidate = drawn(*where, draw)
    statement = sketch.statements[0]
    blocks = applied(*where, candidate)
    block, inlined = blocks[statement.name], gone(sketch, blocks)
    ends = ends_of_real_loops(statement, rows, block.extents)
    depth = cut % len(ends)
    loops = nest(statement, rows)
    compact = loops.compact_depth(ends[depth])
    inner = list(range(depth, len(block.loops)))
    for access in statement.accesses:
        if access.buffer in inlined:
            continue
        # The layout of registers and of what is packed is no matter.
        if prod(block.extents[depth:]) <= MOST_POINTS and not access.packed and access.scope != "local":
            runs = []
            for addresses in touched(block, access, inner, gap=0):
                gaps = np.flatnonzero(np.diff(addresses) != 1)
                runs.append(int(gaps[0]) + 1 if len(gaps) else len(addresses))
            assert contiguous_run(loops, access, compact)[0] in runs, (access, depth)
        if prod(block.extents) <= MOST_POINTS:
            size = footprint(loops, access)
            times = moved_elements(loops, size, np.array([compact]))[0] / size[compact, 0]
            counted = fetches(block, access, depth)
            # Neighbouring windows may touch the same elements; what a rounded rest has too many does nothing.
            bound_only = has_window(access) or rounded_up(statement, rows)
            assert times in counted or (bound_only and times >= min(counted)), (access, depth)


@examples(80)
@given(where=spaces, draw=draws)
def test_what_is_computed_inside_of_the_main_loops(where: tuple[str, str], draw: tuple[int, int]) -> None:
    """The region of a statement that is placed in the loops of the main one: stages in shared memory, sums that are
    written back, paddings whose place is sampled."""
    sketch, rows, candidate = drawn(*where, draw)
    blocks = applied(*where, candidate)
    main = nest(sketch.statements[0], rows)
    for number, statement in enumerate(sketch.statements):
        if listed(statement) or statement.name not in blocks:
            continue
        block = blocks[statement.name]
        outside = common_loops(block, blocks[sketch.statements[0].name])
        depth = int(enclosing_depth(sketch, main, statement, rows)[0])
        if statement.location_column is not None:
            assert (depth > 0) == (prod(block.extents[:outside]) > 1)
        # A stage that another one takes in piece by piece stands with it in a loop of its own.
        common = max([outside, *(common_loops(block, other) for other in blocks.values() if reads_from(other, block))])
        whole = [main.full(axis.extent) for axis in statement.axes]
        inside = placed_inside(sketch, number, main, depth) if depth > 0 else whole
        for access in statement.accesses:
            if access.write:
                counted = [len(each) for each in touched(block, access, list(range(common, len(block.loops))))]
                size = touched_elements(statement, access, inside)[0]
                assert size in counted, (statement.name, access)


@examples(60)
@given(target=st.sampled_from(CPU), workload=st.sampled_from(sorted(WORKLOADS)), draw=draws)
def test_parallel_and_vectorised_loops(target: str, workload: str, draw: tuple[int, int]) -> None:
    """After post-processing: the parallel loop around the main statement, and its vectorised one."""
    sketch, rows, candidate = drawn(target, workload, draw)
    statement = sketch.statements[0]
    blocks = placed_blocks(space(target, workload).schedule(candidate).module["main"])
    block = blocks.get(statement.name) or blocks[f"{statement.name}_update"]
    loops = nest(statement, rows)
    depths = [enclosing_depth(sketch, loops, other, rows) for other in sketch.statements[1:] if not listed(other)]
    fusible = np.min([np.where(depth > 0, depth, loops.depth) for depth in depths], axis=0) if depths else None
    for kind, mine in (("parallel", parallel_extent(loops, fusible)), ("vectorize", vector_extent(loops))):
        real = [extent for extent, each in zip(block.extents, block.kinds(), strict=True) if each == kind]
        assert prod(real) == mine[0], (kind, block.extents, block.kinds())


@examples(40)
@given(where=spaces, draw=draws)
def test_sums_held_in_registers(where: tuple[str, str], draw: tuple[int, int]) -> None:
    """Elements of the main statement's buffer in registers that a thread writes inside of the loops around it."""
    sketch, rows, candidate = drawn(*where, draw)
    statement = sketch.statements[0]
    sums = [access for access in statement.accesses if access.write and access.scope == "local"]
    if not sums:
        return
    block = applied(*where, candidate)[statement.name]
    loops = nest(statement, rows)
    kinds = block.kinds()
    ends = ends_of_real_loops(statement, rows, block.extents)
    if statement.accumulator_depth is not None and where[0] in CPU:
        mine = loops.spatial_points(loops.compact_depth(statement.accumulator_depth))
        free = [at for at in range(len(kinds)) if ends[at] >= statement.accumulator_depth]
    else:
        mine = accumulators(loops)
        free = [at for at, kind in enumerate(kinds) if not kind.startswith(("blockIdx", "threadIdx"))]
    assert mine[0] in [len(addresses) for addresses in touched(block, sums[0], free)]
