"""Closed-form quantities of a statement for a matrix of decisions: elements that its accesses touch, and numbers
derived from them.

Notation, and the loop nest itself: :mod:`policies.analysis.nests`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.base.sketch import INLINE_LOCATION, Access, Choice, Location, Sketch, Statement
from policies.analysis.nests import (
    BufferDimension,
    Ints,
    Nest,
    dimensions_of,
    in_digits,
    loop_extents,
    nest,
    product_of,
    shape_of,
    stride_along,
    unit_stride,
)
from policies.arrays import Floats, Matrix

__all__ = [
    "Ints",
    "Nest",
    "contiguous_run",
    "dimension_ranges",
    "enclosing_depth",
    "fitting_depth",
    "footprint",
    "in_digits",
    "innermost_movers",
    "lines_per_set",
    "loop_extents",
    "moved_elements",
    "nest",
    "parallel_extent",
    "product_of",
    "stride_along",
    "touched_elements",
    "unit_stride",
    "vector_extent",
    "working_set",
]


def _span(dimension: BufferDimension, digits: Sequence[Floats]) -> Floats:
    """Values that a dimension's index takes, shape ``(n,)``: see :func:`touched_elements`."""
    if len(dimension.digits) == 1:
        return np.minimum(digits[dimension.digits[0][0]], dimension.size)
    span = _range(dimension, digits)
    if any(c > 1 for _, c in dimension.digits):
        distinct = product_of([digits[j] for j, _ in dimension.digits], span)
        span = np.minimum(span, distinct)
    return np.minimum(span, dimension.size)


def _range(dimension: BufferDimension, digits: Sequence[Floats]) -> Floats:
    """Last value minus first value of a dimension's index, plus one, shape ``(n,)``."""
    (first, c), *others = dimension.digits
    total = digits[first] if c == 1 else digits[first] * c
    for j, other in others:
        total = total + (digits[j] if other == 1 else digits[j] * other)
    least = sum(c for _, c in dimension.digits) - 1
    return total - least if least else total


def touched_elements(statement: Statement, access: Access, inside: Sequence[Floats]) -> Floats:
    """Distinct elements of an access touched while axis ``j`` runs over ``inside[j]`` values, shape ``(n,)``.

    One dimension indexed by ``sum_j c_j * digit_j`` covers at most ``1 + sum_j |c_j| * (extent_j - 1)`` values, the
    product of the extents, and the dimension's size; the least of the three is taken. It is exact if the range is dense
    or only one digit is involved.
    """
    digits = in_digits(statement, inside)
    spans = [_span(dimension, digits) for dimension in dimensions_of(statement, access) if dimension.digits]
    return _at_most_points(statement, access, inside, product_of(spans, np.ones_like(inside[0])))


def dimension_ranges(statement: Statement, access: Access, inside: Sequence[Floats]) -> list[Floats]:
    """Range of the index of each dimension of an access, gaps included, while axis ``j`` runs over ``inside[j]``
    values, each ``(n,)``: the region that a statement placed here has to compute."""
    digits = in_digits(statement, inside)
    return [
        np.minimum(_range(dimension, digits), dimension.size) if dimension.digits else np.ones_like(inside[0])
        for dimension in dimensions_of(statement, access)
    ]


def _at_most_points(statement: Statement, access: Access, inside: Sequence[Floats], elements: Floats) -> Floats:
    """Limit ``elements`` to the iterations of the axes that move an access: a digit may be covered in part."""
    if shape_of(statement).plain:
        return elements
    digits = shape_of(statement).digits
    axes = {digits[j][0] for dimension in dimensions_of(statement, access) for j, _ in dimension.digits}
    return np.minimum(elements, product_of([inside[axis] for axis in sorted(axes)], np.ones_like(elements)))


