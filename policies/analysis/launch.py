"""Resources that a CUDA kernel takes: blocks, threads and virtual threads, registers for sums, shared memory.

``n`` candidates; every vector has the shape ``(n,)``. The notation is that of :mod:`policies.analysis.quantities`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from fleet_tune.base.sketch import Access, Sketch, Statement
from policies.analysis.quantities import Nest, dimension_ranges, nest, product_of, touched_elements
from policies.arrays import Floats, Matrix

BOUND = ("blockIdx", "threadIdx", "vthread")


@dataclass(frozen=True)
class Launch:
    """Blocks of the grid, threads of a block, virtual threads of a thread; each is 1 if no loop is bound to it."""

    blocks: Floats
    threads: Floats
    vthreads: Floats


def launch(loops: Nest) -> Launch:
    """The launch of the kernel that a nest belongs to."""

    def bound(prefix: str) -> Floats:
        chosen = [loops.extents[at] for at, kind in enumerate(loops.kinds) if kind.startswith(prefix)]
        return product_of(chosen, loops.full(1.0))

    return Launch(bound("blockIdx"), bound("threadIdx") * loops.statement.warp, bound("vthread"))


def bound_depth(loops: Nest) -> int:
    """Depth just inside the innermost loop that is bound to blocks or threads."""
    return max((at + 1 for at, kind in enumerate(loops.kinds) if kind.startswith(BOUND)), default=0)


def accumulators(loops: Nest) -> Floats:
    """Sums that a thread holds at once: spatial iterations inside the bound loops, for all of its virtual threads.

    On tensor cores, the sums of a warp.
    """
    return loops.spatial_points(bound_depth(loops)) * launch(loops).vthreads


def block_inside(loops: Nest, depth: int) -> list[Floats]:
    """Iterations of each axis that all threads of a block together run inside a depth, ``A`` vectors.

    As :meth:`Nest.inside`, but loops bound to threads or virtual threads count as inside wherever they stand.
    """
    inside = list(loops.inside(depth))
    for at, kind in enumerate(loops.kinds[:depth]):
        if kind.startswith(("threadIdx", "vthread")):
            for axis in loops.moves(at):
                inside[axis] = inside[axis] * loops.extents[at]
    return inside


def shared_bytes(sketch: Sketch, matrix: Matrix, dtype: DTypeLike = np.float64) -> Floats:
    """Bytes of shared memory of a block.

    Every buffer in shared memory holds the region that one execution of its statement computes. Its rows are padded
    (:attr:`Access.row_align`), and a software pipeline keeps several copies (:attr:`Statement.versions`). All buffers
    are in one kernel and do not overlap. (On tensor cores TVM may let two overlap; then the result is an upper bound.)
    The few values through which TVM sums up across threads are not counted.
    """
    statements = sketch.statements
    main = nest(statements[0], matrix, dtype)
    total = main.full(0.0)
    for number, statement in enumerate(statements):
        for access in statement.accesses:
            if not access.write or access.scope != "shared":
                continue
            if statement.fixed_depth:
                inside = placed_inside(sketch, number, main)
            else:
                loops = main if number == 0 else nest(statement, matrix, dtype)
                inside = block_inside(loops, max(loops.compact_depth(statement.held_depth), _first_in_block(loops)))
            total = total + held_elements(statement, access, inside) * access.element_bytes * statement.versions
    return total


def held_elements(statement: Statement, access: Access, inside: Sequence[Floats]) -> Floats:
    """Elements of memory for the data that an access touches, with the padding of its rows."""
    elements = touched_elements(statement, access, inside)
    factor, offset = access.row_align
    if not factor:
        return elements
    row = touched_elements(statement, replace(access, shape=access.shape[-1:], index=access.index[-1:]), inside)
    return elements / row * (row + (offset - row) % factor)


def placed_inside(
    sketch: Sketch, number: int, main: Nest, depth: int | None = None, by_block: bool = False
) -> list[Floats]:
    """Iterations of each axis that one execution of a statement inside the main loops computes.

    A statement that writes shared memory is computed by all threads of a block together. For other statements the
    iterations are those of one thread, or of all threads with ``by_block``. ``depth``: number of loops of the ``main``
    nest around the statement; the default is the statement's ``fixed_depth``. Raise ValueError if it shares no buffer
    with the main statement, directly or through other statements.
    """
    statement = sketch.statements[number]
    at = main.compact_depth(statement.fixed_depth) if depth is None else depth
    together = by_block or any(access.write and access.scope == "shared" for access in statement.accesses)
    inside, before = block_inside(main, at) if together else main.inside(at), 0
    for following in _chain(sketch, number):
        inside, before = _handed_on(sketch.statements[before], sketch.statements[following], inside), following
    return [_rounded(statement, axis, size) for axis, size in enumerate(inside)]


def _rounded(statement: Statement, axis: int, size: Floats) -> Floats:
    """Round ``size`` up to whole vectors if a statement computes an axis in vectors of a fixed length."""
    extents = [loop.extent for loop in statement.loops if loop.axis == axis and loop.column is None and not loop.rest]
    step = prod(extents[1:])
    return size if step == 1 else np.ceil(size / step) * step


def _first_in_block(loops: Nest) -> int:
    """Depth of the first loop that is not over blocks."""
    return next((at for at, kind in enumerate(loops.kinds) if not kind.startswith("blockIdx")), loops.depth)


@lru_cache(maxsize=1024)
def _chain(sketch: Sketch, number: int) -> tuple[int, ...]:
    """Statements from the main one (left out) to ``number``, each of which shares a buffer with the next."""
    ways: dict[int, tuple[int, ...]] = {0: ()}
    waiting = [0]
    while waiting:
        at = waiting.pop(0)
        for following, statement in enumerate(sketch.statements):
            if following not in ways and _shared(sketch.statements[at], statement) is not None:
                ways[following] = (*ways[at], following)
                waiting.append(following)
    if number not in ways:
        raise ValueError(f"{sketch.statements[number].name} shares no buffer with the main statement")
    return ways[number]


def _shared(first: Statement, second: Statement) -> tuple[Access, Access] | None:
    """Accesses of two statements to a buffer that one of them writes and the other reads; None without such a
    buffer."""
    for mine in first.accesses:
        for its in second.accesses:
            if mine.buffer == its.buffer and mine.write != its.write:
                return mine, its
    return None


def _handed_on(first: Statement, second: Statement, inside: Sequence[Floats]) -> list[Floats]:
    """Iterations of the axes of ``second`` that cover the part of the shared buffer that ``first`` touches."""
    shared = _shared(first, second)
    if shared is None:
        raise ValueError(f"{first.name} and {second.name} share no buffer")
    mine, its = shared
    one = np.ones_like(inside[0])
    owners = [number for number, axis in enumerate(second.axes) for _ in axis.digits or (axis.extent,)]
    iterations = [one * axis.extent for axis in second.axes]
    for wanted, other in zip(dimension_ranges(first, mine, inside), its.index, strict=True):
        axes = {owners[j] for j, c in enumerate(other) if c}
        if len(axes) == 1:
            (axis,) = axes
            iterations[axis] = np.minimum(wanted, second.axes[axis].extent)
    return iterations
