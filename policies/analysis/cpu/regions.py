"""Candidates that TVM refuses because the extent of a loop is not constant.

A statement placed inside the main nest works on the region of a buffer that the main statement touches there. The
region may be counted in pieces: the vectors that a padding was split into, or the groups of a grouped convolution. If
it begins in the middle of a piece, it has one piece more in some iterations than in others, and TVM's
``DisallowDynamicLoop`` refuses that. The rules follow TVM's arithmetic as far as needed: they miss two of 755 recorded
candidates that TVM refused, and rule out one of those that ran. A digit counts as continuous if its step is not a
multiple of its period.

``n`` candidates; every vector has the shape ``(n,)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import Access
from policies.analysis.cpu.parts import ProducerConsumer
from policies.analysis.cpu.program import Program
from policies.analysis.nests import dimensions_of, shape_of
from policies.analysis.quantities import Ints, dimension_ranges
from policies.arrays import Floats


def refused(program: Program, beside_statements: Sequence[ProducerConsumer]) -> NDArray[np.bool_]:
    """True where a statement that a decision places has a loop whose extent is not constant."""
    main = program.main
    bad = np.zeros(main.count, dtype=bool)
    for beside in beside_statements:
        if beside.statement.location_column is None:
            continue
        for access in program.statement.accesses:
            made = [its for its in beside.statement.accesses if its.write and its.buffer == access.buffer]
            for depth in range(1, main.depth + 1) if made else ():
                here = np.flatnonzero(beside.depth == depth)
                if len(here):
                    bad[here] |= _varies(program, beside, access, made[0], depth, here)
    return bad


def _varies(
    program: Program, beside: ProducerConsumer, access: Access, made: Access, depth: int, here: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return what :func:`refused` returns, for one buffer and the candidates ``here``, which all have the statement at
    ``depth``."""
    main, statement = program.main, program.statement
    digits = shape_of(statement).digits
    inside = [axis[here] for axis in main.inside(depth)]
    lengths = dimension_ranges(statement, access, inside)
    varies = np.zeros(len(here), dtype=bool)
    for at, dimension in enumerate(dimensions_of(statement, access)):
        piece = _vector_along(beside, made, at)
        if piece == 1 and all(_faster_digits(digits, digit) == 1 for digit, _ in dimension.digits):
            continue
        starts = _Starts(len(here))
        for digit, coefficient in dimension.digits:
            axis, faster = digits[digit][0], _faster_digits(digits, digit)
            moves = [(main.extents[k][here], _step(program, k, here)) for k in range(depth) if main.axes[k] == axis]
            turn = faster * digits[digit][1]
            if turn < statement.axes[axis].extent:  # this digit wraps around, and a slower one advances
                moves = [(extent, step % turn) for extent, step in moves]
            if faster > 1 and piece % coefficient == 0 and piece > 1:
                # Pieces of whole groups: dividing twice is dividing by the product.
                varies |= _Starts(len(here), moves).vary(inside[axis], piece // coefficient * faster)
            elif faster > 1:
                groups = _Starts(len(here), moves)
                varies |= groups.vary(inside[axis], faster)
                if piece == 1:
                    varies |= groups.unaligned(faster)
                starts.add_groups(groups, faster, coefficient)
            else:
                starts.add(moves, coefficient)
        if piece > 1:
            varies |= starts.vary(lengths[at], piece)
    return varies


def _step(program: Program, loop: int, here: NDArray[np.intp]) -> Floats:
    """Step of a loop along its axis: the product of the extents of the faster loops of that axis."""
    main = program.main
    step = np.ones(len(here), dtype=main.extents.dtype)
    for other in range(loop + 1, main.depth):
        if main.axes[other] == main.axes[loop]:
            step = step * main.extents[other][here]
    return step


class _Starts:
    """Possible starts of regions: how often each loop around them moves the start, and by how much, each ``(n,)``."""

    def __init__(self, count: int, moves: Sequence[tuple[Floats, Floats]] = ()) -> None:
        self._none = np.zeros(count, dtype=np.int64)
        self._moves: list[tuple[Ints, Ints]] = []
        self.add(moves, 1)

    def add(self, moves: Sequence[tuple[Floats, Floats]], coefficient: int) -> None:
        """Add the loops (extent, step) of an axis. Each value of the axis is ``coefficient`` elements."""
        for extent, step in moves:
            times = extent.astype(np.int64) - 1
            self._moves.append((times, np.where(times > 0, step.astype(np.int64) * coefficient, 0)))

    def add_groups(self, groups: _Starts, size: int, coefficient: int) -> None:
        """Add the starts within an axis. Each ``size`` values of the axis are a group of ``coefficient`` elements."""
        exact = groups._last(size) < size  # the remainders of the steps never add up to one more group
        for times, step in groups._moves:
            whole = np.where(exact, step // size, np.where(step % size == 0, step // size, np.minimum(step, 1)))
            self._moves.append((times, whole * coefficient))

    def _last(self, piece: int) -> Ints:
        """The last start, with each step reduced to its remainder modulo ``piece``."""
        last = self._none
        for times, step in self._moves:
            last = last + times * (step % piece)
        return last

    def unaligned(self, piece: int) -> NDArray[np.bool_]:
        """True where a step is longer than a piece and not a multiple of it. TVM then does not see that the number of
        pieces is constant, unless the remainders of the steps never add up to one more piece."""
        odd = np.zeros(self._none.shape, dtype=bool)
        for _, step in self._moves:
            odd |= (step > piece) & (step % piece > 0)
        return np.asarray(odd & (self._last(piece) >= piece))

    def vary(self, length: Floats, piece: int) -> NDArray[np.bool_]:
        """True where regions of this length may have different numbers of pieces, as far as TVM can tell.

        TVM takes whole pieces out of the steps, divides start and end by the common divisor of the steps and the piece,
        and otherwise looks at their bounds.
        """
        end = length.astype(np.int64) - 1
        common = np.gcd.reduce([self._none, *(step for _, step in self._moves)], axis=0)
        unit = np.gcd(common, piece)
        same = (end // unit) % (piece // unit) == 0
        last = self._last(piece)
        in_bounds = (last < piece) & (end // piece == (last + end) // piece)
        return np.asarray((common > 0) & ~same & ~in_bounds)


def _faster_digits(digits: Sequence[tuple[int, int]], digit: int) -> int:
    """Number of consecutive values of its axis for which a digit stays the same: the product of the faster digits'
    extents."""
    product = 1
    for axis, extent in digits[digit + 1 :]:
        product *= extent if axis == digits[digit][0] else 1
    return product


def _vector_along(beside: ProducerConsumer, made: Access, dimension: int) -> int:
    """Extent of a statement's innermost loop if it is vectorised, its extent is fixed, and it runs along ``dimension``
    of the written buffer; else 1."""
    loop = beside.statement.loops[-1] if beside.statement.loops else None
    if loop is None or loop.kind != "vectorize" or loop.column is not None:
        return 1
    fastest = max(at for at, (axis, _) in enumerate(shape_of(beside.statement).digits) if axis == loop.axis)
    return loop.extent if made.index[dimension][fastest] else 1
