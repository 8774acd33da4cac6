"""The loop nest of a statement for a matrix of decisions: extents, and iterations of loops and axes inside each depth.

Notation: ``n`` candidates, ``L`` *kept* loops (from the outermost, without loops whose extent is always 1), ``A`` axes.
*Depth* ``k`` is the sub-nest of the loops ``k..L-1``: depth 0 is the whole nest, depth ``L`` one point.
Arrays put the candidate last, ``(L + 1, n)``, so that each step is one numpy call over all candidates. All of them
have the floating type that the nest was made with; in float32 counts are exact up to ``2**24``, and products of small
factors beyond.

Properties that do not depend on the decisions are computed once for each statement and cached (:func:`shape_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.base.sketch import Access, Statement
from policies.arrays import Floats, Matrix

Ints = NDArray[np.int64]


def loop_extents(statement: Statement, matrix: Matrix) -> Floats:
    """Extent of every loop of the statement, shape ``(number of loops, n)``, loops of extent 1 included."""
    extents = np.empty((len(statement.loops), len(matrix)))
    _fill_extents(statement, matrix, range(len(statement.loops)), extents)
    return extents


def _fill_extents(statement: Statement, matrix: Matrix, loops: Sequence[int], extents: Floats) -> None:
    """Write the extents of these loops (:class:`fleet_tune.base.sketch.Loop`) into the rows of ``extents``."""
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
class Shape:
    """Properties of a nest that no decision changes; ``L`` kept loops."""

    statement: Statement

    loop_numbers: tuple[int, ...]
    """Indices of the kept loops in the statement."""
    axes: tuple[int, ...]
    """Axis of each kept loop."""
    kinds: tuple[str, ...]
    """Kind of each kept loop."""
    reduction: tuple[bool, ...]
    """True for kept loops that reduce; a loop that also runs over partial results does not."""
    step_depth: int
    """Depth just inside the innermost reduction loop."""
    parts: tuple[tuple[int, ...], ...]
    """Loops that run over each axis, from the outermost."""
    rows: tuple[tuple[int, ...], ...]
    """Number of loops over each axis inside each depth, by depth and axis."""
    digits: tuple[tuple[int, int], ...]
    """Axis and extent of every digit; a plain axis is one digit."""
    plain: bool
    """True if all axes are plain."""
    in_order: bool
    """True if the statement has a nest of its own that runs through all of its buffers in the order of their
    dimensions (:func:`_goes_in_order`)."""
    bounded: tuple[bool, ...]
    """True for axes whose extent is only an upper bound of the iterations of a candidate's loops."""
    dimensions: tuple[tuple[BufferDimension, ...], ...]
    """Dimensions of each access of the statement."""
    along_rows: tuple[bool, ...]
    """True for kept loops whose neighbouring iterations write neighbours in memory and reduce nothing."""
    repeats: tuple[bool, ...]
    """True for kept loops that no access depends on and that reduce nothing."""


@dataclass(frozen=True)
class BufferDimension:
    """One dimension of a buffer: ``size``, and (digit, absolute coefficient) of every digit that moves its index."""

    size: int
    digits: tuple[tuple[int, int], ...]


_SHAPES: dict[int, Shape] = {}
_SHAPES_KEPT = 4096


def shape_of(statement: Statement) -> Shape:
    """Properties of a statement's nest that no decision changes.

    They are cached by the identity of the statement: hashing a statement takes as long as evaluating dozens of
    candidates."""
    shape = _SHAPES.get(id(statement))
    if shape is None or shape.statement is not statement:
        if len(_SHAPES) >= _SHAPES_KEPT:
            _SHAPES.clear()
        shape = _SHAPES[id(statement)] = _make_shape(statement)
    return shape