def footprint(loops: Nest, access: Access) -> Floats:
    """Distinct elements of an access touched inside each depth, shape ``(L + 1, n)``; see :func:`touched_elements`.

    From the innermost loop outwards, only the dimensions that a loop moves are computed anew.
    """
    statement = loops.statement
    dimensions = [dimension for dimension in dimensions_of(statement, access) if dimension.digits]
    digits = shape_of(statement).digits
    uses = [digits[j][0] for dimension in dimensions for j, _ in dimension.digits]
    rounded = {loop.axis for loop in statement.loops if loop.rest}
    # A loop of an axis that has a whole dimension to itself multiplies the footprint by the loop's extent, unless the
    # product of the axis' extents was rounded up.
    plain: dict[int, BufferDimension] = {}
    for dimension in dimensions:
        axis, extent = digits[dimension.digits[0][0]]
        alone = len(dimension.digits) == 1 and uses.count(axis) == 1 and not statement.axes[axis].digits
        if alone and dimension.size >= extent and axis not in rounded:
            plain[axis] = dimension
    compound = [dimension for dimension in dimensions if dimension not in plain.values()]
    touched = np.empty((loops.depth + 1, loops.count), dtype=loops.extents.dtype)
    touched[-1] = 1.0
    spans = [touched[-1]] * len(compound)
    product = touched[-1]  # of the plain dimensions
    for at in reversed(range(loops.depth)):
        moved = [axis for axis in loops.moves(at) if axis in uses]
        if not moved:
            touched[at] = touched[at + 1]
        elif all(axis in plain for axis in moved):
            np.multiply(touched[at + 1], loops.extents[at], out=touched[at])
            product = product * loops.extents[at] if compound else touched[at]
        else:
            inside = in_digits(statement, loops.inside(at))
            for number, dimension in enumerate(compound):
                if any(digits[j][0] in moved for j, _ in dimension.digits):
                    spans[number] = _span(dimension, inside)
            for axis in moved:
                if axis in plain:
                    product = product * loops.extents[at]
            touched[at] = product
            for span in spans:
                np.multiply(touched[at], span, out=touched[at])
            touched[at] = _at_most_points(statement, access, loops.inside(at), touched[at])
    return touched


def _real_size(loops: Nest, dimension: BufferDimension) -> Floats | None:
    """Size of a dimension, ``(n,)``, if one axis without a fixed extent indexes it (rfactor's partial sums); else
    None."""
    if len(dimension.digits) != 1:
        return None
    shape = shape_of(loops.statement)
    axis = shape.digits[dimension.digits[0][0]][0]
    return loops.inside(0)[axis] if shape.bounded[axis] else None


def _in_a_row(loops: Nest, depth: int | Ints, inside: Sequence[Floats]) -> Sequence[Floats]:
    """Consecutive iterations of each axis inside a depth. A ``rest`` is the slowest loop of its axis: its iterations
    are consecutive only if all other loops of the axis are inside too, or have one iteration."""
    consecutive = list(inside)
    for at, number in enumerate(loops.loop_numbers):
        if not loops.statement.loops[number].rest:
            continue
        faster = [other for other, axis in enumerate(loops.axes) if axis == loops.axes[at] and other < at]
        if faster:
            strided = np.zeros(loops.count, dtype=bool)
            for other in faster:
                strided |= (depth > other) & (depth <= at) & (loops.extents[other] > 1)
            consecutive[loops.axes[at]] = np.where(
                strided, consecutive[loops.axes[at]] / loops.extents[at], consecutive[loops.axes[at]]
            )
    return consecutive


def contiguous_run(loops: Nest, access: Access, depth: int | Ints, inside: Sequence[Floats] | None = None) -> Floats:
    """Elements contiguous in memory inside ``depth`` (one for all candidates, or one for each), shape ``(n,)``.

    This is the range of the last dimension; if the range covers the dimension, it is multiplied by the range of the
    dimension before, and so on. If a range has gaps (windows further apart than they are wide), only one window counts.
    A packed access lies in the order of the loops: its whole footprint is contiguous. ``inside``: iterations of each
    axis; the default is those inside ``depth``.
    """
    if inside is None:
        inside = loops.inside(depth) if isinstance(depth, int) else loops.inside_at(depth)
    if access.packed:
        return touched_elements(loops.statement, access, inside)
    inside = _in_a_row(loops, depth, inside)
    digits = in_digits(loops.statement, inside)
    run = loops.full(1.0)
    whole: NDArray[np.bool_] | None = None  # where all dimensions so far are covered; None: everywhere
    for dimension in reversed(dimensions_of(loops.statement, access)):
        if not dimension.digits:
            if dimension.size > 1:
                break  # one value of many: what lies before it is not contiguous with it
            continue
        span = np.minimum(_range(dimension, digits), dimension.size)
        if any(c > 1 for _, c in dimension.digits):
            window = product_of([digits[j] for j, c in dimension.digits if c == 1], loops.full(1.0))
            dense = span <= product_of([digits[j] for j, _ in dimension.digits], span)
            span = np.where(dense, span, window)
        run = run * span if whole is None else run * np.where(whole, span, 1.0)
        size = _real_size(loops, dimension)
        covered = span >= (dimension.size if size is None else size)
        whole = covered if whole is None else whole & covered
        if not whole.any():
            break
    return _at_most_points(loops.statement, access, inside, run)


