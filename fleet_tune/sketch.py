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

ROOT_LOCATION = -1
INLINE_LOCATION = -2

LoopKind = Literal["serial", "parallel", "vectorize", "unroll", "blockIdx.x", "threadIdx.x", "vthread"]
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
    """An iteration axis of a statement before any split."""

    name: str
    extent: int
    reduction: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop after splits and reorder. Its extent is the decision column ``column``, or ``extent`` where that is None.

    ``axis`` indexes :attr:`Statement.axes`; the product of the extents of one axis' loops is the axis' extent.
    """

    axis: int
    column: int | None
    extent: int = 0
    kind: LoopKind = "serial"


@dataclass(frozen=True, slots=True)
class Access:
    """An affine access: dimension ``k`` of the buffer is indexed by ``sum_j index[k][j] * axis_j + constant``.

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


@dataclass(frozen=True, slots=True)
class Statement:
    """One block of the scheduled program.

    ``loops``: from the outermost to the innermost. ``flop_per_point``: float operations per innermost iteration.
    ``accumulator_depth``: number of leading loops outside the register-resident accumulator tile, None where the
    accumulator lives in memory. ``location_column``: the decision column that says where this block is computed, None
    where it is fixed; then ``fixed_depth`` leading loops of the main statement enclose it (0 for its own loop nest).
    ``parallel_limit`` / ``vectorize_limit``: leading loops are fused and run in parallel, the innermost is vectorised,
    up to these extents (0: only loops whose ``kind`` says so). ``unroll_column``: column of the unroll Choice.
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


@dataclass(frozen=True)
class Sketch:
    """One design space of a task.

    ``rule``: the sketch rule that made it. ``statements``: the main statement (most operations) first; empty where the
    trace could not be described symbolically (``undescribed`` says why): such a sketch can be sampled and measured,
    and is modelled from its decisions alone.
    """

    index: int
    rule: str
    trace_text: str
    decisions: tuple[Decision, ...]
    statements: tuple[Statement, ...]
    undescribed: str = ""

    @cached_property
    def id(self) -> str:
        """Content hash of the trace with its decisions left open."""
        return hashlib.blake2b(self.trace_text.encode(), digest_size=8).hexdigest()

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