def _make_shape(statement: Statement) -> Shape:
    loop_numbers = tuple(
        at
        for at, loop in enumerate(statement.loops)
        if statement.axes[loop.axis].extent > 1 and (loop.column is not None or loop.rest or loop.extent != 1)
    )
    loops = [statement.loops[at] for at in loop_numbers]
    axes = tuple(loop.axis for loop in loops)
    reduction = tuple(statement.axes[loop.axis].reduction and loop.partial is None for loop in loops)
    parts = tuple(
        tuple(at for at, loop in enumerate(loops) if axis in (loop.axis, loop.partial))
        for axis in range(len(statement.axes))
    )
    digits = _digits_of(statement)
    moves = [(loop.axis,) if loop.partial is None else (loop.axis, loop.partial) for loop in loops]
    strides = [
        [[unit_stride(statement, access, axis) for axis in axes_moved] for access in statement.accesses]
        for axes_moved in moves
    ]
    return Shape(
        statement=statement,
        loop_numbers=loop_numbers,
        axes=axes,
        kinds=tuple(statement.loops[at].kind for at in loop_numbers),
        reduction=reduction,
        step_depth=max((at + 1 for at, reduces in enumerate(reduction) if reduces), default=0),
        parts=parts,
        rows=tuple(
            tuple(sum(at >= depth for at in axis_loops) for axis_loops in parts)
            for depth in range(len(loop_numbers) + 1)
        ),
        digits=digits,
        plain=not any(axis.digits for axis in statement.axes),
        in_order=_goes_in_order(statement),
        bounded=tuple(
            len(axis_loops) == 1 and loops[axis_loops[0]].column is not None and not loops[axis_loops[0]].values
            for axis_loops in parts
        ),
        dimensions=tuple(_make_dimensions(digits, access) for access in statement.accesses),
        along_rows=tuple(
            not reduces
            and all(any(units) for units, access in zip(of_loop, statement.accesses, strict=True) if access.write)
            for of_loop, reduces in zip(strides, reduction, strict=True)
        ),
        repeats=tuple(
            not reduces and all(unit is None for units in of_loop for unit in units)
            for of_loop, reduces in zip(strides, reduction, strict=True)
        ),
    )


def _digits_of(statement: Statement) -> tuple[tuple[int, int], ...]:
    return tuple(
        (number, extent) for number, axis in enumerate(statement.axes) for extent in (axis.digits or (axis.extent,))
    )


def unit_stride(statement: Statement, access: Access, axis: int) -> bool | None:
    """Return true if neighbours along ``axis`` are neighbours in memory; None if the access does not depend on it."""
    digits = [j for j, (its, _) in enumerate(_digits_of(statement)) if its == axis]
    depends = [at for at, coefficients in enumerate(access.index) if any(coefficients[j] for j in digits)]
    if not depends or statement.axes[axis].extent == 1:
        return None
    if access.packed:
        return True
    # Neighbours differ in the fastest digit. It must move, by one, the last dimension that has more than one value.
    fastest = [at for at in depends if access.index[at][digits[-1]]]
    if len(fastest) != 1 or (len(digits) == 1 and len(depends) != 1):
        return False
    inner_is_unit = all(size == 1 for size in access.shape[fastest[0] + 1 :])
    return inner_is_unit and abs(access.index[fastest[0]][digits[-1]]) == 1


def stride_along(statement: Statement, access: Access, axis: int) -> int | None:
    """Elements between neighbours along a plain ``axis`` if both lie in one row in memory. None if they do not, if the
    axis is not plain, if the access is packed, or if it does not depend on the axis."""
    digits = [j for j, (its, _) in enumerate(_digits_of(statement)) if its == axis]
    depends = [at for at, coefficients in enumerate(access.index) if any(coefficients[j] for j in digits)]
    if len(digits) != 1 or len(depends) != 1 or access.packed:
        return None
    if any(size > 1 for size in access.shape[depends[0] + 1 :]):
        return None
    return abs(access.index[depends[0]][digits[0]])


def _goes_in_order(statement: Statement) -> bool:
    """Return true if TVM fuses all loops of the statement and splits them into vectors: no reduction, one loop for each
    axis in the order of the axes, and no access that takes the axes in another order (an access may leave axes
    out)."""
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


def _make_dimensions(digits: tuple[tuple[int, int], ...], access: Access) -> tuple[BufferDimension, ...]:
    return tuple(
        BufferDimension(size, tuple((j, abs(c)) for j, c in enumerate(coefficients) if c and digits[j][1] > 1))
        for size, coefficients in zip(access.shape, access.index, strict=True)
    )


def dimensions_of(statement: Statement, access: Access) -> tuple[BufferDimension, ...]:
    """The dimensions of the buffer of an access."""
    shape = shape_of(statement)
    for each, dimensions in zip(statement.accesses, shape.dimensions, strict=True):
        if each is access:
            return dimensions
    return _make_dimensions(shape.digits, access)


