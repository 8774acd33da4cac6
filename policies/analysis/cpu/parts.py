"""Parts of the CPU model: the inner loop's quantities, statements beside the main one, and small formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import INLINE_LOCATION, Access, Statement
from policies.analysis import symbols as pruner
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.quantities import Ints, Nest, footprint, touched_elements
from policies.arrays import Floats

LINE_BYTES = pruner.MEMORY_LINE_BYTES["cpu"]


@dataclass(frozen=True)
class Inner:
    """The register-blocked inner loop of a statement; every field ``(n,)``.

    ``vector``: iterations of the vectorised loop, in ``vectors`` registers. ``accumulators``, ``needed``: vector
    registers of the sums, and with the operands. ``step_operations``: vector operations of one reduction step, or of
    all that are unrolled together.
    ``loads``, ``stores``, ``cycles``: of one vector operation. ``unrolled``: straight-line vector operations.
    ``compiled_row``: iterations of the loop around the sums, where the compiler vectorises that; else 1.
    """

    vector: Floats
    vectors: Floats
    accumulators: Floats
    needed: Floats
    step_operations: Floats
    loads: Floats
    stores: Floats
    cycles: Floats
    unrolled: Floats
    compiled_row: Floats


@dataclass(frozen=True)
class RegisterTile:
    """What the innermost loops work on; every field ``(n,)``, operations and registers counted in vectors.

    ``operations``: of one step of the reduction, or of all that are unrolled together. ``accumulators``: sums, each
    over ``reduced`` steps. ``operands``: registers of what is read. ``loads``: of one operation.
    """

    vector: Floats
    vectors: Floats
    operations: Floats
    accumulators: Floats
    reduced: Floats
    operands: Floats
    loads: Floats


def choose(where: NDArray[np.bool_], first: RegisterTile, second: RegisterTile) -> RegisterTile:
    return RegisterTile(
        *(np.where(where, one, other) for one, other in zip(vars(first).values(), vars(second).values(), strict=True))
    )


@dataclass(frozen=True)
class Beside:
    """A statement beside the main one.

    ``alone``: the nest of its own loops, of one candidate where no decision changes them. ``depth`` (n,): how many of
    the main statement's loops enclose it, -2 where it is inlined; ``fixed``: that number where it is the same for all.
    ``points``: its iterations in the whole program. ``reduced``: how many of them each element sums up.
    """

    statement: Statement
    alone: Nest
    depth: Ints
    fixed: int | None
    points: Floats
    reduced: Floats

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether it stands in a loop of the main statement."""
        return self.depth > 0

    @property
    def inlined(self) -> NDArray[np.bool_]:
        return np.asarray(self.depth == INLINE_LOCATION)


def footprints(loops: Nest) -> list[Floats]:
    """Footprint of every access of a statement (see :func:`policies.analysis.quantities.footprint`), equal ones in one
    array."""
    by_access: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], Floats] = {}
    touched = []
    for access in loops.statement.accesses:
        key = (access.shape, access.index)
        if key not in by_access:
            by_access[key] = footprint(loops, access)
        touched.append(by_access[key])
    return touched


def step_depths(loops: Nest) -> Ints:
    """Depth just inside the innermost reduction loop of more than one iteration, ``(n,)``; 0 without one."""
    step = np.zeros(loops.count, dtype=np.int64)
    for at, reduces in enumerate(loops.reduction):
        if reduces:
            step[loops.extents[at] > 1] = at + 1
    return step


def innermost_reduction(loops: Nest, step: Ints) -> Floats:
    """Iterations of the reduction loops next to each other that end at the innermost one, ``(n,)``.

    ``step`` (n,): of :func:`step_depths`. Loops of one iteration are none.
    """
    reduced = loops.full(1.0)
    next_to = np.ones(loops.count, dtype=bool)
    for at in reversed(range(loops.step_depth)):
        if loops.reduction[at]:
            reduced = reduced * np.where(next_to, loops.extents[at], 1.0)
        else:
            next_to &= (loops.extents[at] == 1.0) | (at >= step)
    return reduced


def spatial_within(loops: Nest) -> Floats:
    """Iterations of spatial loops inside each depth, ``(L + 1, n)``."""
    spatial = np.empty_like(loops.within)
    spatial[-1] = 1.0
    for at in reversed(range(loops.depth)):
        if loops.reduction[at]:
            spatial[at] = spatial[at + 1]
        else:
            np.multiply(spatial[at + 1], loops.extents[at], out=spatial[at])
    return spatial


def elements_along(loops: Nest, access: Access, axis: int, vector: Floats) -> Floats:
    """Elements of an access that a vector of so many iterations of an axis has, ``(n,)``."""
    one = loops.full(1.0)
    along = [vector if at == axis else one for at in range(len(loops.statement.axes))]
    return touched_elements(loops.statement, access, along)


def parallel_depth(loops: Nest) -> int:
    """Depth inside of the loops that may run in parallel, of which each iteration is a call of its own."""
    depth = 1 if loops.statement.parallel_limit and loops.depth else 0
    return max([depth, *(at + 1 for at, kind in enumerate(loops.kinds) if kind == "parallel")])


def memory_parts(vector: Floats, lanes: int) -> Floats:
    """In how many parts a vector shorter than a register goes to memory and comes from it, ``(n,)``: the length of each
    is a power of two. 1 for a longer one."""
    parts = np.bitwise_count(vector.astype(np.int64))
    return np.where(vector < lanes, parts, 1).astype(vector.dtype)


def line_share(run: Floats, access: Access) -> Floats:
    """Share of the moved cache lines that is used, for a contiguous run of elements: Pruner's P_l2m, in (0, 1]."""
    return pruner.utilisation(np.maximum(run, 1.0) * access.element_bytes, LINE_BYTES)


def elements_of(access: Access) -> int:
    return math.prod(access.shape)


def bytes_of(access: Access) -> int:
    return elements_of(access) * access.element_bytes


def instructions(flop: float, constants: CpuConstants) -> float:
    """Arithmetic instructions of so many float operations: a product and a sum are one, longer formulas are not taken
    for such pairs (most of them are transcendental functions, of which a description counts too few)."""
    return flop if flop > constants.flop_per_fma else 1.0


def smooth_max(*terms: Floats | float) -> Floats:
    """Norm of order 4: close to the largest term, a little above where several are alike (they overlap badly).

    Worked out relative to the largest, so that float32 neither overflows nor vanishes.
    """
    largest: Floats | float = terms[0]
    for term in terms[1:]:
        largest = np.maximum(largest, term)
    total: Floats | float = 0.0
    for term in terms:
        squared = np.square(term / largest)
        total = total + squared * squared
    return np.asarray(np.sqrt(np.sqrt(total)) * largest)
