"""The symbolic sketch: one design space of a task, described without TVM.

A sketch is a schedule trace whose sampling decisions are open. ``devices`` reads the trace once and describes it with
the types below; ``policies`` then evaluates whole matrices of decisions with numpy, with no TVM call.

Decision vector. The decisions of a sketch are laid out side by side as integer columns, in the order of
:attr:`Sketch.decisions`:

- :class:`Tile`: ``parts`` columns, the factors from the outermost to the innermost loop; their product is ``extent``
  and the last is at most ``innermost_limit``;
- :class:`Choice`: one column, an index into ``values``;
- :class:`Location`: one column, an index into ``locations``.

Notation used below and in ``policies``: a matrix of decisions has the shape ``(n, d)`` with ``d = Sketch.width``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

IMPORTED = "imported"
"""The rule of sketches that no rule makes: of traces that were found elsewhere."""
MOST_IMPORTED = 4
"""Such sketches of a task, those of the fastest traces: each is searched as the others are."""
ROOT_LOCATION = -1
INLINE_LOCATION = -2

LoopKind = Literal[
    "serial", "parallel", "vectorize", "unroll", "blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y", "vthread"
]
Scope = Literal["global", "shared", "local"]


@dataclass(frozen=True, slots=True)
class Tile:
    """Split of a loop of ``extent`` iterations into ``parts`` factors; the innermost is at most ``innermost_limit``."""

    extent: int
    parts: int
    innermost_limit: int

    @property
    def width(self) -> int:
        return self.parts


@dataclass(frozen=True, slots=True)
class Choice:
    """One of ``values`` (an unroll limit, a vector length, ...); ``name`` says of what."""

    name: str
    values: tuple[int, ...]

    @property
    def width(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Location:
    """Where a block is computed: a loop depth of the block that it is computed at, or one of the two above."""

    block: str
    locations: tuple[int, ...]

    @property
    def width(self) -> int:
        return 1


Decision = Tile | Choice | Location


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration axis of a statement before any split.

    ``digits``: where loops were fused before they were split, or where a buffer is indexed by quotients and remainders
    of the axis, the extents that the axis is made of, from the slowest; their product is ``extent``. Empty for a plain
    axis, which is its own only digit. ``extent`` is an upper bound where the real one follows from a decision (the
    partial results of an rfactor).
    """

    name: str
    extent: int
    reduction: bool
    digits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop after splits and reorder. ``axis`` indexes :attr:`Statement.axes`. Its extent is

    - the decision column ``column`` (a factor of a tile), or with ``values`` the value chosen by that column;
    - with ``rest``, what the other loops of the axis leave: ``ceil(axis extent / product of their extents)``; such a
      loop is the slowest of its axis, wherever it stands (a grid-stride loop stands inside of the faster ones);
    - else ``extent``.

    The product of the extents of one axis' loops is the axis' extent, or more where a rest was rounded up: the surplus
    iterations do nothing. ``partial``: the axis of partial results that a loop over a reduction axis also runs over
    (rfactor): it then reduces nothing.
    """

    axis: int
    column: int | None
    extent: int = 0
    kind: LoopKind = "serial"
    values: tuple[int, ...] = ()
    rest: bool = False
    partial: int | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """An affine access: dimension ``k`` of the buffer is indexed by ``sum_j index[k][j] * digit_j + constant``, where
    the digits of all axes are counted on from the first axis (:attr:`Axis.digits`; a plain axis is one digit).

    ``row_align``: rows of the last dimension are padded to a length that is ``row_align[1]`` modulo ``row_align[0]``
    (0, 0: not padded); only where the buffer is laid out in shared memory.

    ``packed``: a constant weight that is re-laid out at compile time in the order of the loops, so that it is read
    contiguously whatever the strides of its original layout are.
    """

    buffer: str
    shape: tuple[int, ...]
    element_bytes: int
    index: tuple[tuple[int, ...], ...]
    write: bool = False
    scope: Scope = "global"
    packed: bool = False
    row_align: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Statement:
    """One block of the scheduled program.

    ``loops``: from the outermost to the innermost. ``flop_per_point``: float operations per innermost iteration.
    ``accumulator_depth``: number of leading loops outside the register-resident accumulator tile, None where the
    accumulator lives in memory. ``location_column``: the decision column that says where this block is computed, None
    where it is fixed; then ``fixed_depth`` leading loops of the main statement enclose it (0 for its own loop nest).
    ``parallel_limit`` / ``vectorize_limit``: leading loops are fused and run in parallel, the innermost is vectorised,
    up to these extents (0: only loops whose ``kind`` says so). ``unroll_column``: column of the unroll Choice.

    Where a statement is computed inside of another one and its loops are known all the same, ``loops`` lists the
    enclosing ones too, on its own axes (an axis that no access depends on repeats the computation), and its place is
    that of a nest of its own (``fixed_depth`` 0). ``fusible``: number of leading loops that may be fused into one
    parallel loop, because no other statement stands between them; None: all of them. ``vectorizable``: the innermost
    loop encloses no other statement.
    ``held_depth``: of those enclosing loops, the number outside of which no more is kept of what it writes than it
    computes inside of them. ``warp``: lanes that work together on one iteration of the innermost thread loop (tensor
    cores), else 1. ``versions``: how many of each buffer that it writes are kept at once, for as many iterations of a
    software pipeline.
    """

    name: str
    axes: tuple[Axis, ...]
    loops: tuple[Loop, ...]
    accesses: tuple[Access, ...]
    flop_per_point: float
    accumulator_depth: int | None = None
    location_column: int | None = None
    fixed_depth: int = 0
    parallel_limit: int = 0
    vectorize_limit: int = 0
    unroll_column: int | None = None
    fusible: int | None = None
    vectorizable: bool = True
    held_depth: int = 0
    warp: int = 1
    versions: int = 1


@dataclass(frozen=True, slots=True)
class RowStep:
    """What a row-wise kernel does to every row at one go: it reduces the row, or computes something of each element.

    ``elements``: of a row. ``few``: of a reduction, the lanes that are added up last, one by one; 0 where it computes
    element by element. ``column``: the decision column that its lanes follow from, None where they are 1: of a
    reduction that of a :class:`Choice` (``few`` times the chosen value), else the innermost factor of a tile.

    For each element (what is the same for a whole row is not counted): ``operations``, float additions,
    multiplications and comparisons, ``divisions``, and ``calls`` of functions such as exp; the values of it that are
    read (``reads``) and written (``writes``).
    """

    name: str
    elements: int
    few: int
    column: int | None
    operations: int
    divisions: int
    calls: int
    reads: int
    writes: int


@dataclass(frozen=True, slots=True)
class RowWise:
    """A kernel that takes a few rows through all of its steps before it goes on to the next, in parallel.

    ``rows``: of all. ``together``: the decision column that holds how many rows go through a step together.
    ``steps``: in their order. For each row: ``held_bytes``, what all of its buffers have of it, and ``moved_bytes``,
    what those of them have that outlast the kernel: its arguments and results.
    """

    rows: int
    together: int
    steps: tuple[RowStep, ...]
    held_bytes: int
    moved_bytes: int


@dataclass(frozen=True)
class Sketch:
    """One design space of a task.

    ``variants``: where several statements may be computed at different places, the description for every combination
    of places; the decision vector chooses the variant ``variant_of[i]``, ``i`` being its Location columns read as the
    digits of a number (the first the slowest, the base of each the number of its locations). ``statements`` is then
    the first variant. Empty where ``statements`` describes every candidate.

    ``rule``: the sketch rule that made it. ``statements``: the main statement (most operations) first; empty where the
    trace could not be described so. ``row_wise``: what it does to a row, of sketches of that kind, which have no
    statements: a loop whose extent is chosen from a list is none of what these know. One with neither is not described
    (``undescribed`` says why): it can be sampled and measured, and is modelled from its decisions alone.
    """

    index: int
    rule: str
    trace_text: str
    decisions: tuple[Decision, ...]
    statements: tuple[Statement, ...]
    undescribed: str = ""
    variants: tuple[tuple[Statement, ...], ...] = ()
    variant_of: tuple[int, ...] = ()
    row_wise: RowWise | None = None

    @property
    def described(self) -> bool:
        """Whether the analyzer knows what its candidates do."""
        return bool(self.statements) or self.row_wise is not None

    @cached_property
    def id(self) -> str:
        """Content hash of the trace with its decisions left open; one that no rule makes says so."""
        digest = hashlib.blake2b(self.trace_text.encode(), digest_size=8).hexdigest()
        return f"{IMPORTED}-{digest}" if self.rule == IMPORTED else digest

    @cached_property
    def _hash(self) -> int:
        return hash((self.trace_text, self.decisions, self.statements, len(self.variants)))

    def __hash__(self) -> int:
        """Worked out once: caches are asked by sketches, and a sketch may have thousands of statements."""
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        """Without the hash, which is another one in every process."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First column of each decision."""
        starts, at = [], 0
        for decision in self.decisions:
            starts.append(at)
            at += decision.width
        return tuple(starts)

    @property
    def width(self) -> int:
        """Number of columns of a decision vector."""
        return sum(decision.width for decision in self.decisions)
