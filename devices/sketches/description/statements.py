"""From the interpreted loops of every block to the statements of a symbolic sketch.

The statement with the most operations is the main one. A block inside of the main statement's loops keeps its place
there (``fixed_depth`` or ``location_column``): the elements that it computes follow from those that the main statement
touches. Any other block inside of the loops of another block gets the enclosing loops as its own. This is possible if
the two blocks run over the same positions of the buffer that they share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

from tvm.tirx import For, SeqStmt
from tvm_ffi import structural_hash

from devices.sketches.description.accesses import BlockFacts, block_facts, block_paths
from devices.sketches.description.index_digits import digit_extents, fused_axis
from devices.sketches.description.interpreter import Interpreter
from devices.sketches.description.live_schedule import loops_around, named_block
from devices.sketches.description.loopnest import BlockState, Factor, LoopState, distinct, framed
from devices.sketches.description.undescribed import UndescribedError
from fleet_tune.base.sketch import Access, Axis, Loop, LoopKind, Statement


@dataclass(frozen=True)
class _Framed:
    """A block's facts, and its loops. Each real loop is a group of factors over the block's axes."""

    facts: BlockFacts
    loops: tuple[tuple[tuple[Factor, ...], LoopKind], ...]


FactsCache = dict[tuple[str, int, object], BlockFacts | None]
"""Facts of the blocks in the replays of one trace, by name, content and rebinding."""


class StatementBuilder:
    """Makes the statements of a replayed trace. Looking up blocks adds instructions to the trace of the interpreter's
    schedule. ``only``: names of the blocks to describe; None: all blocks."""

    def __init__(self, interpreter: Interpreter, cache: FactsCache, only: Collection[str] | None = None) -> None:
        state = interpreter.state
        self._state = state
        self._deadline = interpreter.deadline
        self._schedule = state.schedule
        func = self._schedule.mod["main"]
        self._facts: dict[str, BlockFacts] = {}
        self._flats: dict[str, _Framed] = {}  # cached: needed again for each block in the loops of another one
        self._real: dict[str, list[Any]] = {}
        for name, path in block_paths(func).items():
            if only is not None and name not in only:
                continue
            self._deadline.check()
            block = state.blocks.blocks.get(name)
            rebinding = block.rebinding if block else None
            key = (name, structural_hash(path[-1], map_free_vars=True), rebinding)
            if key not in cache:
                cache[key] = block_facts(func, path, rebinding, state.buffers.old_shape, state.buffers.name)
            facts = cache[key]
            if facts is not None:
                self._facts[name] = self._bounded(facts)

    @property
    def facts(self) -> list[BlockFacts]:
        """Facts of all blocks in program order, without those that only initialise."""
        return [facts for name, facts in self._facts.items() if not name.endswith("_init")]

    def statements(self) -> tuple[Statement, ...]:
        """Return the statements, the main one first. In this replay, blocks whose place is sampled must be at the
        root."""
        first = main_block(self.facts)
        block = self._known(first)
        if block.top.column is not None:
            raise UndescribedError(f"the place of the main block {first} is sampled")
        for consumer, _ in self._state.decisions.targets.values():
            if consumer.top is not block.top:
                raise UndescribedError(f"a block is placed in the loops of {consumer.name}, which is not the main one")
        return main_first(self.together(first))

    def together(self, main: str | None) -> tuple[Statement, ...]:
        """Return the statements, that of the block ``main`` first. None: the main block is not among these blocks."""
        self._deadline.check()
        facts = self.facts
        block = None if main is None else self._known(main)
        statements = [self._whole(self._facts[main], block)] if main is not None and block is not None else []
        statements += [other for f in facts if f.name != main and (other := self._other(block, f)) is not None]
        return tuple(statements)

    def _bounded(self, facts: BlockFacts) -> BlockFacts:
        """Return facts in which buffers of partial sums have their largest possible shape, so that all replays
        agree."""
        bounds = self._state.buffers.partial_sums
        if not any(access.buffer in bounds for access in facts.accesses):
            return facts
        accesses = tuple(replace(a, shape=bounds.get(a.buffer, a.shape)) for a in facts.accesses)
        return replace(facts, accesses=accesses)

    def _known(self, name: str) -> BlockState:
        return self._state.block(named_block(self._schedule, name))

    # Statements with all of their loops

    def _whole(self, facts: BlockFacts, block: BlockState) -> Statement:
        """Return a statement that lists all of its loops, including enclosing loops of other blocks."""
        framed_facts = self._flat(facts, block)
        merged, loops = _on_axes(framed_facts)
        real = self._real_loops(facts.name)
        self._check(facts.name, real, merged, loops)
        flat = tuple(loop for group in loops for loop in group)
        stop = next((i for i, loop in enumerate(real) if isinstance(loop.body, SeqStmt)), None)
        fusible = None if stop is None else sum(len(group) for group in loops[: stop + 1])
        alone = not real or not isinstance(real[-1].body, SeqStmt)
        inner = len(distinct(block.loops)) + (len(distinct(block.within.loops)) if block.within is not None else 0)
        held = sum(len(group) for group in loops[: len(loops) - inner])
        return self._statement(merged, flat, fusible=fusible, vectorizable=alone, held_depth=held, warp=block.top.warp)

    def _flat(self, facts: BlockFacts, block: BlockState) -> _Framed:
        if facts.name not in self._flats:
            self._flats[facts.name] = self._flattened(facts, block)
        return self._flats[facts.name]

    def _flattened(self, facts: BlockFacts, block: BlockState) -> _Framed:
        axes, accesses = list(facts.axes), facts.accesses
        loops: list[tuple[tuple[Factor, ...], LoopKind]] = []
        top = block.top
        left: dict[tuple[int, ...], tuple[Factor, ...]] = {}
        taken: Factor | None = None
        if top.column is not None:
            raise UndescribedError(f"the place of block {block.name} is sampled")
        if top.at is not None:
            target, loop = top.at
            theirs = self._facts.get(target.name)
            if theirs is None:
                raise UndescribedError(f"block {block.name} is computed at a loop of {target.name}")
            around = self._flat(theirs, target)
            at = next(i for i, (_, each) in enumerate(framed(target)) if each is loop.current)
            mapped = _shared_axes(facts, around.facts)
            partial = _partial_loop(block)
            for factors, kind in around.loops[: at + 1]:
                group = []
                for factor in factors:
                    if len(factor.axes) != 1:
                        raise UndescribedError(f"block {block.name} inside of fused loops of {target.name}")
                    (axis,) = factor.axes
                    if axis not in mapped:
                        # The computation repeats for every iteration of this axis.
                        mapped[axis] = len(axes)
                        axes.append(replace(around.facts.axes[axis], reduction=False, digits=()))
                        accesses = tuple(replace(a, index=tuple((*row, 0) for row in a.index)) for a in accesses)
                    if partial is not None and mapped[axis] == partial[0]:
                        # The enclosing loop sums up partial results, and this block computes one of them at a time.
                        group.append(partial[1])
                        taken = partial[1]
                    else:
                        group.append(replace(factor, axes=(mapped[axis],), partial=False))
                loops.append((tuple(group), kind))
            left = _left_inside(around.loops, at, mapped, facts.axes)
        for owner, nested in framed(block):
            if owner.top is not top:
                continue
            if nested.factors is None:
                raise UndescribedError(f"a loop of block {block.name} is not known")
            nest = [part for f in nested.factors for part in (left.get(f.axes, (f,)) if f.rest else (f,))]
            nest = [Factor(f.axes, extent=1) if f == taken else f for f in nest]
            loops.append((tuple(nest), nested.kind))
        return _Framed(replace(facts, axes=tuple(axes), accesses=accesses), tuple(loops))

    def _real_loops(self, name: str) -> list[Any]:
        if name not in self._real:
            block = self._state.blocks.blocks.get(name)
            blocks = [block.within.name, name] if block is not None and block.within is not None else [name]
            around = [loops_around(self._schedule, named_block(self._schedule, each)) for each in blocks]
            self._real[name] = [loop for loops in around for loop in loops]
        return self._real[name]

    def _check(self, name: str, real: Sequence[For], facts: BlockFacts, loops: Sequence[Sequence[Loop]]) -> None:
        """Raise :class:`UndescribedError` if the description does not give the extents of the real loops for the
        decisions of this replay."""
        flat = [loop for group in loops for loop in group]
        mine = [
            prod(loop_extent(loop, flat, facts.axes, self._state.decisions.values) for loop in group) for group in loops
        ]
        if [int(loop.extent) for loop in real] != mine:
            raise UndescribedError(f"loops {mine} of block {name} are really {[int(loop.extent) for loop in real]}")

    # Statements inside of the main one

    def _other(self, main: BlockState | None, facts: BlockFacts) -> Statement | None:
        """Return the statement of a block other than the main one; None if neither its place nor its loops are
        known."""
        block = self._state.blocks.blocks.get(facts.name)
        if block is None:
            return self._statement(facts, _axis_loops(facts.axes, ()))
        top = block.top
        if top.column is not None:
            return self._statement(facts, self._own_loops(facts, block), location_column=top.column)
        depth = None if main is None else self._depth_in(main, top)
        if main is not None and depth is not None:
            target = top.at[0] if top.at is not None else top
            if target.top is not main.top and block.rebinding is not None:
                return self._stage(main, facts, depth)
            return self._statement(facts, self._own_loops(facts, block), fixed_depth=depth)
        try:
            return self._whole(facts, block)
        except UndescribedError:
            return None

    def _stage(self, main: BlockState, facts: BlockFacts, depth: int) -> Statement | None:
        """Return the statement of a stage, inside of ``depth`` loops of the main block: it copies the main block's
        result, and the next copy reads it row by row. Its axes are the main block's spatial axes, and its loops are
        loops over these, with a thread's loops over rows first; None if the two blocks do not match in this way."""
        spatial = [i for i, axis in enumerate(self._axes(main)) if not axis.reduction]
        if len(spatial) != len(facts.axes):
            return None
        listed = [(f, loop.kind) for _, loop in framed(main) for f in loop.factors or ()]
        enclosing, inside = listed[:depth], listed[depth:]
        inside = [(f, kind) for f, kind in inside if all(axis in spatial for axis in f.axes)]
        row = spatial[-2]
        tile = len(main.loops) - sum(f.axes[0] not in spatial for loop in main.loops for f in loop.factors or ())
        outer, inner = inside[: len(inside) - tile], inside[len(inside) - tile :]
        rows = [(f, kind) for f, kind in outer if kind == "serial" and f.axes == (row,)]
        threads = [(f, kind) for f, kind in outer if kind != "serial"]
        others = [(f, kind) for f, kind in outer if kind == "serial" and f.axes != (row,)]
        if any(f.axes[0] not in spatial for f, _ in enclosing):
            return None
        ordered = [*enclosing, *rows, *threads, *others, *inner]
        loops = tuple(Loop(spatial.index(f.axes[0]), f.column, f.extent, kind, f.values, f.rest) for f, kind in ordered)
        return self._statement(facts, loops, held_depth=len(enclosing) + len(rows))

    def _axes(self, block: BlockState) -> tuple[Axis, ...]:
        return self._facts[block.name].axes

    def _own_loops(self, facts: BlockFacts, block: BlockState) -> tuple[Loop, ...]:
        """Return the loops of a block whose extents follow from its place: its loops at the root, or, if these cannot
        be expressed, one loop for each axis."""
        owns = [nested for owner, nested in framed(replace_place(block)) if owner.top.name == block.top.name]
        factors = [factor for nested in owns for factor in nested.factors or (Factor(()),)]
        if all(len(f.axes) == 1 and not f.rest for f in factors):
            flat = [(nested.factors or (), nested.kind) for nested in owns]
            return tuple(loop for group in _on_axes(_Framed(facts, tuple(flat)))[1] for loop in group)
        kinds = [nested.kind for nested in owns]
        return _axis_loops(facts.axes, kinds)

    def _depth_in(self, main: BlockState, block: BlockState) -> int | None:
        """Return how many of the main statement's loops enclose a block; None if the block is not inside of the main
        block."""
        while block.at is not None:
            target, loop = block.at
            if target.top is main.top:
                nest = [each for _, each in framed(main)]
                return _ends(nest, [loop])[0] + 1
            block = target.top
        return None

    def _statement(self, facts: BlockFacts, loops: tuple[Loop, ...], **place: Any) -> Statement:
        root = self._state.root

        def limit(key: str) -> int:
            value = root.get(f"meta_schedule.{key}", 0)
            return value if isinstance(value, int) else 0

        unroll = root.get("meta_schedule.unroll_explicit", root.get("meta_schedule.unroll_implicit"))
        return Statement(
            name=facts.name,
            axes=facts.axes,
            loops=loops,
            accesses=facts.accesses,
            flop_per_point=facts.flop_per_point,
            arithmetic=facts.arithmetic,
            parallel_limit=limit("parallel"),
            vectorize_limit=limit("vectorize"),
            unroll_column=self._state.decisions.columns.get(unroll) if isinstance(unroll, str) else None,
            versions=self._versions(facts.name),
            **place,
        )

    def _versions(self, name: str) -> int:
        """Return the number of stages of a software pipeline from this block's stage to the last; 1 outside of a
        pipeline."""
        loops = self._real_loops(name)
        for pipelined, inside in pairwise(loops):
            stages = pipelined.annotations.get("software_pipeline_stage")
            if stages is not None:
                first = next(s for s, each in zip(stages, pipelined.body.seq, strict=True) if each.same_as(inside))
                return max(int(stage) for stage in stages) - int(first) + 1
        return 1