def in_digits(statement: Statement, inside: Sequence[Floats]) -> Sequence[Floats]:
    """Values that each digit takes while axis ``j`` runs over ``inside[j]`` consecutive values, each ``(n,)``.

    The fastest digit advances first; the next one advances once for each full cycle of it.
    """
    if shape_of(statement).plain:
        return inside
    values: list[Floats] = []
    for axis, within in zip(statement.axes, inside, strict=True):
        turns, axis_values = within, []
        for extent in reversed(axis.digits or (axis.extent,)):
            axis_values.append(np.minimum(turns, extent))
            turns = np.ceil(turns / extent)
        values += reversed(axis_values)
    return values


class Nest:
    """The loop nest of a statement for ``n`` candidates; arrays are computed on first use.

    ``extents`` (L, n): extent of each kept loop.
    """

    def __init__(self, statement: Statement, extents: Floats) -> None:
        self.statement = statement
        self.extents = extents
        self._shape = shape_of(statement)

    @property
    def count(self) -> int:
        return int(self.extents.shape[1])

    @property
    def depth(self) -> int:
        return len(self._shape.loop_numbers)

    @property
    def loop_numbers(self) -> tuple[int, ...]:
        """Indices of the kept loops in the statement: those whose extent is not 1 for every candidate."""
        return self._shape.loop_numbers

    @property
    def axes(self) -> tuple[int, ...]:
        """Axis of each kept loop."""
        return self._shape.axes

    def moves(self, at: int) -> tuple[int, ...]:
        """The axes that a kept loop runs over: its own, and that of partial results."""
        partial = self.statement.loops[self.loop_numbers[at]].partial
        return (self.axes[at],) if partial is None else (self.axes[at], partial)

    @property
    def kinds(self) -> tuple[str, ...]:
        return self._shape.kinds

    @property
    def reduction(self) -> tuple[bool, ...]:
        return self._shape.reduction

    @property
    def along_rows(self) -> tuple[bool, ...]:
        return self._shape.along_rows

    @property
    def repeats(self) -> tuple[bool, ...]:
        return self._shape.repeats

    @property
    def step_depth(self) -> int:
        """Depth just inside the innermost reduction loop: the sub-nest of one reduction step."""
        return self._shape.step_depth

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
        """Iterations inside the last 0 to ``p`` loops of each axis of ``p`` loops, shape ``(p + 1, n)``."""
        tables = []
        for parts in self._shape.parts:
            table = np.empty((len(parts) + 1, self.count), dtype=self.extents.dtype)
            table[0] = 1.0
            for row, at in enumerate(reversed(parts)):
                np.multiply(table[row], self.extents[at], out=table[row + 1])
            tables.append(table)
        return tuple(tables)

    def inside(self, depth: int) -> list[Floats]:
        """Iterations of each axis inside a depth, ``A`` vectors of shape ``(n,)``. The caller must not write to
        them."""
        return [table[row] for table, row in zip(self._axis_within, self._shape.rows[depth], strict=True)]

    def inside_at(self, depth: Ints) -> list[Floats]:
        """Like :meth:`inside`, at a depth that differs between candidates, shape ``(n,)``."""
        starts = np.array(self._shape.rows).T * self.count  # of the row of each axis and depth
        return [
            table[0] if len(table) == 1 else table.ravel()[start[depth] + self.columns]
            for table, start in zip(self._axis_within, starts, strict=True)
        ]

    def pick(self, table: Floats, depth: Ints) -> Floats:
        """``table[depth[i], i]`` of a table of shape ``(L + 1, n)``, shape ``(n,)``."""
        return np.asarray(table.ravel()[depth * self.count + self.columns])

    def compact_depth(self, depth: int) -> int:
        """Convert a depth counted in all loops of the statement to one counted in the kept loops."""
        return sum(at < depth for at in self.loop_numbers)

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
    """Product of vectors; ``one`` if there are none. The result is a new array only if there are several."""
    if not factors:
        return one
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total


def nest(statement: Statement, matrix: Matrix, dtype: DTypeLike = np.float64) -> Nest:
    """The nest of ``statement`` for every row of ``matrix``, computed in ``dtype``."""
    loop_numbers = shape_of(statement).loop_numbers
    extents = np.empty((len(loop_numbers), len(matrix)), dtype=dtype)
    _fill_extents(statement, matrix, loop_numbers, extents)
    return Nest(statement, extents)
