"""The loops around every block, as products of factors.

A block's loops run over its *frame*: its iteration variables, or the axes of its :class:`Rebinding`. Splitting, fusing
and reordering change lists of loops. A fused loop keeps the factors of its parts, so every loop stays a product of tile
factors, chosen values, constants and rests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from devices.sketches.description.accesses import Rebinding
from devices.sketches.description.undescribed import UndescribedError
from fleet_tune.base.sketch import LoopKind


@dataclass(frozen=True)
class Factor:
    """Part of the iterations of some axes."""

    axes: tuple[int, ...]
    """The axes, from the slowest. There are several if they were fused before they were split."""
    column: int | None = None
    """Decision column that gives its extent; with ``values``, the column that chooses one of them."""
    extent: int = 0
    """Its extent, if neither a decision nor the other factors give it."""
    values: tuple[int, ...] = ()
    """Values of the decision, if the decision is a choice."""
    rest: bool = False
    """True if its extent is the extent of the axes divided by their other factors, rounded up."""
    whole: bool = False
    """True if it covers its axes completely."""
    slowest: bool = False
    """True if it is the slowest part of a split of whole axes into constants."""
    partial: bool = False
    """True if it runs over partial results of an rfactor, so that nothing is summed up over it."""


@dataclass(eq=False)
class LoopState:
    """A loop."""

    factors: tuple[Factor, ...] | None
    """The factors whose product is the loop, from the slowest; None if they are not known."""
    kind: LoopKind = "serial"
    fused_into: LoopState | None = None

    @property
    def current(self) -> LoopState:
        loop = self
        while loop.fused_into is not None:
            loop = loop.fused_into
        return loop


@dataclass(eq=False)
class BlockState:
    """A block and its own loops."""

    name: str
    iters: tuple[Factor, ...]
    """Its iteration variables, each as a factor of its frame."""
    loops: list[LoopState]
    within: BlockState | None = None
    """The enclosing block that blockize made. Its loops enclose this block's, and both blocks share the frame."""
    at: tuple[BlockState, LoopState] | None = None
    """The target of compute_at: another block, and the loop of that block in which this one is computed."""
    column: int | None = None
    """Decision column that gives its place; None if the place is fixed."""
    rebinding: Rebinding | None = None
    warp: int = 1

    @property
    def top(self) -> BlockState:
        """The outermost enclosing block that blockize made, or this block. Its place is this block's place too."""
        return self if self.within is None else self.within.top


def copied(
    blocks: Mapping[str, BlockState], loops: Mapping[str, LoopState]
) -> tuple[dict[str, BlockState], dict[str, LoopState]]:
    """Return deep copies of blocks and named loops."""
    made_loops: dict[int, LoopState] = {}
    made_blocks: dict[int, BlockState] = {}

    def loop(old: LoopState) -> LoopState:
        if id(old) not in made_loops:
            into = None if old.fused_into is None else loop(old.fused_into)
            made_loops[id(old)] = LoopState(old.factors, old.kind, into)
        return made_loops[id(old)]

    def block(old: BlockState) -> BlockState:
        if id(old) not in made_blocks:
            copy = made_blocks[id(old)] = BlockState(
                old.name,
                old.iters,
                [loop(each) for each in old.loops],
                column=old.column,
                rebinding=old.rebinding,
                warp=old.warp,
            )
            copy.within = None if old.within is None else block(old.within)
            copy.at = None if old.at is None else (block(old.at[0]), loop(old.at[1]))
        return made_blocks[id(old)]

    return {name: block(old) for name, old in blocks.items()}, {name: loop(old) for name, old in loops.items()}


def axis_factors(extents: Sequence[int]) -> tuple[Factor, ...]:
    """Return the iteration variables of a fresh block."""
    return tuple(Factor((i,), extent=extent, whole=True) for i, extent in enumerate(extents))


def distinct(loops: Sequence[LoopState]) -> list[LoopState]:
    """Return the current loops without repetition: fused loops are replaced by the loop that they became."""
    return list(dict.fromkeys(loop.current for loop in loops))


