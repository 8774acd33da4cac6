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
from math import prod
from typing import Literal

from fleet_tune.base.domain import Arithmetic

IMPORTED = "imported"
"""Name of the rule of sketches that no sketch rule made: their traces were found elsewhere."""
MOST_IMPORTED = 4
"""Largest number of such sketches of a task. Those of the fastest traces are kept, and searched like all other
sketches."""
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
    """One of several values: an unroll limit, a vector length, ..."""

    name: str
    """Name of the chosen quantity."""
    values: tuple[int, ...]

    @property
    def width(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Location:
    """Place where a block is computed: a loop depth of the block that it is computed at, or :data:`ROOT_LOCATION` or
    :data:`INLINE_LOCATION`."""

    block: str
    locations: tuple[int, ...]

    @property
    def width(self) -> int:
        return 1


Decision = Tile | Choice | Location


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration axis of a statement before any split."""

    name: str
    extent: int
    """Extent of the axis. An upper bound if the real one follows from a decision (the partial results of an rfactor).
    """
    reduction: bool
    digits: tuple[int, ...] = ()
    """Extents that the axis is made of, from the slowest; their product is ``extent``. Used if loops were fused before
    they were split, or if a buffer is indexed by quotients and remainders of the axis. Empty for a plain axis, which is
    its own only digit."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop after splits and reorder. ``axis`` indexes :attr:`Statement.axes`. Its extent is

    - the decision column ``column`` (a factor of a tile), or with ``values`` the value chosen by that column;
    - with ``rest``, what the other loops of the axis leave: ``ceil(axis extent / product of their extents)``; such a
      loop is the slowest of its axis, wherever it stands (a grid-stride loop stands inside of the faster ones);
    - else ``extent``.

    The product of the extents of one axis' loops is the axis' extent, or more if a rest was rounded up: the surplus
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
    (0, 0: not padded). This only applies to a buffer in shared memory.

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

    A statement may be computed inside another statement although all of its loops are known. ``loops`` then also lists
    the enclosing loops, on axes of the statement itself (an axis that no access depends on repeats the computation),
    and the statement counts as a loop nest of its own (``fixed_depth`` 0).
    """

    name: str
    axes: tuple[Axis, ...]
    loops: tuple[Loop, ...]
    """Loops from the outermost to the innermost."""
    accesses: tuple[Access, ...]
    flop_per_point: float
    """Float operations per innermost iteration."""
    accumulator_depth: int | None = None
    """Number of leading loops outside the register-resident accumulator tile. None: the accumulator lives in memory."""
    location_column: int | None = None
    """Decision column of the place where this block is computed. None: the place is fixed."""
    fixed_depth: int = 0
    """Number of leading loops of the main statement that enclose it, for a fixed place. 0: it has its own loop nest."""
    parallel_limit: int = 0
    """Extent up to which leading loops are fused and run in parallel. 0: only loops whose ``kind`` says so."""
    vectorize_limit: int = 0
    """Extent up to which the innermost loop is vectorised. 0: only loops whose ``kind`` says so."""
    unroll_column: int | None = None
    """Column of the unroll Choice."""
    fusible: int | None = None
    """Number of leading loops that may be fused into one parallel loop, because no other statement stands between them.
    None: all of them."""
    vectorizable: bool = True
    """True if the innermost loop encloses no other statement."""
    held_depth: int = 0
    """Number of outer loops that are outside the buffer of its output: the buffer holds only what one iteration of
    these loops computes."""
    warp: int = 1
    """Lanes that work together on one iteration of the innermost thread loop (tensor cores), else 1."""
    versions: int = 1
    """Number of copies of each written buffer that are kept at once, for as many iterations of a software pipeline."""
    arithmetic: Arithmetic = "float32"
    """Type of the numbers that its operations compute with."""

    @property
    def operations(self) -> float:
        """Float operations of all iterations."""
        return self.flop_per_point * prod(axis.extent for axis in self.axes)


@dataclass(frozen=True, slots=True)
class RowStep:
    """Step of a row-wise kernel on every row: it reduces the row, or computes something of each element.

    Operations are counted for each element. Operations that are done once for a whole row are not counted.
    """

    name: str
    elements: int
    """Elements of a row."""
    few: int
    """Lanes of a reduction that are added up last, one by one. 0: the step computes element by element."""
    column: int | None
    """Decision column that determines the number of lanes. For a reduction it is the column of a :class:`Choice`, and
    there are ``few`` times the chosen value of lanes; else it is the innermost factor of a tile. None: 1 lane."""
    operations: int
    """Float additions, multiplications and comparisons."""
    divisions: int
    """Divisions."""
    calls: int
    """Calls of functions such as exp."""
    reads: int
    """Values that are read."""
    writes: int
    """Values that are written."""


@dataclass(frozen=True, slots=True)
class RowWise:
    """A kernel that takes a few rows through all of its steps before it goes on to the next rows, in parallel."""

    rows: int
    """Number of all rows."""
    together: int
    """Decision column with the number of rows that go through a step together."""
    steps: tuple[RowStep, ...]
    """Steps in their order."""
    held_bytes: int
    """Bytes of all buffers for each row."""
    moved_bytes: int
    """Bytes of arguments and results for each row."""


@dataclass(frozen=True)
class Sketch:
    """One design space of a task.

    A sketch with neither statements nor row-wise steps is not described: it can be sampled and measured, and is
    modelled from its decisions alone.
    """

    index: int
    rule: str
    """Sketch rule that made it."""
    trace_text: str
    decisions: tuple[Decision, ...]
    statements: tuple[Statement, ...]
    """Statements, the main one (most operations) first. Empty if the trace could not be described by statements."""
    undescribed: str = ""
    """Reason why it is not described. Empty if it is."""
    variants: tuple[tuple[Statement, ...], ...] = ()
    """Descriptions for every combination of places, if several statements may be computed at different places.
    ``statements`` is then the first variant. Empty if ``statements`` describes every candidate."""
    variant_of: tuple[int, ...] = ()
    """Variant of each combination of places. The decision vector chooses ``variant_of[i]``: ``i`` are its Location
    columns read as the digits of a number (the first is the slowest, the base of each is the number of its locations).
    """
    row_wise: RowWise | None = None
    """Steps on a row, for row-wise kernels. Such sketches have no statements, which cannot express a loop whose extent
    is chosen from a list."""
    fewer_rows: tuple[SketchOfFewerRows, ...] = ()
    """The same trace on the task's kernels over fewer rows. Empty for fixed shapes, for row-wise kernels, and if one of
    the task's sketches with statements is not described for them."""

    @property
    def described(self) -> bool:
        """True if the analyzer knows what its candidates do."""
        return bool(self.statements) or self.row_wise is not None

    @cached_property
    def id(self) -> str:
        """Content hash of the trace with its decisions left open. It has the prefix :data:`IMPORTED` if no sketch rule
        made the sketch."""
        digest = hashlib.blake2b(self.trace_text.encode(), digest_size=8).hexdigest()
        return f"{IMPORTED}-{digest}" if self.rule == IMPORTED else digest

    @cached_property
    def _hash(self) -> int:
        return hash((self.trace_text, self.decisions, self.statements, len(self.variants)))

    def __hash__(self) -> int:
        """Return the hash, which is computed once: sketches are keys of caches, and a sketch may have thousands of
        statements."""
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the cached hash, which differs from process to process."""
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


@dataclass(frozen=True)
class SketchOfFewerRows:
    """A sketch's trace on a kernel over fewer rows. Its decisions are of the same kinds; tiles have smaller extents."""

    sketch: Sketch
    work: float
    """See :attr:`fleet_tune.base.domain.FewerRows.work`."""
