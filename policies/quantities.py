"""Closed-form quantities of a statement for a matrix of decisions.

Notation: ``n`` candidates, ``L`` loops (from the outermost, loops that are always 1 left out), ``A`` axes.
*Depth* ``k`` is the sub-nest of the loops ``k..L-1``: depth 0 is the whole nest, depth ``L`` one point.
Arrays put the candidate last, ``(L + 1, n)``, so that each step is one numpy call over all candidates. All of them
have the floating type that the nest was made with; in float32 counts are exact up to ``2**24``, and products of small
factors beyond.

What does not depend on the decisions is worked out once for each statement and kept (:func:`_shape`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.sketch import INLINE_LOCATION, Access, Location, Sketch, Statement
from policies.sampling import Matrix

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


def loop_extents(statement: Statement, matrix: Matrix) -> Floats:
    """Extent of every loop of the statement, shape ``(number of loops, n)``, loops of extent 1 included."""
    extents = np.empty((len(statement.loops), len(matrix)))
    _fill_extents(statement, matrix, range(len(statement.loops)), extents)
    return extents


def _fill_extents(statement: Statement, matrix: Matrix, loops: Sequence[int], extents: Floats) -> None:
    """Write the extents of these loops of a statement into the rows of ``extents``; see :class:`Loop`."""
    for row, at in enumerate(loops):
        loop = statement.loops[at]
        if loop.rest:
            continue
        if loop.values:
            extents[row] = np.array(loop.values)[matrix[:, loop.column]]
        else:
            extents[row] = loop.extent if loop.column is None else matrix[:, loop.column]
    for row, at in enumerate(loops):
        loop = statement.loops[at]
        if loop.rest:
            others = [
                extents[other]
                for other, its in enumerate(loops)
                if statement.loops[its].axis == loop.axis and other != row
            ]
            whole = np.full(len(matrix), statement.axes[loop.axis].extent, dtype=extents.dtype)
            extents[row] = np.ceil(whole / product_of(others, np.ones_like(whole)))


@dataclass(frozen=True)
class _Shape:
    """What is known of a nest before any decision; ``L`` kept loops.

    ``kept``: their indices in the statement. ``axes``, ``kinds``, ``reduction``: of each of them; a loop that runs over
    partial results too reduces nothing. ``step_depth``: depth just inside the innermost reduction loop. ``parts``: for
    each axis, the loops that run over it, from the outermost. ``rows``: for each depth and axis, how many of those are
    inside. ``digits``: (axis, extent) of every digit; a plain axis is one. ``plain``: whether all axes are plain.
    ``bounded``: of each axis, whether its extent is only a bound of what the loops of a candidate cover.
    ``in_order``: whether the statement has a nest of its own that goes through all of its buffers in their order.
    ``dimensions``: of each access of the statement.
    """

    statement: Statement

    kept: tuple[int, ...]
    axes: tuple[int, ...]
    kinds: tuple[str, ...]
    reduction: tuple[bool, ...]
    step_depth: int
    parts: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    digits: tuple[tuple[int, int], ...]
    plain: bool
    in_order: bool
    bounded: tuple[bool, ...]
    dimensions: tuple[tuple[_Dimension, ...], ...]


@dataclass(frozen=True)
class _Dimension:
    """One dimension of a buffer: ``size``, and (digit, absolute coefficient) of every digit that moves its index."""

    size: int
    digits: tuple[tuple[int, int], ...]


_SHAPES: dict[int, _Shape] = {}
_SHAPES_KEPT = 4096


def _shape(statement: Statement) -> _Shape:
    """Kept by the identity of the statement: to hash one takes as long as to evaluate dozens of candidates."""
    known = _SHAPES.get(id(statement))
    if known is None or known.statement is not statement:
        if len(_SHAPES) >= _SHAPES_KEPT:
            _SHAPES.clear()
        known = _SHAPES[id(statement)] = _make_shape(statement)
    return known


def _make_shape(statement: Statement) -> _Shape:
    kept = tuple(
        at
        for at, loop in enumerate(statement.loops)
        if statement.axes[loop.axis].extent > 1 and (loop.column is not None or loop.rest or loop.extent != 1)
    )
    loops = [statement.loops[at] for at in kept]
    axes = tuple(loop.axis for loop in loops)
    reduction = tuple(statement.axes[loop.axis].reduction and loop.partial is None for loop in loops)
    parts = tuple(
        tuple(at for at, loop in enumerate(loops) if axis in (loop.axis, loop.partial))
        for axis in range(len(statement.axes))
    )
    digits = tuple(
        (number, extent) for number, axis in enumerate(statement.axes) for extent in (axis.digits or (axis.extent,))
    )
    return _Shape(
        statement=statement,
        kept=kept,
        axes=axes,
        kinds=tuple(statement.loops[at].kind for at in kept),
        reduction=reduction,
        step_depth=max((at + 1 for at, reduces in enumerate(reduction) if reduces), default=0),
        parts=parts,
        rows=tuple(tuple(sum(at >= depth for at in own) for own in parts) for depth in range(len(kept) + 1)),
        digits=digits,
        plain=not any(axis.digits for axis in statement.axes),
        in_order=_goes_in_order(statement),
        bounded=tuple(len(own) == 1 and loops[own[0]].column is not None and not loops[own[0]].values for own in parts),
        dimensions=tuple(_make_dimensions(digits, access) for access in statement.accesses),
    )


def _goes_in_order(statement: Statement) -> bool:
    """Whether TVM fuses all loops of the statement and splits them into vectors: no reduction, one loop for each axis
    in the order of the axes, and no access that takes the axes in another order (one that leaves some out may be)."""
    if not statement.vectorize_limit or not statement.parallel_limit or statement.fusible is not None:
        return False
    if statement.fixed_depth or statement.location_column is not None:
        return False
    if any(axis.reduction or axis.digits for axis in statement.axes):
        return False
    if any(loop.kind != "serial" or loop.column is not None or loop.rest for loop in statement.loops):
        return False
    if [loop.axis for loop in statement.loops] != list(range(len(statement.axes))):
        return False
    for access in statement.accesses:
        used = [[j for j, c in enumerate(row) if c and statement.axes[j].extent > 1] for row in access.index]
        if any(len(axes) > 1 or any(row[j] != 1 for j in axes) for axes, row in zip(used, access.index, strict=True)):
            return False
        order = [axes[0] for axes in used if axes]
        if order != sorted(set(order)):
            return False
    return True


def _make_dimensions(digits: tuple[tuple[int, int], ...], access: Access) -> tuple[_Dimension, ...]:
    return tuple(
        _Dimension(size, tuple((j, abs(c)) for j, c in enumerate(coefficients) if c and digits[j][1] > 1))
        for size, coefficients in zip(access.shape, access.index, strict=True)
    )


def _dimensions(statement: Statement, access: Access) -> tuple[_Dimension, ...]:
    shape = _shape(statement)
    for own, known in zip(statement.accesses, shape.dimensions, strict=True):
        if own is access:
            return known
    return _make_dimensions(shape.digits, access)


def in_digits(statement: Statement, inside: Sequence[Floats]) -> Sequence[Floats]:
    """Values that each digit takes while axis ``j`` runs over ``inside[j]`` consecutive values, each ``(n,)``.

    The fastest digit turns first; the next one moves on once for each of its turns.
    """
    if _shape(statement).plain:
        return inside
    found: list[Floats] = []
    for axis, within in zip(statement.axes, inside, strict=True):
        turns, own = within, []
        for extent in reversed(axis.digits or (axis.extent,)):
            own.append(np.minimum(turns, extent))
            turns = np.ceil(turns / extent)
        found += reversed(own)
    return found


class Nest:
    """The loop nest of a statement for ``n`` candidates; arrays are made when they are first asked for.

    ``extents`` (L, n): extent of each kept loop.
    """

    def __init__(self, statement: Statement, extents: Floats) -> None:
        self.statement = statement
        self.extents = extents
        self._known = _shape(statement)

    @property
    def count(self) -> int:
        return int(self.extents.shape[1])

    @property
    def depth(self) -> int:
        return len(self._known.kept)

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the loops that are not 1 for every candidate: those of an axis of more than one iteration."""
        return self._known.kept

    @property
    def axes(self) -> tuple[int, ...]:
        """Axis of each kept loop."""
        return self._known.axes

    def moves(self, at: int) -> tuple[int, ...]:
        """The axes that a kept loop runs over: its own, and that of partial results."""
        partial = self.statement.loops[self.kept[at]].partial
        return (self.axes[at],) if partial is None else (self.axes[at], partial)

    @property
    def kinds(self) -> tuple[str, ...]:
        return self._known.kinds

    @property
    def reduction(self) -> tuple[bool, ...]:
        return self._known.reduction

    @property
    def step_depth(self) -> int:
        """Depth just inside the innermost reduction loop: what is done for one step of the reduction."""
        return self._known.step_depth

    def full(self, value: float) -> Floats:
        """A vector of this value for every candidate, shape ``(n,)``."""
        return np.full(self.count, value, dtype=self.extents.dtype)

    @cached_property
    def columns(self) -> NDArray[np.intp]:
        """0 to ``n - 1``."""
        return np.arange(self.count)

    @cached_property
    def outer(self) -> Floats:
        """Product of the extents of the loops outside each depth, shape ``(L + 1, n)``."""
        outer = np.empty((self.depth + 1, self.count), dtype=self.extents.dtype)
        outer[0] = 1.0
        for at in range(self.depth):  # numpy's cumprod is many times slower
            np.multiply(outer[at], self.extents[at], out=outer[at + 1])
        return outer

    @cached_property
    def within(self) -> Floats:
        """Iterations inside each depth, shape ``(L + 1, n)``."""
        within = np.empty((self.depth + 1, self.count), dtype=self.extents.dtype)
        within[-1] = 1.0
        for at in reversed(range(self.depth)):
            np.multiply(within[at + 1], self.extents[at], out=within[at])
        return within

    @cached_property
    def _axis_within(self) -> tuple[Floats, ...]:
        """For each axis of ``p`` loops the iterations inside its last 0 to ``p`` loops, shape ``(p + 1, n)``."""
        tables = []
        for parts in self._known.parts:
            table = np.empty((len(parts) + 1, self.count), dtype=self.extents.dtype)
            table[0] = 1.0
            for row, at in enumerate(reversed(parts)):
                np.multiply(table[row], self.extents[at], out=table[row + 1])
            tables.append(table)
        return tuple(tables)

    def inside(self, depth: int) -> list[Floats]:
        """Iterations of each axis inside a depth, ``A`` vectors of shape ``(n,)``: not to be written to."""
        return [table[row] for table, row in zip(self._axis_within, self._known.rows[depth], strict=True)]

    def inside_at(self, depth: Ints) -> list[Floats]:
        """As :meth:`inside`, at a depth that differs between candidates, shape ``(n,)``."""
        starts = np.array(self._known.rows).T * self.count  # of the row of each axis and depth
        return [
            table[0] if len(table) == 1 else table.ravel()[own[depth] + self.columns]
            for table, own in zip(self._axis_within, starts, strict=True)
        ]

    def pick(self, table: Floats, depth: Ints) -> Floats:
        """``table[depth[i], i]`` of a table of shape ``(L + 1, n)``, shape ``(n,)``."""
        return np.asarray(table.ravel()[depth * self.count + self.columns])

    def compact_depth(self, depth: int) -> int:
        """Depth in the kept loops of a depth counted in all loops of the statement."""
        return sum(at < depth for at in self.kept)

    def product(self, *kinds: str) -> Floats:
        """Product of the extents of the loops of these kinds, shape ``(n,)``."""
        return self._product([at for at, kind in enumerate(self.kinds) if kind in kinds])

    def points(self, depth: int = 0) -> Floats:
        """Iterations inside a depth, shape ``(n,)``."""
        return np.asarray(self.within[depth])

    def spatial_points(self, depth: int) -> Floats:
        """Iterations of spatial loops inside a depth, shape ``(n,)``."""
        return self._product([at for at in range(depth, self.depth) if not self.reduction[at]])

    def reduced_points(self, depth: int) -> Floats:
        """Iterations of reduction loops inside a depth, shape ``(n,)``."""
        return self._product([at for at in range(depth, self.depth) if self.reduction[at]])

    def _product(self, loops: Sequence[int]) -> Floats:
        return product_of([self.extents[at] for at in loops], self.full(1.0))


