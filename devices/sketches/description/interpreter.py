"""An abstract interpreter of traces: which loops stand around every block, as expressions of the decisions.

The trace is replayed on a live schedule. Before each instruction the interpreter sees it with the blocks it works on,
and does to its own loops (:mod:`devices.sketches.description.loopnest`) what the instruction does to the schedule's.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import prod
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule.instruction import Instruction

from devices.sketches.description import block_transforms, loopnest
from devices.sketches.description.deadline import Deadline
from devices.sketches.description.live_schedule import (
    axes_of,
    bindings,
    consumers,
    content,
    loops_around,
    named_content,
    producers,
    reduction_variables,
    sampled_loop,
)
from devices.sketches.description.loopnest import (
    BlockState,
    Factor,
    LoopState,
    axis_factors,
    framed,
)
from devices.sketches.description.undescribed import UndescribedError, reason_of
from fleet_tune.base.sketch import INLINE_LOCATION, ROOT_LOCATION, Axis, Choice, Decision, Location, LoopKind, Tile

SAMPLING = ("SamplePerfectTile", "SampleCategorical", "SampleComputeLocation")

_KINDS: dict[str, LoopKind] = {"Parallel": "parallel", "Vectorize": "vectorize", "Unroll": "unroll"}
_THREADS: dict[str, LoopKind] = {
    "blockIdx.x": "blockIdx.x",
    "blockIdx.y": "blockIdx.y",
    "threadIdx.x": "threadIdx.x",
    "threadIdx.y": "threadIdx.y",
    "vthread": "vthread",
    "vthread.x": "vthread",
}
# Instructions that leave the loops of every block as they are; their effect is read from the scheduled program.
_NEUTRAL = {
    "GetSBlock",
    "GetChildBlocks",
    "GetProducers",
    "GetConsumers",
    "GetOutputBlocks",
    "ComputeInline",
    "ReverseComputeInline",
    "CacheRead",
    "CacheWrite",
    "ReIndex",
    "SetScope",
    "StorageAlign",
    "Unannotate",
    *SAMPLING,
}
WARP_LANES = 32


class Interpreter:
    """Interprets one replay of a trace, whose instructions are ``steps``
    (:func:`devices.sketches.traces.instructions`).

    ``places``: for the SampleComputeLocations that come next, in order, TVM's decisions; then blocks stand where they
    put them, and tiles are taken so that no factor is 1 where that can be. None: all blocks stay at the root, and the
    column of the decision is noted instead.
    """

    def __init__(self, schedule: Schedule, steps: Sequence[list[Any]], places: Sequence[int] | None = None) -> None:
        self.schedule = schedule
        self.failure = ""
        self.deadline = Deadline()
        self.blocks: dict[str, BlockState] = {}
        self.decisions: list[Decision] = []
        self.values: list[int] = []  # decision vector of this replay
        self.locations: dict[int, tuple[int, ...]] = {}  # TVM's values of every Location, by decision
        self.around: dict[
            int, tuple[BlockState, list[LoopState]]
        ] = {}  # consumer of its block, and loops it may be moved to
        self.root: dict[str, str | int] = {}  # annotations of the root block
        self.partial_sums: dict[str, tuple[int, ...]] = {}  # upper bounds of the shapes of rfactor's buffers
        self.columns: dict[str, int] = {}  # column of every sampled value, by its name
        self._places = None if places is None else list(places)
        self._instructions = steps
        self._at = 0
        self._relaid: dict[
            str, tuple[int, ...]
        ] = {}  # buffers in a layout that follows from decisions: their old shape
        self._loops: dict[str, LoopState] = {}
        self._choices: dict[int, tuple[int, ...]] = {}  # values of every choice, by column
        self._sampled_loops: dict[str, int] = {}  # column of every sampled location
        self._pending: list[Any] = []  # what to do once the instruction has run
        self._taken: set[str] = set()  # names of buffers
        self._renamed: list[tuple[Any, str]] = []  # buffers whose names were taken already: two may be called alike
        func = schedule.mod["main"]
        for buffer in (*func.params, *func.body.block.alloc_buffers):
            self._name(buffer)

    @property
    def done(self) -> bool:
        return self._at == len(self._instructions)

    def fork(self, places: Sequence[int]) -> Interpreter:
        """This interpreter from where it stands, on a copy of its schedule, with the places that come next."""
        fork = copy(self)
        fork.schedule = self.schedule.copy()
        fork.blocks, fork._loops = loopnest.copied(self.blocks, self._loops)
        fork.decisions, fork.values = list(self.decisions), list(self.values)
        fork.locations, fork.root, fork.columns = dict(self.locations), dict(self.root), dict(self.columns)
        fork._choices, fork._sampled_loops = dict(self._choices), dict(self._sampled_loops)
        fork._places, fork._pending = list(places), []
        return fork

    # The replay calls this before each instruction; an exception would end the replay.
    def visit(self, instruction: Instruction, inputs: Sequence[Any], _attributes: Any, decision: Any) -> Any:
        self.settle()
        kind, names, attributes, outputs = self._instructions[self._at]
        self._at += 1
        if kind == "SampleComputeLocation":
            # Without places: the one that is always valid, and where no block disappears.
            decision = ROOT_LOCATION if self._places is None else self._places.pop(0)
        if kind == "SamplePerfectTile" and self._places is not None:
            decision = _even_tile(prod(int(f) for f in decision), int(instruction.attrs[0]), int(instruction.attrs[1]))
        if kind in SAMPLING:
            self._sample(kind, inputs, instruction, outputs, decision)
        elif not self.failure:
            try:
                self.deadline.check()
                self._step(kind, names, attributes, outputs, inputs)
            except Exception as error:
                self.failure = reason_of(error)
        return decision

    def settle(self) -> None:
        """Take in what could only be read after the last instruction had run."""
        pending, self._pending = self._pending, []
        if not self.failure:
            try:
                for action in pending:
                    action()
            except Exception as error:
                self.failure = reason_of(error)

    # Decisions

    def _sample(
        self, kind: str, inputs: Sequence[Any], instruction: Instruction, outputs: list[str], decision: Any
    ) -> None:
        column = len(self.values)
        if kind == "SamplePerfectTile":
            factors = [int(factor) for factor in decision]
            parts, limit = (int(attribute) for attribute in instruction.attrs)
            self.decisions.append(Tile(prod(factors), parts, limit))
            self.columns.update({name: column + i for i, name in enumerate(outputs)})
            self.values += factors
        elif kind == "SampleCategorical":
            values = tuple(int(v) for v in instruction.attrs[0])
            self.decisions.append(Choice(self._use(outputs[0]), values))
            self.columns[outputs[0]] = column
            self._choices[column] = values
            self.values.append(int(decision))
        else:
            block = content(self.schedule, inputs[0])
            places = (ROOT_LOCATION,) if self._places is not None else self._possible_places(inputs[0])
            self.locations[len(self.decisions)] = places
            self.decisions.append(Location(block.name_hint, places))
            self._sampled_loops[outputs[0]] = column
            self.values.append(places.index(ROOT_LOCATION))

    def _use(self, value: str) -> str:
        """What a sampled value is used for: the annotation that takes it."""
        for kind, names, attributes, _ in self._instructions:
            if kind == "Annotate" and value in names:
                return str(attributes[0]).rsplit(".", 1)[-1]
        return "value"

    def _possible_places(self, block: Any) -> tuple[int, ...]:
        """Root, inline where that is possible, and the loops around the consumer outside of its reductions. TVM takes
        the next loop outwards where a choice is not valid for the other decisions."""
        schedule = self.schedule.copy()
        places = [ROOT_LOCATION]
        readers = consumers(schedule, block)
        if readers:
            reductions = reduction_variables(schedule, readers[0])
            loops = loops_around(schedule, readers[0])
            variables = [loop.loop_var for loop in loops]
            depth = next((i for i, v in enumerate(variables) if any(v.same_as(r) for r in reductions)), len(variables))
            places += range(depth)
            if not self.failure:
                try:
                    consumer = self.block(schedule, readers[0])
                    nest = self._nest(consumer, len(loops))
                    self.around[len(self.decisions)] = (consumer, nest[:depth])
                except Exception as error:
                    self.failure = reason_of(error)
        try:
            schedule.compute_inline(block)
            places.insert(0, INLINE_LOCATION)
        except RuntimeError:
            pass
        return tuple(places)

    # Loops

    def _step(
        self, kind: str, names: list[Any], attributes: list[Any], outputs: list[str], inputs: Sequence[Any]
    ) -> None:
        if kind in _NEUTRAL:
            return
        if kind == "GetLoops":
            nest = self._nest(self.block(self.schedule, inputs[0]), len(outputs))
            self._loops.update(zip(outputs, nest, strict=True))
        elif kind == "Split":
            self._split(self._loops[names[0]].current, names[1:], outputs)
        elif kind == "Fuse":
            parts = [self._loops[name].current for name in names]
            self._loops[outputs[0]] = loopnest.fuse(self._owner(parts[0]).loops, parts)
        elif kind == "Reorder":
            order = [self._loops[name].current for name in names]
            loopnest.reorder(self._owner(order[0]).loops, order)
        elif kind in _KINDS:
            self._loops[names[0]].current.kind = _KINDS[kind]
        elif kind == "Bind":
            if attributes[0] not in _THREADS:
                raise UndescribedError(f"loops bound to {attributes[0]}")
            self._loops[names[0]].current.kind = _THREADS[attributes[0]]
        elif kind in ("ComputeAt", "ReverseComputeAt"):
            self._move(self.block(self.schedule, inputs[0]), names[1], inputs, kind == "ReverseComputeAt")
        elif kind == "DecomposeReduction":
            self._decompose(self.block(self.schedule, inputs[0]), self._loops[names[1]].current)
        elif kind == "RFactor":
            self._rfactor(self._loops[names[0]].current, int(attributes[0]))
        elif kind == "Blockize":
            self._blockize(self._loops[names[0]].current)
        elif kind in ("TransformBlockLayout", "PadEinsum"):
            # The block gets new iteration variables and one loop for each of them.
            self.blocks.pop(content(self.schedule, inputs[0]).name_hint, None)
        elif kind == "TransformLayout":
            self._transform_layout(names, attributes, inputs)
        elif kind == "Annotate":
            self._annotate(names, attributes, inputs)
        else:
            raise UndescribedError(f"instruction {kind} is not interpreted")

    def block(self, schedule: Schedule, block: Any) -> BlockState:
        """The state of a block, made at first sight from its loops, which must then be its axes one by one."""
        statement = content(schedule, block)
        state = self.blocks.get(statement.name_hint)
        if state is not None:
            return state
        iters = axis_factors([axis.extent for axis in axes_of(statement)])
        fresh = BlockState(statement.name_hint, iters, [LoopState((factor,)) for factor in iters])
        self.blocks[fresh.name] = fresh
        for region in (*statement.reads, *statement.writes):
            old = self.old_shape(region.source)
            if old is not None:
                # What its loops run over follows from decisions; it is only known as a copy of the buffer.
                fresh.rebinding = block_transforms.stage(old, [int(n) for n in region.source.shape])
                fresh.iters = tuple(Factor(()) for _ in iters)
                fresh.loops = [LoopState(None) for _ in iters]
                return fresh
        bound = bindings(schedule, block)
        variables = [loop.loop_var for loop in loops_around(schedule, block)]
        if len(bound) == len(variables) and all(b.same_as(v) for b, v in zip(bound, variables, strict=True)):
            return fresh
        # A stage that was made inside of the loops of the block that reads it.
        outside = len(variables) - len(bound)
        for consumer in consumers(schedule, block):
            reader = self.blocks.get(content(schedule, consumer).name_hint)
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

    def _nest(self, block: BlockState, count: int) -> list[LoopState]:
        """The loops around a block, from the outermost."""
        loops = [loop for _, loop in framed(block)]
        if len(loops) != count:
            raise UndescribedError(f"block {block.name} has {count} loops, not {len(loops)}")
        return loops

    def _owner(self, loop: LoopState) -> BlockState:
        """The block whose own loop it is."""
        for block in self.blocks.values():
            if loop in block.loops:
                return block
        raise UndescribedError("a loop of no known block")

    def _split(self, loop: LoopState, factors: list[Any], outputs: list[str]) -> None:
        owner = self._owner(loop)
        parts: list[tuple[int | None, int | None, tuple[int, ...]]] = []
        for factor in factors:
            column = self.columns.get(factor) if isinstance(factor, str) else None
            size = int(factor) if isinstance(factor, int | float) else None
            parts.append((column, size, self._choices.get(column, ()) if column is not None else ()))
        nested = loopnest.split(loop, parts, self.frame_extents(owner))
        at = owner.loops.index(loop)
        owner.loops[at : at + 1] = nested
        self._loops.update(zip(outputs, nested, strict=True))

    def frame_extents(self, block: BlockState) -> list[int]:
        """Extents of the axes that the factors of a block's loops count."""
        if block.rebinding is not None:
            return [axis.extent for axis in block.rebinding.axes]
        return [factor.extent for factor in block.iters]

    def _neighbour(self, block: Any, loop: LoopState, reverse: bool) -> BlockState | None:
        """A block that reads what ``block`` writes (``reverse``: writes what it reads) and stands in the loop."""
        schedule = self.schedule
        for other in producers(schedule, block) if reverse else consumers(schedule, block):
            neighbour = self.blocks.get(content(schedule, other).name_hint)
            if (
                neighbour is not None
                and neighbour.column is None
                and any(each is loop for _, each in framed(neighbour))
            ):
                return neighbour
        return None

    def _move(self, block: BlockState, target: str, inputs: Sequence[Any], reverse: bool) -> None:
        top = block.top
        if target in self._sampled_loops:
            if self._places is None:
                top.column = self._sampled_loops[target]
                return
            location = self._sampled_target(inputs)
            if location is None:
                return  # it stays at the root, or is gone
            top.at = location
        else:
            loop = self._loops[target].current
            top.at = (self._neighbour(inputs[0], loop, reverse) or self._owner(loop), loop)
        loopnest.moved(top)

    def _sampled_target(self, inputs: Sequence[Any]) -> tuple[BlockState, LoopState] | None:
        """The loop that TVM has sampled; None for the root, and for a block that is computed inline."""
        schedule = self.schedule
        chosen = sampled_loop(schedule, inputs[1])
        if chosen is None:
            return None
        for consumer in consumers(schedule, inputs[0]):
            real = loops_around(schedule, consumer)
            for at, loop in enumerate(real):
                if loop.loop_var.same_as(chosen.loop_var):
                    reader = self.block(schedule, consumer)
                    return reader, framed(reader)[at][1]
        raise UndescribedError("a sampled location that is no loop of a consumer")

    def _decompose(self, block: BlockState, loop: LoopState) -> None:
        del self.blocks[block.name]
        rest = block_transforms.decompose(block, loop, self._reductions(block))
        self.blocks[block.name], self.blocks[rest.name] = block, rest

    def _axes(self, block: BlockState) -> tuple[Axis, ...]:
        """The axes of a block's frame."""
        if block.rebinding is not None:
            return block.rebinding.axes
        return axes_of(named_content(self.schedule, block.name.removesuffix("_update")))

    def _reductions(self, block: BlockState) -> set[int]:
        return {i for i, axis in enumerate(self._axes(block)) if axis.reduction}

    def _rfactor(self, loop: LoopState, factor_axis: int) -> None:
        block = self._owner(loop)
        old = tuple(int(n) for n in named_content(self.schedule, block.name).writes[0].source.shape)
        partial, bound = block_transforms.rfactor(block, loop, self._axes(block), self.values)
        self.blocks[partial.name] = partial

        def note() -> None:
            statement = named_content(self.schedule, partial.name)
            assert partial.rebinding is not None, "rfactor has rebound the block"
            if [int(v.dom.extent) for v in statement.iter_vars] != [
                extent for _, _, extent in partial.rebinding.values
            ]:
                raise UndescribedError(f"rfactor of block {block.name} leaves other reductions than expected")
            buffer = statement.writes[0].source
            self.partial_sums[self._name(buffer)] = (*old[:factor_axis], bound, *old[factor_axis:])

        self._pending.append(note)

    def _blockize(self, loop: LoopState) -> None:
        body = self._owner(loop)
        outer = block_transforms.blockize(body, loop, self._axes(body))
        self.blocks[outer.name] = outer

    def _transform_layout(self, names: list[Any], attributes: list[Any], inputs: Sequence[Any]) -> None:
        """A layout that follows from decisions is not described: buffers keep their old shape."""
        if not any(f'"data":"{column}"' in str(names[1]) for column in self.columns):
            return
        statement = content(self.schedule, inputs[0])
        if not attributes[1]:
            raise UndescribedError(f"a read of block {statement.name_hint} is laid out by decisions")
        buffer = statement.writes[int(attributes[0])].source
        self._relaid[str(buffer.name)] = tuple(int(n) for n in buffer.shape)

    def _name(self, buffer: Any) -> str:
        """The name of a new buffer."""
        name = str(buffer.name)
        if name in self._taken:
            name = f"{name}#{len(self._renamed) + 1}"
            self._renamed.append((buffer, name))
        self._taken.add(name)
        return name

    def buffer_name(self, buffer: Any) -> str:
        """The buffer's name where no other buffer has it, else another one."""
        return next((name for each, name in self._renamed if each.same_as(buffer)), str(buffer.name))

    def old_shape(self, buffer: Any) -> tuple[int, ...] | None:
        """The shape that a buffer had before decisions gave it another layout; None where they did not."""
        name = self.buffer_name(buffer)
        if name in self.partial_sums:
            return None
        for relaid, shape in self._relaid.items():
            # Stages of the buffer are named after it; the layout cuts its last two dimensions in three each.
            if name.startswith(relaid) and len(buffer.shape) == len(shape) + 4:
                return shape
        return None

    def _annotate(self, names: list[Any], attributes: list[Any], inputs: Sequence[Any]) -> None:
        if not str(names[0]).startswith("b"):
            return
        name = content(self.schedule, inputs[0]).name_hint
        if name == "root":
            value = names[1] if len(names) > 1 else attributes[1]
            self.root[str(attributes[0])] = value if isinstance(value, str) else int(value)
        elif attributes[0] == "warp_execution" and name in self.blocks:
            self.blocks[name].warp = WARP_LANES


def _even_tile(extent: int, parts: int, limit: int) -> list[int]:
    """A tile without factors of 1 where that can be: the same in every process, whatever was drawn."""
    factors, rest = [1] * parts, extent
    primes = []
    prime = 2
    while rest > 1:
        if rest % prime:
            prime += 1
        else:
            primes.append(prime)
            rest //= prime
    for i, each in enumerate(sorted(primes, reverse=True)):
        part = parts - 1 - i % parts
        part = 0 if part == parts - 1 and factors[part] * each > limit else part
        factors[part] *= each
    return factors