def lines_per_set(
    statement: Statement, access: Access, digits: Sequence[Floats], page_bytes: int, line_bytes: int
) -> Floats | None:
    """Cache lines of an access in each set that they fall into, while digit ``j`` takes ``digits[j]`` values, ``(n,)``.

    Addresses ``page_bytes`` apart share a set. A dimension whose stride is ``s`` lines reaches at most
    ``sets / gcd(sets, s)`` sets. The result is None if no stride makes lines collide.
    """
    sets = page_bytes // line_bytes
    lines: Floats | None = None
    reached: Floats | None = None
    uneven = True
    stride = access.element_bytes
    for dimension in reversed(dimensions_of(statement, access)):
        if dimension.digits:
            span = _span(dimension, digits)
            if lines is None or reached is None:
                lines = np.ceil(span * (stride / line_bytes)) if stride < line_bytes else span
                reached = np.minimum(lines, sets)
            else:
                at_most = sets // gcd(sets, stride // line_bytes) if stride % line_bytes == 0 else sets
                uneven = uneven and at_most == sets
                lines = lines * span
                reached = np.minimum(reached * np.minimum(span, at_most), sets)
        stride *= dimension.size
    return None if uneven or lines is None or reached is None else lines / reached


def working_set(loops: Nest, footprints: Sequence[Floats]) -> Floats:
    """Bytes of all buffers touched inside each depth, shape ``(L + 1, n)``; a buffer accessed twice counts once.

    ``footprints``: of each access of the statement, in order. Buffers of the scope ``local`` are registers and do not
    count.
    """
    largest: dict[str, tuple[Access, Floats]] = {}
    for access, touched in zip(loops.statement.accesses, footprints, strict=True):
        if access.scope == "local":
            continue
        before = largest.get(access.buffer)
        if before is None:
            largest[access.buffer] = (access, touched)
        elif before[1] is not touched:
            largest[access.buffer] = (access, np.maximum(before[1], touched))
    if not largest:
        return np.zeros((loops.depth + 1, loops.count), dtype=loops.extents.dtype)
    (access, touched), *others = largest.values()
    total = touched * access.element_bytes
    for access, touched in others:
        total += touched if access.element_bytes == 1 else touched * access.element_bytes
    return total


def fitting_depth(resident: Floats, capacity_bytes: float | Floats) -> Ints:
    """Depth of the largest sub-nest whose working set (``resident``, (L + 1, n)) fits, shape ``(n,)``.

    ``L`` if not even one point fits. A working set never grows with the depth.
    """
    too_large = (resident[:-1] > capacity_bytes).view(np.uint8)
    return np.asarray(np.add.reduce(too_large, axis=0, dtype=np.uint8 if len(resident) < 256 else np.int64), np.int64)


def innermost_movers(loops: Nest, touched: Floats) -> NDArray[np.uint8]:
    """Depth just inside the innermost of the loops around each depth that move an access, shape ``(L + 1, n)``.

    A loop moves an access if the footprint (``touched``, (L + 1, n)) grows with it. The depth is 0 if no loop does.
    """
    movers = np.empty(touched.shape, dtype=np.uint8)
    movers[0] = 0
    grows = (touched[:-1] > touched[1:]).view(np.uint8)
    grows *= np.arange(1, loops.depth + 1, dtype=np.uint8)[:, None]
    for at in range(loops.depth):
        np.maximum(movers[at], grows[at], out=movers[at + 1])
    return movers


def moved_elements(loops: Nest, touched: Floats, fits: Ints, movers: NDArray[np.uint8] | None = None) -> Floats:
    """Elements of one access that come into a cache holding the sub-nest at depth ``fits``, shape ``(n,)``.

    The sub-nest's footprint comes in once for every iteration of the loops outside. Loops directly around it that do
    not move the access are free: they reuse the data in the cache. ``movers``: the result of :func:`innermost_movers`,
    if it is known.
    """
    places = fits * loops.count + loops.columns
    mover = (innermost_movers(loops, touched) if movers is None else movers).ravel()[places]
    elements: Floats = touched.ravel()[places] * loops.pick(loops.outer, mover.astype(np.int64))
    return elements