def main_block(facts: Iterable[BlockFacts]) -> str:
    """Return the name of the block with the most operations. If several have as many, the one with the most points."""
    first = max(facts, key=lambda f: (f.points * f.flop_per_point, f.points), default=None)
    if first is None:
        raise UndescribedError("no block with affine accesses")
    return first.name


def main_first(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return all statements of a program. The main one is first, and gets the depth at which its sums are written
    back."""
    main, *others = statements
    sums = {access.buffer for access in main.accesses if access.write and access.scope == "local"}
    written_back = [
        other.fixed_depth
        for other in others
        if other.fixed_depth and any(a.buffer in sums and not a.write for a in other.accesses)
    ]
    return (replace(main, accumulator_depth=written_back[0]) if written_back else main, *others)


def loop_extent(loop: Loop, loops: Sequence[Loop], axes: Sequence[Axis], values: Sequence[int]) -> int:
    """Return the extent of a loop for a decision vector. ``loops``: all loops of its statement."""
    if loop.rest:
        others = prod(loop_extent(o, loops, axes, values) for o in loops if o.axis == loop.axis and o is not loop)
        return -(-axes[loop.axis].extent // others)
    if loop.column is None:
        return loop.extent
    return loop.values[values[loop.column]] if loop.values else values[loop.column]


def replace_place(block: BlockState) -> BlockState:
    """Return the block with its own loops only, as if it were at the root."""
    if block.within is not None:
        return replace(block, within=replace_place(block.within))
    return replace(block, at=None, column=None)


def _axis_loops(axes: Sequence[Axis], kinds: Sequence[LoopKind]) -> tuple[Loop, ...]:
    used: Sequence[LoopKind] = kinds if len(kinds) == len(axes) else ["serial"] * len(axes)
    return tuple(Loop(i, None, axis.extent, kind) for i, (axis, kind) in enumerate(zip(axes, used, strict=True)))


def _on_axes(framed_facts: _Framed) -> tuple[BlockFacts, list[list[Loop]]]:
    """Return facts and loops with fused axes. Axes are fused if their loops were fused before they were split."""
    facts = framed_facts.facts
    groups = {factor.axes for factors, _ in framed_facts.loops for factor in factors if len(factor.axes) > 1}
    member = {axis: group for group in groups for axis in group}
    if len(member) != sum(len(group) for group in groups):
        raise UndescribedError(f"loops of block {facts.name} are fused in several ways")
    axes: list[Axis] = []
    place: dict[int, int] = {}
    order: list[int] = []  # the old axes in the new order
    for old, axis in enumerate(facts.axes):
        if old in place:
            continue
        group = member.get(old, (old,))
        place.update(dict.fromkeys(group, len(axes)))
        axes.append(axis if group == (old,) else fused_axis([facts.axes[each] for each in group]))
        order.extend(group)
    starts, at = [], 0
    for axis in facts.axes:
        starts.append(at)
        at += len(digit_extents(axis))
    columns = [starts[old] + k for old in order for k in range(len(digit_extents(facts.axes[old])))]
    same = columns == list(range(len(columns)))
    accesses = facts.accesses if same else tuple(_reordered(access, columns) for access in facts.accesses)
    partial = len(facts.axes) - 1  # the axis of partial results is the last of its frame
    loops: list[list[Loop]] = []
    for factors, kind in framed_facts.loops:
        group_loops: list[Loop] = []
        for factor in factors:
            owner = place[factor.axes[0]]
            # If the slowest loop is inside of faster ones, its extent is the rest that they leave.
            inside = factor.slowest and any(loop.axis == owner for each in (*loops, group_loops) for loop in each)
            rest = factor.rest or inside
            extent = 0 if rest else factor.extent
            summed = place[_partial_axis(facts, partial)] if factor.partial else None
            group_loops.append(Loop(owner, factor.column, extent, kind, factor.values, rest, summed))
        loops.append(group_loops)
    return replace(facts, axes=tuple(axes), accesses=accesses), loops


def _partial_loop(block: BlockState) -> tuple[int, Factor] | None:
    """Return the axis of partial results that an rfactor has made for a block, and the factor of its loop over them;
    None without an rfactor."""
    if block.rebinding is None or block.rebinding.partial is None:
        return None
    over = next((f for each in distinct(block.loops) for f in each.factors or () if f.partial), None)
    return None if over is None else (block.rebinding.partial[1], over)


def _partial_axis(facts: BlockFacts, last: int) -> int:
    return next((i for i, axis in enumerate(facts.axes) if axis.name.endswith("_partial")), last)


def _reordered(access: Access, columns: Sequence[int]) -> Access:
    return replace(access, index=tuple(tuple(row[c] for c in columns) for row in access.index))


def _shared_axes(inner: BlockFacts, outer: BlockFacts) -> dict[int, int]:
    """Map axes of ``outer`` to the axes of ``inner`` that run over the same positions of a shared buffer."""
    mapped: dict[int, int] = {}
    for mine in inner.accesses:
        for theirs in outer.accesses:
            if mine.buffer != theirs.buffer or mine.write == theirs.write:
                continue
            if len(mine.index) != len(theirs.index):
                raise UndescribedError(f"two buffers are called {mine.buffer}")
            for row, their_row in zip(mine.index, theirs.index, strict=True):
                a, b = _one_axis(row, inner.axes), _one_axis(their_row, outer.axes)
                if a is not None and b is not None:
                    mapped[b] = a
                elif b is not None or any(their_row):
                    raise UndescribedError(f"{outer.name} reads a window of {mine.buffer}")
    return mapped


def _left_inside(
    around: Sequence[tuple[tuple[Factor, ...], LoopKind]], at: int, mapped: dict[int, int], axes: Sequence[Axis]
) -> dict[tuple[int, ...], tuple[Factor, ...]]:
    """Return the factors that the loop of a moved block over an axis covers, by axis. If an enclosing loop is the rest
    of an axis, these are the factors of the axis in the loops that do not enclose the block."""
    rests = {f.axes[0] for factors, _ in around[: at + 1] for f in factors if f.rest}
    left: dict[tuple[int, ...], tuple[Factor, ...]] = {}
    for axis in rests:
        inside = [f for factors, _ in around[at + 1 :] for f in factors if f.axes == (axis,)]
        extent = axes[mapped[axis]].extent if mapped[axis] < len(axes) else 0
        left[(mapped[axis],)] = tuple(
            replace(
                f, axes=(mapped[axis],), extent=min(f.extent, extent), values=tuple(min(v, extent) for v in f.values)
            )
            for f in inside
        )
    return left


def _one_axis(row: Sequence[int], axes: Sequence[Axis]) -> int | None:
    """Return the axis that indexes a dimension; None if the index is not exactly one axis without digits."""
    owners = [i for i, axis in enumerate(axes) for _ in digit_extents(axis)]
    used = [i for i, c in enumerate(row) if c]
    if len(used) != 1 or row[used[0]] != 1 or axes[owners[used[0]]].digits:
        return None
    return owners[used[0]]


def loop_depths(places: Sequence[int], around: Sequence[LoopState]) -> tuple[int, ...]:
    """Convert depths in TVM's loops ``around`` to depths in the factors of these loops. Negative values (root, inline)
    stay."""
    ends = _ends(distinct(around), around)
    return tuple(place if place < 0 else ends[place] for place in places)


def _ends(nest: Sequence[LoopState], loops: Sequence[LoopState]) -> list[int]:
    """Return, for each of ``loops``, the position of its last factor among all factors of ``nest``."""
    ends = []
    listed = list(nest)
    for loop in loops:
        upto = listed[: listed.index(loop.current) + 1]
        ends.append(sum(len(each.factors or ()) for each in upto) - 1)
    return ends
