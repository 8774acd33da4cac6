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
class InnerLoop:
    """The register-blocked inner loop of a statement; every field ``(n,)``."""

    vector: Floats
    """Iterations of the vectorised loop."""
    vectors: Floats
    """Vector registers that these iterations fill."""
    accumulators: Floats
    """Vector registers of the sums."""
    needed: Floats
    """Vector registers of the sums and the operands."""
    step_operations: Floats
    """Vector operations of one reduction step, or of all steps that are unrolled together."""
    loads: Floats
    """Loads of one vector operation."""
    stores: Floats
    """Stores of one vector operation."""
    cycles: Floats
    """Cycles of one vector operation."""
    unrolled: Floats
    """Straight-line vector operations."""
    compiled_row: Floats
    """Iterations of the loop around the sums if the compiler vectorises that; else 1."""


@dataclass(frozen=True)
class RegisterTile:
    """Data of the innermost loops; every field ``(n,)``, operations and registers counted in vectors."""

    vector: Floats
    """Iterations of the vectorised loop."""
    vectors: Floats
    """Vector registers that these iterations fill."""
    operations: Floats
    """Operations of one step of the reduction, or of all steps that are unrolled together."""
    accumulators: Floats
    """Registers of the sums."""
    reduced: Floats
    """Steps over which each sum runs."""
    operands: Floats
    """Registers of the operands."""
    loads: Floats
    """Loads of one operation."""


def choose(where: NDArray[np.bool_], first: RegisterTile, second: RegisterTile) -> RegisterTile:
    return RegisterTile(
        *(np.where(where, one, other) for one, other in zip(vars(first).values(), vars(second).values(), strict=True))
    )


@dataclass(frozen=True)
class ProducerConsumer:
    """A statement beside the main one."""

    statement: Statement
    alone: Nest
    """The nest of its own loops. It is evaluated for one candidate only if no decision changes them."""
    depth: Ints
    """Number of the main statement's loops that enclose it, ``(n,)``; -2 where it is inlined."""
    fixed: int | None
    """The depth if it is the same for all candidates, else None."""
    points: Floats
    """Its iterations in the whole program, ``(n,)``."""
    reduced: Floats
    """Iterations that are summed into each element, ``(n,)``."""

    @property
    def inside(self) -> NDArray[np.bool_]:
        """True where it stands in a loop of the main statement."""
        return self.depth > 0

    @property
    def inlined(self) -> NDArray[np.bool_]:
        return np.asarray(self.depth == INLINE_LOCATION)


def footprints(loops: Nest) -> list[Floats]:
    """Footprint of every access of a statement (see :func:`policies.analysis.quantities.footprint`). Accesses with the
    same shape and index share an array."""
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
    """Iterations of the adjacent reduction loops that end with the innermost one, ``(n,)``.

    ``step`` (n,): from :func:`step_depths`. Loops of one iteration do not count as loops.
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
    """Elements of an access that a vector of ``vector`` iterations along ``axis`` touches, ``(n,)``."""
    one = loops.full(1.0)
    along = [vector if at == axis else one for at in range(len(loops.statement.axes))]
    return touched_elements(loops.statement, access, along)


def parallel_depth(loops: Nest) -> int:
    """Depth just inside the loops that may run in parallel. Each of their iterations is a call of its own."""
    depth = 1 if loops.statement.parallel_limit and loops.depth else 0
    return max([depth, *(at + 1 for at, kind in enumerate(loops.kinds) if kind == "parallel")])


def memory_parts(vector: Floats, lanes: int) -> Floats:
    """Number of parts in which a vector shorter than a register is loaded and stored, ``(n,)``: the length of each part
    is a power of two. 1 for a longer vector."""
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
    """Arithmetic instructions of ``flop`` float operations. A product and a sum are one instruction. A longer formula
    counts one instruction per operation: most are transcendental functions, of which a description counts too few
    operations."""
    return flop if flop > constants.flop_per_fma else 1.0


def smooth_max(*terms: Floats | float) -> Floats:
    """Norm of order 4: close to the largest term, a little above where several are alike (they overlap badly).

    It is computed relative to the largest term, so that float32 neither overflows nor underflows.
    """
    largest: Floats | float = terms[0]
    for term in terms[1:]:
        largest = np.maximum(largest, term)
    total: Floats | float = 0.0
    for term in terms:
        squared = np.square(term / largest)
        total = total + squared * squared
    return np.asarray(np.sqrt(np.sqrt(total)) * largest)