def vector_extent(loops: Nest) -> Floats:
    """Iterations of the vectorised loop, shape ``(n,)``; 1 where nothing is vectorised.

    If there are loops of the kind ``vectorize``, these are vectorised. If the statement only copies in order, all loops
    are fused, and ``vectorize_limit`` iterations are a vector (surplus iterations do nothing). Else the innermost loop
    is vectorised if it is spatial, has at most ``vectorize_limit`` iterations, and encloses no other statement.
    """
    if "vectorize" in loops.kinds:
        return loops.product("vectorize")
    statement = loops.statement
    if shape_of(statement).in_order:
        return loops.full(statement.vectorize_limit)
    if not statement.vectorize_limit or not loops.loop_numbers or loops.loop_numbers[-1] != len(statement.loops) - 1:
        return loops.full(1.0)
    if loops.reduction[-1] or not statement.vectorizable:
        return loops.full(1.0)
    return np.where(loops.extents[-1] <= statement.vectorize_limit, loops.extents[-1], 1.0)


def parallel_extent(loops: Nest, fusible: Ints | None = None) -> Floats:
    """Iterations that may run in parallel, shape ``(n,)``.

    If there are loops of the kind ``parallel`` (``blockIdx`` on CUDA), these run in parallel. Else, with a
    ``parallel_limit``, the leading spatial loops are fused until their product exceeds the limit: at most ``fusible``
    of them and at most :attr:`Statement.fusible` (a loop that also encloses another block ends the fusion; None: no
    such loop), without the vectorised loop. If the statement only copies in order, all loops run in parallel, by
    vectors.
    """
    explicit = ("parallel", "blockIdx.x", "blockIdx.y")
    if any(kind in explicit for kind in loops.kinds):
        return loops.product(*explicit)
    limit = loops.statement.parallel_limit
    if not limit:
        return loops.full(1.0)
    leading = next((at for at, reduces in enumerate(loops.reduction) if reduces), loops.depth)
    if loops.statement.fusible is not None:
        leading = min(leading, loops.compact_depth(loops.statement.fusible))
    # The loop that exceeds the limit is still fused, and ends the fusion.
    if shape_of(loops.statement).in_order:
        return np.ceil(loops.points() / vector_extent(loops))
    last = np.add.reduce((loops.outer[:leading] <= limit).view(np.uint8), axis=0, dtype=np.int64)
    if (
        leading == loops.depth > 0
        and loops.statement.vectorizable
        and loops.loop_numbers[-1] == len(loops.statement.loops) - 1
    ):
        vectorised = loops.extents[-1] <= loops.statement.vectorize_limit
        last = np.where(vectorised, np.minimum(last, loops.depth - 1), last)
    return loops.pick(loops.outer, last if fusible is None else np.minimum(last, fusible))


def enclosing_depth(sketch: Sketch, main: Nest, statement: Statement, matrix: Matrix) -> Ints:
    """Number of the main statement's (kept) loops that enclose ``statement``, shape ``(n,)``.

    0 for a nest of its own, ``INLINE_LOCATION`` where it is inlined. TVM passes over loops of one iteration: if all
    loops around the chosen place have one iteration, the statement keeps a nest of its own.
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
    chosen = depths[matrix[:, statement.location_column]]
    return np.where(main.pick(main.outer, np.maximum(chosen, 0)) > 1, chosen, np.minimum(chosen, 0))


def unroll_limit(sketch: Sketch, statement: Statement, matrix: Matrix, dtype: DTypeLike) -> Floats | None:
    """Iterations up to which the unroll Choice of ``statement`` unrolls its loops, shape ``(n,)``; None if it has no
    such Choice."""
    column = statement.unroll_column
    if column is None:
        return None
    decision = sketch.decisions[sketch.offsets.index(column)]
    if not isinstance(decision, Choice):
        raise ValueError(f"column {column} of {statement.name} is not a choice")
    values: Floats = np.array(decision.values, dtype=dtype)
    return values[matrix[:, column]]