def product_of(factors: Sequence[Floats], one: Floats) -> Floats:
    """Product of vectors, ``one`` where there are none; a new array only where there are several."""
    if not factors:
        return one
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total


def nest(statement: Statement, matrix: Matrix, dtype: DTypeLike = np.float64) -> Nest:
    """The nest of ``statement`` for every row of ``matrix``, worked out in ``dtype``."""
    kept = _shape(statement).kept
    extents = np.empty((len(kept), len(matrix)), dtype=dtype)
    _fill_extents(statement, matrix, kept, extents)
    return Nest(statement, extents)


def _span(dimension: _Dimension, digits: Sequence[Floats]) -> Floats:
    """Values that a dimension's index takes, shape ``(n,)``: see :func:`touched_elements`."""
    if len(dimension.digits) == 1:
        return np.minimum(digits[dimension.digits[0][0]], dimension.size)
    span = _range(dimension, digits)
    if any(c > 1 for _, c in dimension.digits):
        distinct = product_of([digits[j] for j, _ in dimension.digits], span)
        span = np.minimum(span, distinct)
    return np.minimum(span, dimension.size)


def _range(dimension: _Dimension, digits: Sequence[Floats]) -> Floats:
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
    product of the extents, and the dimension's size; the least of them is taken. Exact where the range is dense or
    only one digit is involved.
    """
    digits = in_digits(statement, inside)
    spans = [_span(dimension, digits) for dimension in _dimensions(statement, access) if dimension.digits]
    return _at_most_points(statement, access, inside, product_of(spans, np.ones_like(inside[0])))


def dimension_ranges(statement: Statement, access: Access, inside: Sequence[Floats]) -> list[Floats]:
    """For each dimension of an access the range of its index, gaps included, while axis ``j`` runs over ``inside[j]``
    values, each ``(n,)``: the region that a statement placed here has to compute."""
    digits = in_digits(statement, inside)
    return [
        np.minimum(_range(dimension, digits), dimension.size) if dimension.digits else np.ones_like(inside[0])
        for dimension in _dimensions(statement, access)
    ]


def _at_most_points(statement: Statement, access: Access, inside: Sequence[Floats], elements: Floats) -> Floats:
    """No more elements than iterations of the axes that move an access: a digit may be covered in part."""
    if _shape(statement).plain:
        return elements
    digits = _shape(statement).digits
    axes = {digits[j][0] for dimension in _dimensions(statement, access) for j, _ in dimension.digits}
    return np.minimum(elements, product_of([inside[axis] for axis in sorted(axes)], np.ones_like(elements)))


def footprint(loops: Nest, access: Access) -> Floats:
    """Distinct elements of an access touched inside each depth, shape ``(L + 1, n)``; see touched_elements.

    From the innermost loop outwards only what a loop moves is worked out anew.
    """
    statement = loops.statement
    dimensions = [dimension for dimension in _dimensions(statement, access) if dimension.digits]
    digits = _shape(statement).digits
    uses = [digits[j][0] for dimension in dimensions for j, _ in dimension.digits]
    rounded = {loop.axis for loop in statement.loops if loop.rest}
    # A loop of an axis that has a whole dimension to itself multiplies the footprint by the loop's extent, unless the
    # product of the axis' extents was rounded up.
    plain: dict[int, _Dimension] = {}
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


def _real_size(loops: Nest, dimension: _Dimension) -> Floats | None:
    """Size of a dimension that holds what one axis of no fixed extent covers (rfactor's partial sums), else None."""
    if len(dimension.digits) != 1:
        return None
    known = _shape(loops.statement)
    axis = known.digits[dimension.digits[0][0]][0]
    return loops.inside(0)[axis] if known.bounded[axis] else None


def _in_a_row(loops: Nest, depth: int | Ints, inside: Sequence[Floats]) -> Sequence[Floats]:
    """Consecutive iterations of each axis inside a depth: those of a rest, the slowest loop of its axis, are only where
    all other loops of the axis are inside too."""
    found = list(inside)
    for at, number in enumerate(loops.kept):
        if not loops.statement.loops[number].rest:
            continue
        faster = [other for other, axis in enumerate(loops.axes) if axis == loops.axes[at] and other < at]
        if faster:
            strided = np.asarray((depth > faster[0]) & (depth <= at))
            found[loops.axes[at]] = np.where(strided, found[loops.axes[at]] / loops.extents[at], found[loops.axes[at]])
    return found


def contiguous_run(loops: Nest, access: Access, depth: int | Ints, inside: Sequence[Floats] | None = None) -> Floats:
    """Elements read one after the other in memory inside a depth (of all or of each candidate), shape ``(n,)``.

    The last dimension's range; where it covers the dimension, times the range of the one before, and so on. Of a range
    with gaps (windows further apart than they are wide) only one window. A packed access lies in the order of the
    loops: its whole footprint is contiguous. ``inside`` saves working it out again.
    """
    if inside is None:
        inside = loops.inside(depth) if isinstance(depth, int) else loops.inside_at(depth)
    if access.packed:
        return touched_elements(loops.statement, access, inside)
    inside = _in_a_row(loops, depth, inside)
    digits = in_digits(loops.statement, inside)
    run = loops.full(1.0)
    whole: NDArray[np.bool_] | None = None  # where all dimensions so far are covered; None: everywhere
    for dimension in reversed(_dimensions(loops.statement, access)):
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
    ``sets / gcd(sets, s)`` sets. None where no stride is so even that lines could collide.
    """
    sets = page_bytes // line_bytes
    found: Floats | None = None
    reached: Floats | None = None
    uneven = True
    stride = access.element_bytes
    for dimension in reversed(_dimensions(statement, access)):
        if dimension.digits:
            span = _span(dimension, digits)
            if found is None or reached is None:
                found = np.ceil(span * (stride / line_bytes)) if stride < line_bytes else span
                reached = np.minimum(found, sets)
            else:
                at_most = sets // gcd(sets, stride // line_bytes) if stride % line_bytes == 0 else sets
                uneven = uneven and at_most == sets
                found = found * span
                reached = np.minimum(reached * np.minimum(span, at_most), sets)
        stride *= dimension.size
    return None if uneven or found is None or reached is None else found / reached


def unit_stride(statement: Statement, access: Access, axis: int) -> bool | None:
    """Whether neighbours along ``axis`` are neighbours in memory; None where the access does not depend on it."""
    own = [j for j, (its, _) in enumerate(_shape(statement).digits) if its == axis]
    depends = [at for at, coefficients in enumerate(access.index) if any(coefficients[j] for j in own)]
    if not depends or statement.axes[axis].extent == 1:
        return None
    if access.packed:
        return True
    # Neighbours differ in the fastest digit, which must move the last dimension of more than one value by one.
    fastest = [at for at in depends if access.index[at][own[-1]]]
    if len(fastest) != 1 or (len(own) == 1 and len(depends) != 1):
        return False
    inner_is_unit = all(size == 1 for size in access.shape[fastest[0] + 1 :])
    return inner_is_unit and abs(access.index[fastest[0]][own[-1]]) == 1


def working_set(loops: Nest, footprints: Sequence[Floats]) -> Floats:
    """Bytes of all buffers touched inside each depth, shape ``(L + 1, n)``; a buffer accessed twice counts once.

    ``footprints``: of each access of the statement, in order. Buffers of the scope ``local`` are registers and do not
    count.
    """
    largest: dict[str, tuple[Access, Floats]] = {}
    for access, touched in zip(loops.statement.accesses, footprints, strict=True):
        if access.scope == "local":
            continue
        known = largest.get(access.buffer)
        if known is None:
            largest[access.buffer] = (access, touched)
        elif known[1] is not touched:
            largest[access.buffer] = (access, np.maximum(known[1], touched))
    if not largest:
        return np.zeros((loops.depth + 1, loops.count), dtype=loops.extents.dtype)
    (access, touched), *others = largest.values()
    total = touched * access.element_bytes
    for access, touched in others:
        total += touched if access.element_bytes == 1 else touched * access.element_bytes
    return total


def fitting_depth(resident: Floats, capacity_bytes: float | Floats) -> Ints:
    """Depth of the largest sub-nest whose working set (``resident``, (L + 1, n)) fits, shape ``(n,)``.

    ``L`` where not even one point fits. A working set never grows with the depth.
    """
    too_large = (resident[:-1] > capacity_bytes).view(np.uint8)
    return np.asarray(np.add.reduce(too_large, axis=0, dtype=np.uint8 if len(resident) < 256 else np.int64), np.int64)


def innermost_movers(loops: Nest, touched: Floats) -> NDArray[np.uint8]:
    """For each depth the depth just inside the innermost loop around it that moves an access, shape ``(L + 1, n)``.

    Loops move an access whose footprint (``touched``, (L + 1, n)) grows with them; 0 where none does.
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

    The sub-nest's footprint comes in once for every iteration of the loops outside, except that loops directly around
    it which do not move the access (they reuse what is there) are free. ``movers`` (:func:`innermost_movers`) saves
    working them out again.
    """
    places = fits * loops.count + loops.columns
    mover = (innermost_movers(loops, touched) if movers is None else movers).ravel()[places]
    elements: Floats = touched.ravel()[places] * loops.pick(loops.outer, mover.astype(np.int64))
    return elements


def vector_extent(loops: Nest) -> Floats:
    """Iterations of the vectorised loop, shape ``(n,)``; 1 where nothing is vectorised.

    Loops of the kind ``vectorize`` where there are any; of a statement that only copies in order, ``vectorize_limit``
    iterations of all loops fused (the surplus does nothing); else the innermost loop if it is spatial, at most
    ``vectorize_limit`` and encloses no other statement.
    """
    if "vectorize" in loops.kinds:
        return loops.product("vectorize")
    statement = loops.statement
    if _shape(statement).in_order:
        return loops.full(statement.vectorize_limit)
    if not statement.vectorize_limit or not loops.kept or loops.kept[-1] != len(statement.loops) - 1:
        return loops.full(1.0)
    if loops.reduction[-1] or not statement.vectorizable:
        return loops.full(1.0)
    return np.where(loops.extents[-1] <= statement.vectorize_limit, loops.extents[-1], 1.0)


def parallel_extent(loops: Nest, fusible: Ints | None = None) -> Floats:
    """Iterations that may run in parallel, shape ``(n,)``.

    Loops of the kind ``parallel`` (``blockIdx`` on CUDA) where there are any; else, with ``parallel_limit``, the
    leading spatial loops are fused until their product exceeds the limit, at most ``fusible`` of them and at most
    :attr:`Statement.fusible` (a loop that also encloses another block ends the fusion; None: no such loop). The
    vectorised loop is not among them. Of a statement that only copies in order all loops, by vectors.
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
    # The loop that exceeds the limit is still taken in, and ends the fusion.
    if _shape(loops.statement).in_order:
        return np.ceil(loops.points() / vector_extent(loops))
    last = np.add.reduce((loops.outer[:leading] <= limit).view(np.uint8), axis=0, dtype=np.int64)
    if leading == loops.depth > 0 and loops.statement.vectorizable and loops.kept[-1] == len(loops.statement.loops) - 1:
        vectorised = loops.extents[-1] <= loops.statement.vectorize_limit
        last = np.where(vectorised, np.minimum(last, loops.depth - 1), last)
    return loops.pick(loops.outer, last if fusible is None else np.minimum(last, fusible))


def enclosing_depth(sketch: Sketch, main: Nest, statement: Statement, matrix: Matrix) -> Ints:
    """Number of the main statement's (kept) loops that enclose ``statement``, shape ``(n,)``.

    0 for a nest of its own, ``INLINE_LOCATION`` where it is inlined. TVM passes over loops of one iteration: where all
    loops outside of the chosen place are such, the statement keeps a nest of its own.
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