def framed(block: BlockState) -> list[tuple[BlockState, LoopState]]:
    """Return all loops around a block from the outermost, each with the block whose frame it runs over. Raises
    :class:`UndescribedError` if the place of the block is sampled."""
    if block.column is not None:
        raise UndescribedError(f"loops of block {block.name} after its location was sampled")
    around: list[tuple[BlockState, LoopState]] = []
    if block.within is not None:
        around = framed(block.within)
    elif block.at is not None:
        target, loop = block.at
        outside = framed(target)
        at = next(i for i, (_, each) in enumerate(outside) if each is loop.current)
        around = outside[: at + 1]
    return [*around, *((block, loop) for loop in distinct(block.loops))]


def nest_of(block: BlockState, count: int) -> list[LoopState]:
    """Return the loops around a block, from the outermost. Raises :class:`UndescribedError` unless there are ``count``
    of them."""
    loops = [loop for _, loop in framed(block)]
    if len(loops) != count:
        raise UndescribedError(f"block {block.name} has {count} loops, not {len(loops)}")
    return loops


def frame_extents(block: BlockState) -> list[int]:
    """Return the extents of the axes that the factors of a block's loops count."""
    if block.rebinding is not None:
        return [axis.extent for axis in block.rebinding.axes]
    return [factor.extent for factor in block.iters]


def moved(block: BlockState) -> None:
    """Replace the loops of a block by those that a move makes: one for each iteration variable, over the elements that
    are needed at the new place."""
    fresh = []
    for factor in block.iters:
        fixed = factor.column is not None or factor.partial or not factor.whole
        fresh.append(LoopState((factor if fixed else Factor(factor.axes, rest=True, whole=True),)))
    block.loops[:] = fresh


def split(
    loop: LoopState,
    parts: Sequence[tuple[int | None, int | None, tuple[int, ...]]],
    extents: Sequence[int],
) -> list[LoopState]:
    """Return the loops that splitting a loop makes. Their factors are None if they cannot be expressed.

    Args:
        loop: the loop.
        parts: for each part its decision column, its size, and the values of the column if that is a choice. The first
            part may have neither column nor size: its extent is then the rest.
        extents: extents of the axes of the loop's frame.
    """
    whole = _merged(loop.factors or (), extents)
    open_parts = [i for i, (column, size, _) in enumerate(parts) if column is None and size is None]
    if whole is None or whole.column is not None or open_parts not in ([], [0]):
        return [LoopState(None) for _ in parts]
    constant = not whole.rest and all(column is None for column, _, _ in parts)
    if open_parts and not constant and not (whole.whole or whole.rest):
        return [LoopState(None) for _ in parts]
    factors = []
    for column, size, values in parts:
        if column is not None:
            factors.append(Factor(whole.axes, column, values=values))
        elif size is not None:
            factors.append(Factor(whole.axes, extent=size))
        elif constant:
            extent = -(-whole.extent // prod(each or 1 for _, each, _ in parts))
            factors.append(Factor(whole.axes, extent=extent, slowest=whole.whole))
        else:
            factors.append(Factor(whole.axes, rest=True))
    return [LoopState((factor,)) for factor in factors]


def _merged(factors: Sequence[Factor], extents: Sequence[int]) -> Factor | None:
    """Return the factors of a loop as one factor; None if there are several and one does not cover its axes
    completely."""
    if len(factors) == 1:
        return factors[0]
    if not factors or not all(factor.whole for factor in factors):
        return None
    axes = tuple(axis for factor in factors for axis in factor.axes)
    long = tuple(axis for axis in axes if extents[axis] > 1) or axes[-1:]
    return Factor(long, extent=prod(extents[a] for a in long), rest=any(f.rest for f in factors), whole=True)


def fuse(owner: list[LoopState], loops: Sequence[LoopState]) -> LoopState:
    """Fuse neighbouring ``loops`` of the list ``owner``, which is changed, and return the fused loop."""
    parts = [loop.current for loop in loops]
    described = [part.factors for part in parts if part.factors is not None]
    fused = LoopState(tuple(f for factors in described for f in factors) if len(described) == len(parts) else None)
    at = owner.index(parts[0])
    owner[at : at + len(parts)] = [fused]
    for part in parts:
        part.fused_into = fused
    return fused


def reorder(owner: list[LoopState], order: Sequence[LoopState]) -> None:
    """Reorder some loops of the list ``owner``: the loops of ``order`` take the positions that they occupy together, in
    this order."""
    places = sorted(owner.index(loop) for loop in order)
    for place, loop in zip(places, order, strict=True):
        owner[place] = loop
