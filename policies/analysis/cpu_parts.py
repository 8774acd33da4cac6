"""Parts of the CPU model: the inner loop's quantities, statements beside the main one, and small formulas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.sketch import INLINE_LOCATION, Access, Statement
from policies.analysis import symbols as pruner
from policies.analysis.quantities import Ints, Nest, footprint
from policies.arrays import Floats

LINE_BYTES = pruner.MEMORY_LINE_BYTES["cpu"]


@dataclass(frozen=True)
class Inner:
    """The register-blocked inner loop of a statement; every field ``(n,)``.

    ``vector``: iterations of the vectorised loop, in ``vectors`` registers. ``accumulators``, ``needed``: vector
    registers of the sums, and with the operands. ``step_operations``: vector operations of one reduction step.
    ``loads``, ``stores``, ``cycles``: of one vector operation. ``unrolled``: straight-line vector operations.
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


@dataclass(frozen=True)
class RegisterTile:
    """What the innermost loops work on; every field ``(n,)``, operations and registers counted in vectors.

    ``operations``: of one step of the reduction. ``accumulators``: sums, each over ``reduced`` steps. ``operands``:
    registers of what is read. ``loads``: of one operation.
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

    ``depth`` (n,): how many of the main statement's loops enclose it, -2 where it is inlined; ``fixed``: that number
    where it is the same for all. ``points``: its iterations in the whole program.
    """

    statement: Statement
    depth: Ints
    fixed: int | None
    points: Floats

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


def line_share(run: Floats, access: Access) -> Floats:
    """Share of the moved cache lines that is used, for a contiguous run of elements: Pruner's P_l2m, in (0, 1]."""
    return pruner.utilisation(np.maximum(run, 1.0) * access.element_bytes, LINE_BYTES)


def bytes_of(access: Access) -> int:
    size = access.element_bytes
    for extent in access.shape:
        size *= extent
    return size


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
