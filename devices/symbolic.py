"""From a trace to the symbolic sketch: an abstract interpreter over the trace's instructions.

The trace is replayed once on a live schedule. Before each instruction the interpreter sees it with the blocks it works
on, and keeps, for every block, the loops around it as products of *factors*: a factor belongs to one axis of the block
and its extent is a decision column or a constant. What the loops enclose (axes, affine accesses, float operations) is
read from the scheduled program, where splitting and reordering have left it as it was.

The description is checked against the replayed schedule before it is given out: for the decisions of the replay, loop
extents and order must be those of the real loops. A trace that uses what is not interpreted here keeps its decisions
and is left undescribed, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm.s_tir import SBlockRealize, Schedule, Trace
from tvm.s_tir.schedule.instruction import Instruction
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

from devices.accesses import REDUCTION, BlockFacts, block_facts, leaf_blocks
from devices.traces import instructions
from fleet_tune.sketch import (
    INLINE_LOCATION,
    ROOT_LOCATION,
    Choice,
    Decision,
    Location,
    Loop,
    LoopKind,
    Statement,
    Tile,
)

SAMPLING = ("SamplePerfectTile", "SampleCategorical", "SampleComputeLocation")

_KINDS: dict[str, LoopKind] = {"Parallel": "parallel", "Vectorize": "vectorize", "Unroll": "unroll"}
_THREADS: dict[str, LoopKind] = {
    "blockIdx.x": "blockIdx.x",
    "threadIdx.x": "threadIdx.x",
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
    "SetScope",
    "StorageAlign",
    *SAMPLING,
}


@dataclass(frozen=True)
class Description:
    """What is known of a trace. ``locations``: for every decision the values TVM gives to its choices (of a Location:
    depths in TVM's fused loops, where the Location's own count the statement's loops), else None."""

    decisions: tuple[Decision, ...]
    locations: tuple[tuple[int, ...] | None, ...]
    statements: tuple[Statement, ...]
    undescribed: str


class _UndescribedError(Exception):
    """The trace does something that the symbolic sketch cannot express."""


@dataclass(frozen=True)
class _Factor:
    """Part of an axis: ``column`` of the decision vector, or a constant ``extent``."""

    axis: int
    column: int | None
    extent: int


@dataclass(eq=False)
class _Nested:
    """A loop: the factors it runs over, from the slowest; None where they follow from a region (compute_at)."""

    factors: tuple[_Factor, ...] | None
    kind: LoopKind = "serial"
    fused_into: _Nested | None = None

    @property
    def current(self) -> _Nested:
        loop = self
        while loop.fused_into is not None:
            loop = loop.fused_into
        return loop


@dataclass(eq=False)
class _Block:
    """A block, or after blockize the block around it (``outer`` loops of the same nest are then its own).

    ``at``: the block and loop it was moved to, or the decision column that says so.
    """

    name: str
    loops: list[_Nested]
    derived: list[_Nested] = field(default_factory=list)
    at: tuple[_Block, _Nested] | None = None
    column: int | None = None
    facts: BlockFacts | None = None
    outer: int | None = None
    body: _Block | None = None


def describe(fresh: Schedule, trace: Trace) -> Description:
    """Describe ``trace``, a trace without post-processors, of the program of ``fresh`` (not changed)."""
    interpreter = _Interpreter(fresh.copy(), trace)
    trace.apply_to_schedule(interpreter.schedule, remove_postproc=True, decision_provider=interpreter.visit)
    return interpreter.finish()


class _Interpreter:
    def __init__(self, schedule: Schedule, trace: Trace) -> None:
        self.schedule = schedule
        self._instructions = instructions(trace)
        self._at = 0
        self._failure = ""
        self._blocks: dict[str, _Block] = {}
        self._loops: dict[str, _Nested] = {}
        self._columns: dict[str, int] = {}  # column of every sampled value, by its name
        self._sampled_loops: dict[str, int] = {}  # column of every sampled location
        self._decisions: list[Decision] = []
        self._values: list[int] = []  # decision vector of this replay
        self._places: dict[int, tuple[str, tuple[int, ...], list[_Nested]]] = {}  # of every Location, by decision
        self._root: dict[str, str | int] = {}  # annotations of the root block

    # The replay calls this before each instruction; an exception would end the replay.
    def visit(self, instruction: Instruction, inputs: Sequence[Any], _attributes: Any, decision: Any) -> Any:
        kind, names, attributes, outputs = self._instructions[self._at]
        self._at += 1
        if kind == "SampleComputeLocation":
            decision = ROOT_LOCATION  # the one place that is always valid, and where no block disappears
        if kind in SAMPLING:
            self._sample(kind, inputs, instruction, outputs, decision)
        elif not self._failure:
            try:
                self._step(kind, names, attributes, outputs, inputs)
            except _UndescribedError as error:
                self._failure = str(error)
        return decision

    # Decisions

    def _sample(
        self, kind: str, inputs: Sequence[Any], instruction: Instruction, outputs: list[str], decision: Any
    ) -> None:
        column = len(self._values)
        if kind == "SamplePerfectTile":
            factors = [int(factor) for factor in decision]
            parts, limit = (int(attribute) for attribute in instruction.attrs)
            self._decisions.append(Tile(prod(factors), parts, limit))
            self._columns.update({name: column + i for i, name in enumerate(outputs)})
            self._values += factors
        elif kind == "SampleCategorical":
            self._decisions.append(Choice(self._use(outputs[0]), tuple(int(v) for v in instruction.attrs[0])))
            self._columns[outputs[0]] = column
            self._values.append(int(decision))
        else:
            block = self.schedule.get(inputs[0])
            places, around = self._possible_places(inputs[0])
            self._places[len(self._decisions)] = (block.name_hint, places, around)
            self._decisions.append(Location(block.name_hint, places))
            self._sampled_loops[outputs[0]] = column
            self._values.append(places.index(ROOT_LOCATION))

    def _use(self, value: str) -> str:
        """What a sampled value is used for: the annotation that takes it."""
        for kind, names, attributes, _ in self._instructions:
            if kind == "Annotate" and value in names:
                return str(attributes[0]).rsplit(".", 1)[-1]
        return "value"

    def _possible_places(self, block: Any) -> tuple[tuple[int, ...], list[_Nested]]:
        """Root, inline where that is possible, and the loops around the consumer outside of its reductions. TVM takes
        the next loop outwards where a choice is not valid for the other decisions."""
        schedule = self.schedule.copy()
        places = [ROOT_LOCATION]
        around: list[_Nested] = []
        consumers = schedule.get_consumers(block)
        if consumers:
            reductions = _reduction_variables(schedule, consumers[0])
            loops = schedule.get_loops(consumers[0])
            variables = [schedule.get(loop).loop_var for loop in loops]
            depth = next((i for i, v in enumerate(variables) if any(v.same_as(r) for r in reductions)), len(variables))
            places += range(depth)
            if not self._failure:
                try:
                    around = self._nest(self._block(schedule, consumers[0]), len(loops))[:depth]
                except _UndescribedError as error:
                    self._failure = str(error)
        try:
            schedule.compute_inline(block)
            places.insert(0, INLINE_LOCATION)
        except RuntimeError:
            pass
        return tuple(places), around

    # Loops

    def _step(
        self, kind: str, names: list[Any], attributes: list[Any], outputs: list[str], inputs: Sequence[Any]
    ) -> None:
        if kind in _NEUTRAL:
            return
        if kind == "GetLoops":
            nest = self._nest(self._block(self.schedule, inputs[0]), len(outputs))
            self._loops.update(zip(outputs, nest, strict=True))
        elif kind == "Split":
            self._split(names[0], names[1:], outputs)
        elif kind == "Fuse":
            self._fuse([self._loops[name] for name in names], outputs[0])
        elif kind == "Reorder":
            self._reorder([self._loops[name].current for name in names])
        elif kind in _KINDS:
            self._loops[names[0]].current.kind = _KINDS[kind]
        elif kind == "Bind":
            if attributes[0] not in _THREADS:
                raise _UndescribedError(f"loops bound to {attributes[0]}")
            self._loops[names[0]].current.kind = _THREADS[attributes[0]]
        elif kind in ("ComputeAt", "ReverseComputeAt"):
            self._move(self._block(self.schedule, inputs[0]), names[1])
        elif kind == "DecomposeReduction":
            self._decompose(self._block(self.schedule, inputs[0]), self._loops[names[1]].current)
        elif kind == "Blockize":
            self._blockize(self._loops[names[0]].current)
        elif kind == "Annotate":
            self._annotate(names, attributes, inputs)
        else:
            raise _UndescribedError(f"instruction {kind} is not interpreted")

    def _block(self, schedule: Schedule, block: Any) -> _Block:
        """The state of a block, made at first sight from its loops, which must then be its axes one by one."""
        statement = schedule.get(block)
        known = self._blocks.get(statement.name_hint)
        if known is not None:
            return known
        bound = _bindings(schedule, block)
        reader = schedule.copy()  # get_loops adds an instruction to the trace
        variables = [reader.get(loop).loop_var for loop in reader.get_loops(block)]
        if len(bound) != len(variables) or not all(b.same_as(v) for b, v in zip(bound, variables, strict=True)):
            raise _UndescribedError(f"the loops of block {statement.name_hint} are not its axes")
        loops = [_Nested((_Factor(i, None, int(it.dom.extent)),)) for i, it in enumerate(statement.iter_vars)]
        return self._blocks.setdefault(statement.name_hint, _Block(statement.name_hint, loops))

    def _nest(self, block: _Block, count: int) -> list[_Nested]:
        """The loops around a block, from the outermost; those that follow from a region are made as needed."""
        if block.column is not None:
            raise _UndescribedError(f"loops of block {block.name} after its location was sampled")
        if block.at is None:
            loops = _distinct(block.loops)
            return loops if block.outer is None else loops[: block.outer]
        target, loop = block.at
        loops = _distinct(target.loops)
        around = loops[: loops.index(loop.current) + 1]
        while len(around) + len(block.derived) < count:
            block.derived.append(_Nested(None))
        return [*around, *_distinct(block.derived)]

    def _owner(self, loop: _Nested) -> list[_Nested]:
        """The list of loops that ``loop`` stands in."""
        for block in self._blocks.values():
            for loops in (block.loops, block.derived):
                if loop in loops:
                    return loops
        raise _UndescribedError("a loop of no known block")

    def _split(self, name: str, factors: list[Any], outputs: list[str]) -> None:
        loop = self._loops[name].current
        parts: list[_Nested]
        if loop.factors is None or len(loop.factors) != 1:
            parts = [_Nested(None) for _ in outputs]
        else:
            (whole,) = loop.factors
            columns = [self._columns.get(factor) if isinstance(factor, str) else None for factor in factors]
            sizes = [None if isinstance(factor, str) else int(factor) for factor in factors]
            if None in sizes and whole.column is None and all(c is None for c in columns) and sizes.count(None) == 1:
                rest = whole.extent // prod(size for size in sizes if size is not None)
                sizes = [rest if size is None else size for size in sizes]
            if any(column is None and size is None for column, size in zip(columns, sizes, strict=True)):
                parts = [_Nested(None) for _ in outputs]
            else:
                parts = [
                    _Nested((_Factor(whole.axis, column, size or 0),))
                    for column, size in zip(columns, sizes, strict=True)
                ]
        loops = self._owner(loop)
        at = loops.index(loop)
        loops[at : at + 1] = parts
        self._loops.update(zip(outputs, parts, strict=True))

    def _fuse(self, loops: list[_Nested], output: str) -> None:
        parts = [loop.current for loop in loops]
        factors: list[_Factor] | None = []
        for part in parts:
            factors = None if factors is None or part.factors is None else [*factors, *part.factors]
        fused = _Nested(None if factors is None else tuple(factors))
        owner = self._owner(parts[0])
        at = owner.index(parts[0])
        owner[at : at + len(parts)] = [fused]
        for part in parts:
            part.fused_into = fused
        self._loops[output] = fused

    def _reorder(self, order: list[_Nested]) -> None:
        loops = self._owner(order[0])
        places = sorted(loops.index(loop) for loop in order)
        for place, loop in zip(places, order, strict=True):
            loops[place] = loop

    def _move(self, block: _Block, target: str) -> None:
        if target in self._sampled_loops:
            block.column = self._sampled_loops[target]
            return
        loop = self._loops[target].current
        for other in self._blocks.values():
            if loop in other.loops:
                block.at = (other, loop)
                return
        raise _UndescribedError(f"block {block.name} is computed at a loop of a moved block")

    def _decompose(self, block: _Block, loop: _Nested) -> None:
        at = block.loops.index(loop)
        del self._blocks[block.name]
        initial = f"{block.name}_init"
        block.name = f"{block.name}_update"
        self._blocks[block.name] = block
        if at == 0:
            raise _UndescribedError(f"block {initial} at the root")
        self._blocks[initial] = _Block(initial, [], at=(block, block.loops[at - 1]))

    def _blockize(self, loop: _Nested) -> None:
        body = next((block for block in self._blocks.values() if loop in block.loops), None)
        if body is None:
            raise _UndescribedError("blockize of a moved block")
        body.facts = block_facts(self.schedule.mod["main"], body.name)
        self._blocks[f"{body.name}_o"] = _Block(
            f"{body.name}_o", body.loops, outer=body.loops.index(loop), body=body, facts=body.facts
        )

    def _annotate(self, names: list[Any], attributes: list[Any], inputs: Sequence[Any]) -> None:
        if str(names[0]).startswith("b") and self.schedule.get(inputs[0]).name_hint == "root":
            value = names[1] if len(names) > 1 else attributes[1]
            self._root[str(attributes[0])] = value if isinstance(value, str) else int(value)

    # Statements

    def finish(self) -> Description:
        """The description, once the replay is over."""
        if self._at != len(self._instructions):
            raise RuntimeError(f"{len(self._instructions)} instructions, {self._at} of them seen")
        statements: tuple[Statement, ...] = ()
        failure = self._failure
        if not failure:
            try:
                statements = self._statements()
            except _UndescribedError as error:
                failure = str(error)
        locations: list[tuple[int, ...] | None] = [None] * len(self._decisions)
        for index, (block, places, around) in self._places.items():
            locations[index] = places
            if statements:
                ends = _ends(_distinct([loop.current for loop in around]), around)
                depths = tuple(place if place < 0 else ends[place] for place in places)
                self._decisions[index] = Location(block, depths)
        return Description(tuple(self._decisions), tuple(locations), statements, failure)

    def _statements(self) -> tuple[Statement, ...]:
        func = self.schedule.mod["main"]
        facts: list[BlockFacts] = []
        for name in leaf_blocks(func):
            known = self._blocks.get(name)
            found = known.facts if known is not None and known.facts is not None else block_facts(func, name)
            if found is not None and not name.endswith("_init"):
                facts.append(found)
        if not facts:
            raise _UndescribedError("no block with affine accesses")
        first = max(facts, key=lambda f: (f.points * f.flop_per_point, f.points))
        name = first.name
        if name not in leaf_blocks(func):
            raise _UndescribedError(f"block {name} was renamed")
        block = self._block(self.schedule, self.schedule.get_sblock(name, "main"))
        if block.at is not None or block.column is not None:
            raise _UndescribedError(f"the main block {name} is computed at a loop of another")
        loops = self._described_loops(block)
        self._check(block, name)
        others = [other for fact in facts if fact is not first and (other := self._other(block, fact)) is not None]
        sums = {access.buffer for access in first.accesses if access.write and access.scope == "local"}
        written_back = [
            other.fixed_depth for other in others if any(a.buffer in sums and not a.write for a in other.accesses)
        ]
        main = self._statement(first, loops, accumulator_depth=written_back[0] if written_back else None)
        return (main, *others)

    def _described_loops(self, block: _Block) -> tuple[Loop, ...]:
        loops = []
        for loop in _distinct(block.loops):
            if loop.factors is None:
                raise _UndescribedError(f"a loop of block {block.name} follows from others")
            loops += [Loop(f.axis, f.column, f.extent, loop.kind) for f in loop.factors]
        return tuple(loops)

    def _check(self, block: _Block, name: str) -> None:
        """The description must give the extents of the real loops for the decisions of this replay."""
        rv = self.schedule.get_sblock(name, "main")  # the replay is over: this adds nothing to a trace in use
        real = [int(self.schedule.get(loop).extent) for loop in self.schedule.get_loops(rv)]
        mine = [
            prod(f.extent if f.column is None else self._values[f.column] for f in loop.factors or ())
            for loop in _distinct(block.loops)
        ]
        if real != mine:
            raise _UndescribedError(f"loops {mine} of block {name} are really {real}")

    def _other(self, main: _Block, facts: BlockFacts) -> Statement | None:
        """The statement of a block beside the main one: its own loops where they are known, else its axes."""
        known = self._blocks.get(facts.name)
        outer = next((b for b in self._blocks.values() if known is not None and b.body is known), None)
        placed = outer or known
        own = [loop.current for loop in _distinct(known.loops)] if known is not None else []
        loops: tuple[Loop, ...]
        if known is not None and own and known.at is None and all(loop.factors is not None for loop in own):
            loops = self._described_loops(known)
        else:
            kinds: list[LoopKind] = [loop.kind for loop in _distinct(known.derived)] if known is not None else []
            if len(kinds) != len(facts.axes):
                kinds = ["serial"] * len(facts.axes)
            loops = tuple(Loop(i, None, axis.extent, kinds[i]) for i, axis in enumerate(facts.axes))
        depth, column = 0, None
        if placed is not None and placed.column is not None:
            column = placed.column
        elif placed is not None and placed.at is not None:
            target, at = placed.at
            if target is not main:
                return None
            nest = _distinct(main.loops)
            depth = _ends(nest, [at])[0] + 1
        return self._statement(facts, loops, location_column=column, fixed_depth=depth)

    def _statement(self, facts: BlockFacts, loops: tuple[Loop, ...], **place: Any) -> Statement:
        def limit(key: str) -> int:
            value = self._root.get(f"meta_schedule.{key}", 0)
            return value if isinstance(value, int) else 0

        unroll = self._root.get("meta_schedule.unroll_explicit", self._root.get("meta_schedule.unroll_implicit"))
        return Statement(
            name=facts.name,
            axes=facts.axes,
            loops=loops,
            accesses=facts.accesses,
            flop_per_point=facts.flop_per_point,
            parallel_limit=limit("parallel"),
            vectorize_limit=limit("vectorize"),
            unroll_column=self._columns.get(unroll) if isinstance(unroll, str) else None,
            **place,
        )


def _distinct(loops: Sequence[_Nested]) -> list[_Nested]:
    """The loops as they now are: those that were fused stand once."""
    found: list[_Nested] = []
    for loop in loops:
        if loop.current not in found:
            found.append(loop.current)
    return found


def _ends(nest: list[_Nested], loops: Sequence[_Nested]) -> list[int]:
    """For each of ``loops`` the position, among the factors of ``nest``, of its last factor."""
    ends = []
    for loop in loops:
        upto = nest[: nest.index(loop.current) + 1]
        ends.append(sum(len(each.factors or ()) for each in upto) - 1)
    return ends


def _bindings(schedule: Schedule, block: Any) -> list[Any]:
    """What the axes of a block are bound to."""
    statement = schedule.get(block)
    values: list[list[Any]] = []

    def visit(realize: SBlockRealize) -> None:
        if realize.block.same_as(statement):
            values.append(list(realize.iter_values))

    structural_walk(schedule.mod["main"].body, (SBlockRealize, visit))
    return values[0]


def _reduction_variables(schedule: Schedule, block: Any) -> list[Any]:
    """The loop variables that reduction axes of a block run over."""
    return [
        variable
        for axis, value in zip(schedule.get(block).iter_vars, _bindings(schedule, block), strict=True)
        if int(axis.iter_type) == REDUCTION
        for variable in undefined_vars(value)
    ]
