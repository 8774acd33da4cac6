"""State of the trace interpreter: decisions, blocks, loops and buffers at one point of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tvm.s_tir import Schedule

from devices.sketches.description import block_transforms, loopnest
from devices.sketches.description.live_schedule import (
    axes_of,
    bindings,
    consumers,
    content,
    loops_around,
)
from devices.sketches.description.loopnest import BlockState, Factor, LoopState, axis_factors, framed
from devices.sketches.description.undescribed import UndescribedError
from fleet_tune.base.sketch import Choice, Decision, Location, Tile


@dataclass
class DecisionLog:
    """The decisions of a trace so far."""

    decisions: list[Decision] = field(default_factory=list)
    #: Decision vector of this replay.
    values: list[int] = field(default_factory=list)
    #: TVM's values of every Location, by the number of the decision.
    locations: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: For every Location, the consumer of its block and the loops that the block may be moved to.
    targets: dict[int, tuple[BlockState, list[LoopState]]] = field(default_factory=dict)
    #: Column of every sampled factor or choice, by the name of its variable.
    columns: dict[str, int] = field(default_factory=dict)
    #: Column of every sampled location, by the name of its variable.
    location_columns: dict[str, int] = field(default_factory=dict)
    #: Values of every choice, by its column.
    choices: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def fork(self) -> DecisionLog:
        """Return a copy that can grow without changing this one."""
        return replace(
            self,
            decisions=list(self.decisions),
            values=list(self.values),
            locations=dict(self.locations),
            columns=dict(self.columns),
            location_columns=dict(self.location_columns),
            choices=dict(self.choices),
        )

    def add_tile(self, names: Sequence[str], factors: Sequence[int], parts: int, limit: int) -> None:
        """Add a SamplePerfectTile: ``names`` are its outputs, ``limit`` bounds the innermost factor."""
        column = len(self.values)
        self.decisions.append(Tile(prod(factors), parts, limit))
        self.columns.update({name: column + at for at, name in enumerate(names)})
        self.values += factors

    def add_choice(self, name: str, use: str, values: tuple[int, ...], chosen: int) -> None:
        """Add a SampleCategorical; ``use`` names the annotation that takes its value."""
        column = len(self.values)
        self.decisions.append(Choice(use, values))
        self.columns[name] = column
        self.choices[column] = values
        self.values.append(chosen)

    def add_location(self, name: str, block: str, places: tuple[int, ...], chosen: int) -> None:
        """Add a SampleComputeLocation of ``block``; ``chosen`` is one of TVM's values ``places``."""
        self.locations[len(self.decisions)] = places
        self.decisions.append(Location(block, places))
        self.location_columns[name] = len(self.values)
        self.values.append(places.index(chosen))


class BufferTable:
    """The buffers of a program: unique names, and the shapes that they had before decisions changed their layouts."""

    def __init__(self, schedule: Schedule) -> None:
        #: Upper bounds of the shapes of the buffers that rfactor made, by name.
        self.partial_sums: dict[str, tuple[int, ...]] = {}
        self._old_shapes: dict[str, tuple[int, ...]] = {}
        self._taken: set[str] = set()
        # Buffers that got another name because theirs was taken: two buffers may have the same name.
        self._renamed: list[tuple[Any, str]] = []
        function = schedule.mod["main"]
        for buffer in (*function.params, *function.body.block.alloc_buffers):
            self.add(buffer)

    def add(self, buffer: Any) -> str:
        """Add a buffer and return its name, which no other buffer has."""
        name = str(buffer.name)
        if name in self._taken:
            name = f"{name}#{len(self._renamed) + 1}"
            self._renamed.append((buffer, name))
        self._taken.add(name)
        return name

    def name(self, buffer: Any) -> str:
        """Return the unique name of a buffer: its own, unless an earlier buffer has it."""
        return next((name for each, name in self._renamed if each.same_as(buffer)), str(buffer.name))

    def keep_shape(self, buffer: Any) -> None:
        """Keep the current shape of a buffer, by which it is described after decisions have changed its layout."""
        self._old_shapes[str(buffer.name)] = tuple(int(extent) for extent in buffer.shape)

    def old_shape(self, buffer: Any) -> tuple[int, ...] | None:
        """Return the shape that a buffer had before decisions changed its layout; None if its layout was not
        changed."""
        name = self.name(buffer)
        if name in self.partial_sums:
            return None
        for changed, shape in self._old_shapes.items():
            # Stages of the buffer are named after it; the layout cuts its last two dimensions in three each.
            if name.startswith(changed) and len(buffer.shape) == len(shape) + 4:
                return shape
        return None


