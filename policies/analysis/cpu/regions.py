"""Candidates that TVM refuses because of a loop whose extent is not the same everywhere.

A statement that is placed inside of the main one works on the region of a buffer that is touched there. Where the
region is counted in pieces (the vectors that a padding was split into, the groups of a grouped convolution), and begins
in the middle of one, it has one piece more in some places than in others, and TVM's ``DisallowDynamicLoop`` refuses
that. The rules follow TVM's arithmetic as far as needed: of 755 recorded candidates that TVM refused they miss two, and
they rule out one of those that ran. A digit whose step is no multiple of its turn counts as continuous.

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
    """The same for the candidates ``here``, which all have the statement at ``depth``, and for one buffer."""
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
            if turn < statement.axes[axis].extent:  # a slower digit goes on where this one begins again
                moves = [(extent, step % turn) for extent, step in moves]
            if faster > 1 and piece % coefficient == 0 and piece > 1:
                # Pieces of whole groups: what is divided twice is divided by the product.
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
    """Values of its axis that one iteration of a loop is: the iterations of the faster loops of that axis."""
    main = program.main
    step = np.ones(len(here), dtype=main.extents.dtype)
    for other in range(loop + 1, main.depth):
        if main.axes[other] == main.axes[loop]:
            step = step * main.extents[other][here]
    return step


class _Starts:
    """Possible starts of regions: for each loop around them how often it moves the start, and by how much, ``(n,)``."""

    def __init__(self, count: int, moves: Sequence[tuple[Floats, Floats]] = ()) -> None:
        self._none = np.zeros(count, dtype=np.int64)
        self._moves: list[tuple[Ints, Ints]] = []
        self.add(moves, 1)

    def add(self, moves: Sequence[tuple[Floats, Floats]], coefficient: int) -> None:
        """Loops (extent, step) of an axis, of which each value is ``coefficient`` elements."""
        for extent, step in moves:
            times = extent.astype(np.int64) - 1
            self._moves.append((times, np.where(times > 0, step.astype(np.int64) * coefficient, 0)))

    def add_groups(self, groups: _Starts, size: int, coefficient: int) -> None:
        """Starts within an axis of which each ``size`` values are a group of ``coefficient`` elements."""
        exact = groups._last(size) < size  # what is left of the steps never makes a group more
        for times, step in groups._moves:
            whole = np.where(exact, step // size, np.where(step % size == 0, step // size, np.minimum(step, 1)))
            self._moves.append((times, whole * coefficient))

    def _last(self, piece: int) -> Ints:
        """The last start, of each step only what is left of whole pieces."""
        last = self._none
        for times, step in self._moves:
            last = last + times * (step % piece)
        return last

    def unaligned(self, piece: int) -> NDArray[np.bool_]:
        """True where a step is longer than a piece and not a multiple of it: TVM does not see then that their number is
        the same everywhere, unless what is left of the steps never makes a piece more."""
        odd = np.zeros(self._none.shape, dtype=bool)
        for _, step in self._moves:
            odd |= (step > piece) & (step % piece > 0)
        return np.asarray(odd & (self._last(piece) >= piece))

    def vary(self, length: Floats, piece: int) -> NDArray[np.bool_]:
        """True where regions of this length may have different numbers of pieces, as far as TVM can tell.

        It takes whole pieces out of the steps, divides begin and end by what the steps and the piece have in common,
        and else looks at their bounds.
        """
        end = length.astype(np.int64) - 1
        common = np.gcd.reduce([self._none, *(step for _, step in self._moves)], axis=0)
        unit = np.gcd(common, piece)
        same = (end // unit) % (piece // unit) == 0
        last = self._last(piece)
        in_bounds = (last < piece) & (end // piece == (last + end) // piece)
        return np.asarray((common > 0) & ~same & ~in_bounds)


def _faster_digits(digits: Sequence[tuple[int, int]], digit: int) -> int:
    """Values of a digit's axis for each of which the digit stays the same: the extents of the faster ones."""
    product = 1
    for axis, extent in digits[digit + 1 :]:
        product *= extent if axis == digits[digit][0] else 1
    return product


def _vector_along(beside: ProducerConsumer, made: Access, dimension: int) -> int:
    """Iterations of the vectorised loop that a statement was split into along a dimension of what it writes, else 1."""
    loop = beside.statement.loops[-1] if beside.statement.loops else None
    if loop is None or loop.kind != "vectorize" or loop.column is not None:
        return 1
    fastest = max(at for at, (axis, _) in enumerate(shape_of(beside.statement).digits) if axis == loop.axis)
    return loop.extent if made.index[dimension][fastest] else 1
