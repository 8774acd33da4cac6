"""Closed-form quantities of a statement for a matrix of decisions.

Notation: ``n`` candidates, ``L`` loops (from the outermost, loops that are always 1 left out), ``A`` axes.
*Depth* ``k`` is the sub-nest of the loops ``k..L-1``: depth 0 is the whole nest, depth ``L`` one point.
Arrays put the candidate last, ``(L + 1, n)``, so that each step is one numpy call over all candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fleet_tune.sketch import INLINE_LOCATION, Access, Location, Sketch, Statement
from policies.sampling import Matrix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def loop_extents(statement: Statement, matrix: Matrix) -> Floats:
    """Extent of every loop of the statement, shape ``(number of loops, n)``, loops of extent 1 included."""
    extents = np.empty((len(statement.loops), len(matrix)))
    for at, loop in enumerate(statement.loops):
        extents[at] = loop.extent if loop.column is None else matrix[:, loop.column]
    return extents


@lru_cache(maxsize=1024)
def _kept(statement: Statement) -> tuple[int, ...]:
    """Indices of the loops that are not 1 for every candidate: those of an axis of more than one iteration."""
    return tuple(
        at
        for at, loop in enumerate(statement.loops)
        if statement.axes[loop.axis].extent > 1 and not (loop.column is None and loop.extent == 1)
    )


@dataclass(frozen=True)
class Nest:
    """The loop nest of a statement for ``n`` candidates.

    ``extents`` (L, n); ``outer`` (L + 1, n): product of the extents of the loops outside each depth; ``inside``
    (L + 1, A, n): iterations of each axis inside each depth.
    """

    statement: Statement
    kept: tuple[int, ...]
    extents: Floats
    outer: Floats
    inside: Floats

    @property
    def count(self) -> int:
        return int(self.extents.shape[1])

    @property
    def depth(self) -> int:
        return len(self.kept)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.statement.loops[at].kind for at in self.kept)

    @cached_property
    def reduction(self) -> tuple[bool, ...]:
        return tuple(self.statement.axes[self.statement.loops[at].axis].reduction for at in self.kept)

    def compact_depth(self, depth: int) -> int:
        """Depth in the kept loops of a depth counted in all loops of the statement."""
        return sum(at < depth for at in self.kept)

    def product(self, *kinds: str) -> Floats:
        """Product of the extents of the loops of these kinds, shape ``(n,)``."""
        chosen = [at for at, kind in enumerate(self.kinds) if kind in kinds]
        return np.asarray(self.extents[chosen].prod(axis=0))

    def points(self, depth: int = 0) -> Floats:
        """Iterations inside a depth, shape ``(n,)``."""
        return np.asarray(self.extents[depth:].prod(axis=0))

    def spatial_points(self, depth: int) -> Floats:
        """Iterations of spatial loops inside a depth, shape ``(n,)``."""
        chosen = [at for at in range(depth, self.depth) if not self.reduction[at]]
        return np.asarray(self.extents[chosen].prod(axis=0))

    @cached_property
    def step_depth(self) -> int:
        """Depth just inside the innermost reduction loop: what is done for one step of the reduction."""
        return max((at + 1 for at, reduces in enumerate(self.reduction) if reduces), default=0)


def nest(statement: Statement, matrix: Matrix) -> Nest:
    """The nest of ``statement`` for every row of ``matrix``."""
    kept = _kept(statement)
    count = len(matrix)
    extents = np.empty((len(kept), count))
    for row, at in enumerate(kept):
        loop = statement.loops[at]
        extents[row] = loop.extent if loop.column is None else matrix[:, loop.column]
    outer = np.ones((len(kept) + 1, count))
    np.cumprod(extents, axis=0, out=outer[1:])
    inside = np.ones((len(kept) + 1, len(statement.axes), count))
    for row in range(len(kept) - 1, -1, -1):
        inside[row] = inside[row + 1]
        inside[row, statement.loops[kept[row]].axis] *= extents[row]
    return Nest(statement, kept, extents, outer, inside)


def touched_elements(statement: Statement, access: Access, inside: Floats) -> Floats:
    """Distinct elements of an access touched while each axis runs over ``inside[..., axis, :]``, shape ``(..., n)``.

    One dimension indexed by ``sum_j c_j * axis_j`` covers at most ``1 + sum_j |c_j| * (extent_j - 1)`` values, the
    product of the extents, and the dimension's size; the least of them is taken. Exact where the range is dense or
    only one axis is involved.
    """
    touched = np.ones((*inside.shape[:-2], inside.shape[-1]))
    for size, coefficients in zip(access.shape, access.index, strict=True):
        axes = [(j, abs(c)) for j, c in enumerate(coefficients) if c and statement.axes[j].extent > 1]
        if not axes:
            continue
        if len(axes) == 1:
            span = np.minimum(inside[..., axes[0][0], :], size)
        else:
            span = np.full(touched.shape, 1.0 - sum(c for _, c in axes))
            for j, c in axes:
                span += c * inside[..., j, :]
            if any(c > 1 for _, c in axes):
                distinct = inside[..., axes[0][0], :].copy()
                for j, _ in axes[1:]:
                    distinct *= inside[..., j, :]
                span = np.minimum(span, distinct)
            span = np.minimum(span, size)
        touched *= span
    return touched


def footprint(loops: Nest, access: Access) -> Floats:
    """Distinct elements of an access touched inside each depth, shape ``(L + 1, n)``; see touched_elements."""
    return touched_elements(loops.statement, access, loops.inside)


def contiguous_run(loops: Nest, access: Access, depth: int) -> Floats:
    """Elements read one after the other in memory inside a depth, shape ``(n,)``.

    The last dimension's range; where it covers the dimension, times the range of the one before, and so on. A packed
    access lies in the order of the loops: its whole footprint is contiguous.
    """
    if access.packed:
        return np.asarray(footprint(loops, access)[depth])
    run = np.ones(loops.count)
    whole = np.ones(loops.count, dtype=bool)
    for size, coefficients in zip(reversed(access.shape), reversed(access.index), strict=True):
        span = np.ones(loops.count)
        for j, c in enumerate(coefficients):
            if c:
                span += abs(c) * (loops.inside[depth, j] - 1.0)
        span = np.minimum(span, size)
        run = np.where(whole, run * span, run)
        whole &= span >= size
    return run


def unit_stride(statement: Statement, access: Access, axis: int) -> bool | None:
    """Whether neighbours along ``axis`` are neighbours in memory; None where the access does not depend on it."""
    depends = [at for at, coefficients in enumerate(access.index) if coefficients[axis]]
    if not depends or statement.axes[axis].extent == 1:
        return None
    if access.packed:
        return True
    inner_is_unit = all(size == 1 for size in access.shape[depends[-1] + 1 :])
    return len(depends) == 1 and inner_is_unit and abs(access.index[depends[0]][axis]) == 1


def working_set(loops: Nest, footprints: list[Floats]) -> Floats:
    """Bytes of all buffers touched inside each depth, shape ``(L + 1, n)``; a buffer accessed twice counts once.

    Buffers of the scope ``local`` are registers and do not count.
    """
    largest: dict[str, Floats] = {}
    for access, touched in zip(loops.statement.accesses, footprints, strict=True):
        if access.scope == "local":
            continue
        size = touched * access.element_bytes
        known = largest.get(access.buffer)
        largest[access.buffer] = size if known is None else np.maximum(known, size)
    return sum(largest.values(), np.zeros((loops.depth + 1, loops.count)))


def fitting_depth(resident: Floats, capacity_bytes: float) -> Ints:
    """Depth of the largest sub-nest whose working set (``resident``, (L + 1, n)) fits, shape ``(n,)``.

    ``L`` where not even one point fits.
    """
    fits = resident <= capacity_bytes
    fits[-1] = True
    return np.asarray(fits.argmax(axis=0))


def moved_elements(loops: Nest, touched: Floats, fits: Ints) -> Floats:
    """Elements of one access that come into a cache holding the sub-nest at depth ``fits``, shape ``(n,)``.

    The sub-nest's footprint comes in once for every iteration of the loops outside, except that loops directly
    around it which do not move the access (they reuse what is there) are free.
    """
    depth = np.arange(loops.depth)[:, None]
    moves = (touched[:-1] > touched[1:]) & (depth < fits)
    innermost_mover = np.where(moves, depth + 1, 0).max(axis=0, initial=0)
    columns = np.arange(loops.count)
    return np.asarray(touched[fits, columns] * loops.outer[innermost_mover, columns])


def vector_extent(loops: Nest) -> Floats:
    """Iterations of the vectorised loop, shape ``(n,)``; 1 where nothing is vectorised.

    Loops of the kind ``vectorize`` where there are any, else the innermost loop if it is spatial and at most
    ``vectorize_limit``.
    """
    if "vectorize" in loops.kinds:
        return loops.product("vectorize")
    statement = loops.statement
    if not statement.vectorize_limit or not loops.kept or loops.kept[-1] != len(statement.loops) - 1:
        return np.ones(loops.count)
    if loops.reduction[-1]:
        return np.ones(loops.count)
    return np.where(loops.extents[-1] <= statement.vectorize_limit, loops.extents[-1], 1.0)


def parallel_extent(loops: Nest, fusible: Ints) -> Floats:
    """Iterations that may run in parallel, shape ``(n,)``.

    Loops of the kind ``parallel`` (``blockIdx.x`` on CUDA) where there are any; else, with ``parallel_limit``, the
    leading spatial loops are fused until their product exceeds the limit, at most ``fusible`` of them (a loop that
    also encloses another block ends the fusion).
    """
    explicit = [at for at, kind in enumerate(loops.kinds) if kind in ("parallel", "blockIdx.x")]
    if explicit:
        return np.asarray(loops.extents[explicit].prod(axis=0))
    fused = np.ones(loops.count)
    if not loops.statement.parallel_limit:
        return fused
    for at in range(loops.depth):
        if loops.reduction[at]:
            break
        # The loop that exceeds the limit is still taken in, and ends the fusion.
        fused = np.where((fused <= loops.statement.parallel_limit) & (at < fusible), fused * loops.extents[at], fused)
    return fused


def enclosing_depth(sketch: Sketch, main: Nest, statement: Statement, matrix: Matrix) -> Ints:
    """Number of the main statement's (kept) loops that enclose ``statement``, shape ``(n,)``.

    0 for a nest of its own, ``INLINE_LOCATION`` where it is inlined.
    """
    if statement.location_column is None:
        return np.full(len(matrix), main.compact_depth(statement.fixed_depth), dtype=np.int64)
    decision = sketch.decisions[sketch.offsets.index(statement.location_column)]
    if not isinstance(decision, Location):
        raise ValueError(f"column {statement.location_column} of {statement.name} is not a location")
    depths = np.array(
        [
            INLINE_LOCATION if at == INLINE_LOCATION else main.compact_depth(at + 1) if at >= 0 else 0
            for at in decision.locations
        ],
        dtype=np.int64,
    )
    return depths[matrix[:, statement.location_column]]