class BlockTable:
    """The blocks of a program by name, and the loops by the names of the trace's variables."""

    def __init__(self, buffers: BufferTable) -> None:
        self.blocks: dict[str, BlockState] = {}
        self._loops: dict[str, LoopState] = {}
        self._buffers = buffers

    def fork(self) -> BlockTable:
        """Return a copy that can be changed without changing this table."""
        fork = BlockTable(self._buffers)
        fork.blocks, fork._loops = loopnest.copied(self.blocks, self._loops)
        return fork

    def add(self, block: BlockState) -> None:
        """Add a block under its name."""
        self.blocks[block.name] = block

    def loop(self, name: str) -> LoopState:
        """Return the loop that a variable of the trace currently stands for."""
        return self._loops[name].current

    def name_loops(self, names: Sequence[str], loops: Sequence[LoopState]) -> None:
        """Bind the variables ``names`` to loops."""
        self._loops.update(zip(names, loops, strict=True))

    def owner(self, loop: LoopState) -> BlockState:
        """Return the block that a loop belongs to."""
        for block in self.blocks.values():
            if loop in block.loops:
                return block
        raise UndescribedError("a loop of no known block")

    def find(self, schedule: Schedule, variable: Any) -> BlockState | None:
        """Return the state of a block; None if the block is not known."""
        return self.blocks.get(content(schedule, variable).name_hint)

    def block(self, schedule: Schedule, variable: Any) -> BlockState:
        """Return the state of a block. The state of an unknown block is made from its loops. Each of them must then run
        over one of its axes, in their order, unless the block is a stage."""
        known = self.find(schedule, variable)
        return self._new_block(schedule, variable) if known is None else known

    def _new_block(self, schedule: Schedule, variable: Any) -> BlockState:
        statement = content(schedule, variable)
        iters = axis_factors([axis.extent for axis in axes_of(statement)])
        fresh = BlockState(statement.name_hint, iters, [LoopState((factor,)) for factor in iters])
        self.add(fresh)
        for region in (*statement.reads, *statement.writes):
            old = self._buffers.old_shape(region.source)
            if old is not None:
                # Its loops follow from decisions; all that is known is that it copies the buffer.
                fresh.rebinding = block_transforms.stage(old, [int(n) for n in region.source.shape])
                fresh.iters = tuple(Factor(()) for _ in iters)
                fresh.loops = [LoopState(None) for _ in iters]
                return fresh
        bound = bindings(schedule, variable)
        variables = [loop.loop_var for loop in loops_around(schedule, variable)]
        if len(bound) == len(variables) and all(b.same_as(v) for b, v in zip(bound, variables, strict=True)):
            return fresh
        # A stage that was made inside of the loops of the block that reads it.
        outside = len(variables) - len(bound)
        for consumer in consumers(schedule, variable):
            reader = self.find(schedule, consumer)
            around = [loop.loop_var for loop in loops_around(schedule, consumer)]
            if (
                reader is not None
                and 0 < outside <= len(around)
                and around[outside - 1].same_as(variables[outside - 1])
            ):
                fresh.at = (reader, framed(reader)[outside - 1][1])
                loopnest.moved(fresh)
                return fresh
        del self.blocks[fresh.name]
        raise UndescribedError(f"the loops of block {statement.name_hint} are not its axes")


@dataclass
class TraceState:
    """The known facts of a program after some instructions of its trace."""

    schedule: Schedule
    buffers: BufferTable
    blocks: BlockTable
    decisions: DecisionLog = field(default_factory=DecisionLog)
    #: Annotations of the root block.
    root: dict[str, str | int] = field(default_factory=dict)
    #: TVM's decisions for the SampleComputeLocations that come next; None if all blocks stay at the root.
    places: list[int] | None = None
    #: Actions that wait until the instruction has run on the schedule.
    pending: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def start(cls, schedule: Schedule, places: Sequence[int] | None) -> TraceState:
        """Return the state before the first instruction."""
        buffers = BufferTable(schedule)
        return cls(schedule, buffers, BlockTable(buffers), places=None if places is None else list(places))

    def fork(self, places: Sequence[int]) -> TraceState:
        """Return a copy of the state, on a copy of the schedule, with the next places. Buffers are shared."""
        return replace(
            self,
            schedule=self.schedule.copy(),
            blocks=self.blocks.fork(),
            decisions=self.decisions.fork(),
            root=dict(self.root),
            places=list(places),
            pending=[],
        )

    def block(self, variable: Any) -> BlockState:
        """Return the state of the block that a variable of the schedule stands for."""
        return self.blocks.block(self.schedule, variable)
