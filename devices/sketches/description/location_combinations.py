"""Descriptions of all combinations of places of the blocks of a trace, without a replay for each combination.

A program is a sequence of loop *nests* at the root. A step samples a block's place and moves the block there. It
changes the nests of the block, of its consumers and of its producers, and no others. So the effect of a step on these
nests is determined once, on a schedule that has them, and reused wherever they occur again. The statements of a nest
are made once too. The number of steps that run on schedules follows from the number of different nests; combinations
are only assembled from nests. At the end some combinations are run as a whole, and their nests must equal the assembled
ones.

If a place is not valid, TVM takes the next place outwards. Each time a place is sampled, TVM tries all places to find
the valid ones. Here TVM samples only the deepest place of each program, and other places are tried by moving the block.

Schedules are forked step by step, so the instructions before the first place are replayed once for all combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm.s_tir import SBlock, SBlockRealize, Schedule, Trace
from tvm.s_tir.schedule.instruction import Instruction
from tvm.tirx import For, SeqStmt
from tvm_ffi import structural_hash

from devices.sketches.description.accesses import extent_of, leaf_blocks, leaf_name
from devices.sketches.description.interpreter import Interpreter
from devices.sketches.description.live_schedule import content, loop_of_place, named_block, perform
from devices.sketches.description.loopnest import BlockState, distinct, framed
from devices.sketches.description.statements import FactsCache, StatementBuilder, main_block, main_first
from devices.sketches.description.undescribed import UndescribedError
from fleet_tune.base.sketch import INLINE_LOCATION, ROOT_LOCATION, Statement

MAX_COMBINATIONS = 1 << 16
"""Most combinations of places; a trace with more stays undescribed."""

MAX_STEPS = 3000
"""Most steps that run on schedules, about a millisecond each; a trace that needs more stays undescribed."""

CHECKED = 3
"""Number of combinations of each trace that are run as a whole, as a check."""

Statements = tuple[Statement, ...]
Step = list[Any]
Rows = tuple[int, ...]
"""A program as the numbers of its nests, in program order."""


@dataclass(frozen=True)
class _Live:
    """A schedule in the middle of a trace."""

    interpreter: Interpreter
    variables: dict[str, Any]
    """Random variables by their names in the trace."""

    @property
    def schedule(self) -> Schedule:
        return self.interpreter.schedule


@dataclass(frozen=True)
class _Blocks:
    """The leaf blocks of a statement of TensorIR."""

    reads: dict[str, set[str]] = field(default_factory=dict)
    """Names of the buffers that each block reads."""
    writes: dict[str, set[str]] = field(default_factory=dict)
    """Names of the buffers that each block writes."""


@dataclass(eq=False)
class _State:
    """A program in which some places are chosen."""

    rows: Rows
    parent: _State | None = None
    """The program before the last choice; None if nothing is chosen."""
    place: int = 0
    """The last choice."""
    live: _Live | None = None
    """Its schedule; None until it is needed."""

    @property
    def chosen(self) -> tuple[int, ...]:
        return () if self.parent is None else (*self.parent.chosen, self.place)


@dataclass(frozen=True)
class _Nest:
    """A loop nest at the root."""

    blocks: _Blocks
    describer: StatementBuilder
    """Makes the nest's statements, from the schedule where the nest first occurred."""

    @property
    def names(self) -> set[str]:
        return set(self.blocks.reads)


class _InvalidPlaceError(Exception):
    """A block cannot be moved to the chosen place."""


class LocationCombinations:
    """Assembles the programs of all combinations of places of one trace. All methods raise :class:`UndescribedError`.

    Args:
        fresh: a schedule of the program; not changed.
        trace: the trace.
        steps: its instructions (:func:`devices.sketches.traces.instructions`).
        places: TVM's decisions for every SampleComputeLocation, in order.
    """

    def __init__(self, fresh: Schedule, trace: Trace, steps: Sequence[Step], places: Sequence[Sequence[int]]) -> None:
        if prod(len(values) for values in places) > MAX_COMBINATIONS:
            raise UndescribedError(f"more than {MAX_COMBINATIONS} combinations of places")
        self._places = places
        starts = [at for at, step in enumerate(steps) if step[0] == "SampleComputeLocation"]
        pairs = list(zip(trace.insts, steps, strict=True))
        self._segments = [pairs[start:end] for start, end in zip(starts, [*starts[1:], len(steps)], strict=True)]
        self._trace = trace
        self._moved: list[str] = []  # the leaf block that each step places, or that is in the placed block
        self._nests: list[_Nest] = []
        self._numbers: dict[Hashable, int] = {}  # number of every nest, by its distinguishing key
        # For a step and the nests that it changes: the replacement of each nest, by place.
        self._effects: dict[Hashable, dict[int, tuple[Rows, ...]]] = {}
        self._facts: FactsCache = {}
        self._groups: dict[tuple[int, str | None], int] = {}  # number of the statements of a nest, main one first
        self._listed: dict[Statements, int] = {}  # number of a group of statements
        self._run = 0
        live = _replayed(fresh, trace, steps, starts[0])
        self._deadline = live.interpreter.deadline
        self._root = _State(self._rows(live), live=live)

    def described(self) -> tuple[tuple[Statements, ...], tuple[int, ...]]:
        """Return the different descriptions, and for every combination of places the number of its description.
        Combinations are in order, with the last place changing fastest."""
        level = [self._root]
        reached = [0]  # for every combination of the places so far, the index of its state in the level
        for step, values in enumerate(self._places):
            number_of: dict[Rows, int] = {}
            following: list[_State] = []
            onward: list[list[int]] = []
            for state in level:
                onward.append([])
                for place, rows, live in self._step(state, step, values):
                    if rows not in number_of:
                        number_of[rows] = len(following)
                        following.append(_State(rows, state, place, live))
                    onward[-1].append(number_of[rows])
            reached = [after for before in reached for after in onward[before]]
            level = following
            # These nests also occur in the final programs whose other blocks stay at the root. So a nest that cannot be
            # described is found before all places are tried.
            for state in level:
                self._described(state)
        for at in range(CHECKED):
            self._check(level[at * (len(level) - 1) // (CHECKED - 1)])
        distinct: dict[tuple[tuple[int, ...], int], int] = {}
        numbers = [distinct.setdefault(self._described(state), len(distinct)) for state in level]
        groups = list(self._listed)
        variants = tuple(_joined([groups[number] for number in chosen], first) for chosen, first in distinct)
        return variants, tuple(numbers[state] for state in reached)

    # Steps

    def _step(self, state: _State, step: int, places: Sequence[int]) -> list[tuple[int, Rows, _Live | None]]:
        """Return for each of the places: the place, the program after it was chosen, and the schedule of that program
        if there is one already."""
        self._deadline.check()
        if len(self._moved) == step:
            variable = self._live(state).variables[self._segments[step][0][1][1][0]]
            self._moved.append(leaf_name(content(self._live(state).schedule, variable)))
        involved = self._involved(state.rows, self._moved[step])
        key = (step, tuple(state.rows[at] for at in involved))
        lives: dict[int, _Live] = {}
        if key not in self._effects:
            lives = self._placed(self._live(state), step, places)
            after = {id(live): self._rows(live) for live in lives.values()}
            effects = {known: self._effect(state.rows, involved, rows) for known, rows in after.items()}
            self._effects[key] = {place: effects[id(live)] for place, live in lives.items()}
        programs = []
        for place in places:
            effect = dict(zip(involved, self._effects[key][place], strict=True))
            rows = tuple(n for at, number in enumerate(state.rows) for n in effect.get(at, (number,)))
            if lives and rows != after[id(lives[place])]:
                raise UndescribedError(f"placing block {self._moved[step]} changes what it has nothing to do with")
            programs.append((place, rows, lives.get(place)))
        return programs

    def _placed(self, live: _Live, step: int, places: Sequence[int]) -> dict[int, _Live]:
        """Return the schedule for every place. Places that TVM treats the same share one schedule. ``places`` ascend
        and include the root."""
        deepest = self._advance(live, step, places[-1], sampled=True)
        reached = self._reached(deepest, step)
        placed: dict[int, _Live] = {}
        outwards = deepest
        for place in places:
            if place >= reached:
                outwards = deepest
            elif place == INLINE_LOCATION:
                outwards = self._advance(live, step, place, sampled=True)
            else:
                with suppress(_InvalidPlaceError):
                    outwards = self._advance(live, step, place)
            placed[place] = outwards
        return placed

    def _reached(self, live: _Live, step: int) -> int:
        """Return the place where TVM has put the block of a step."""
        block = live.interpreter.state.blocks.blocks.get(self._moved[step])
        if block is None or block.top.at is None:
            return ROOT_LOCATION
        reader, loop = block.top.at
        return next(at for at, (_, each) in enumerate(framed(reader)) if each is loop.current)

    def _involved(self, rows: Rows, name: str) -> list[int]:
        """Return the positions of the nests that contain a block, its consumers or its producers."""
        blocks = [self._nests[number].blocks for number in rows]
        moving = next((each for each in blocks if name in each.reads), None)
        if moving is None:
            raise UndescribedError(f"block {name} is gone before it is placed")
        reads, writes = moving.reads[name], moving.writes[name]
        return [
            at
            for at, each in enumerate(blocks)
            if name in each.reads
            or any(written & reads for written in each.writes.values())
            or any(read & writes for read in each.reads.values())
        ]

    def _effect(self, before: Rows, involved: Sequence[int], after: Rows) -> tuple[Rows, ...]:
        """Return the nests that replace each involved nest. If one nest has moved into another, the merged nest stands
        at the position of the later one."""
        others = {number for at, number in enumerate(before) if at not in involved}
        instead: dict[int, list[int]] = {at: [] for at in involved}
        for number in after:
            if number not in others:
                names = self._nests[number].names
                last = [at for at in involved if self._nests[before[at]].names <= names][-1:]
                if not last:
                    raise UndescribedError(f"blocks {sorted(names)} come from nowhere")
                instead[last[0]].append(number)
        return tuple(tuple(instead[at]) for at in involved)

    def _live(self, state: _State) -> _Live:
        if state.live is None:
            assert state.parent is not None, "the root has its schedule"
            state.live = self._advance(self._live(state.parent), len(state.chosen) - 1, state.place, sampled=True)
        return state.live

    def _advance(self, live: _Live, step: int, place: int, sampled: bool = False) -> _Live:
        """Choose a place on a fork of the schedule, and run the instructions up to the next place.

        ``sampled``: true to let TVM sample the place, which may take another one. False to take the place itself, or to
        raise :class:`_InvalidPlaceError` if it is not valid.
        """
        self._run += 1
        if self._run > MAX_STEPS:
            raise UndescribedError(f"more than {MAX_STEPS} different nests of loops")
        interpreter, variables = live.interpreter.fork((place,)), dict(live.variables)
        for instruction, (kind, names, _, outputs) in self._segments[step]:
            inputs = [
                variables[name] if isinstance(name, str) and name in variables else constant
                for name, constant in zip(names, instruction.inputs, strict=True)
            ]
            decision = interpreter.visit(instruction, inputs, None, self._trace.get_decision(instruction))
            try:
                if sampled or kind not in ("SampleComputeLocation", "ComputeAt"):
                    results = perform(interpreter.schedule, instruction, inputs, decision)
                else:
                    results = _choose(interpreter.schedule, instruction, inputs, place)
            except RuntimeError as error:
                raise UndescribedError(f"{kind} is refused") from error
            if results is None:
                raise UndescribedError(f"instruction {kind} after a sampled place")
            variables.update(zip(outputs, results, strict=True))
        interpreter.settle()
        if interpreter.failure:
            raise UndescribedError(interpreter.failure)
        return _Live(interpreter, variables)

    def _check(self, state: _State) -> None:
        """Run the combination of an assembled program as a whole, and compare the nests."""
        live = self._live(self._root)
        for step, place in enumerate(state.chosen):
            live = self._advance(live, step, place, sampled=True)
        if self._rows(live) != state.rows:
            raise UndescribedError(f"with blocks at {state.chosen} the program is another one")

    # Nests

    def _rows(self, live: _Live) -> Rows:
        body = live.schedule.mod["main"].body.block.body
        rows = []
        for child in body.seq if isinstance(body, SeqStmt) else [body]:
            blocks = _Blocks()
            seen = _signature(child, blocks, live.interpreter.state.buffers.name)
            states = [live.interpreter.state.blocks.blocks.get(name) for name in blocks.reads]
            key = (seen, tuple(None if block is None else _loops_of(block) for block in states))
            if key not in self._numbers:
                self._numbers[key] = len(self._nests)
                self._nests.append(_Nest(blocks, StatementBuilder(live.interpreter, self._facts, set(blocks.reads))))
            rows.append(self._numbers[key])
        return tuple(rows)

    def _described(self, state: _State) -> tuple[tuple[int, ...], int]:
        """Return the numbers of every nest's group of statements, and the position of the nest with the main block."""
        nests = [self._nests[number] for number in state.rows]
        main = main_block([facts for nest in nests for facts in nest.describer.facts])
        first = next(at for at, nest in enumerate(nests) if main in nest.names)
        numbers = []
        for at, number in enumerate(state.rows):
            key = (number, main if at == first else None)
            if key not in self._groups:
                try:
                    statements = nests[at].describer.together(key[1])
                except UndescribedError as error:
                    raise UndescribedError(f"with blocks at {state.chosen}: {error}") from error
                self._groups[key] = self._listed.setdefault(statements, len(self._listed))
            numbers.append(self._groups[key])
        return tuple(numbers), first


def _choose(schedule: Schedule, instruction: Instruction, inputs: Sequence[Any], place: int) -> list[Any]:
    """Return the loop of ``place`` instead of running a SampleComputeLocation, or run the ComputeAt that takes that
    loop. The loop is None for the root, where the block already is. Raises :class:`_InvalidPlaceError`."""
    if instruction.kind.name == "SampleComputeLocation":
        if place == ROOT_LOCATION:
            return [None]
        loop = loop_of_place(schedule, inputs[0], place)
        if extent_of(content(schedule, loop), "") == 1:  # TVM skips loops of one iteration
            raise _InvalidPlaceError
        return [loop]
    if inputs[1] is not None:
        try:
            perform(schedule, instruction, inputs, None)
        except RuntimeError as error:
            raise _InvalidPlaceError from error
    return []


def _joined(groups: Sequence[Statements], first: int) -> Statements:
    """Return the statements of a program: the main one, which is the first statement of the nest ``first``, and then
    the others in program order."""
    others = [s for at, group in enumerate(groups) for s in (group[1:] if at == first else group)]
    return main_first([groups[first][0], *others])


def _replayed(fresh: Schedule, trace: Trace, steps: Sequence[Step], count: int) -> _Live:
    """Return the schedule after the first ``count`` instructions of a trace, with the states of its blocks made as far
    as possible."""
    interpreter = Interpreter(fresh.copy(), steps, ())
    variables: dict[str, Any] = {}
    done = 0

    def note() -> None:
        if done:
            variables.update(zip(steps[done - 1][3], interpreter.schedule.trace.insts[-1].outputs, strict=True))

    def visit(instruction: Instruction, inputs: Sequence[Any], attributes: Any, decision: Any) -> Any:
        nonlocal done
        note()
        done += 1
        return interpreter.visit(instruction, inputs, attributes, decision)

    instructions = list(trace.insts)[:count]
    decisions = {each: trace.get_decision(each) for each in instructions}
    before = Trace(instructions, {each: decision for each, decision in decisions.items() if decision is not None})
    before.apply_to_schedule(interpreter.schedule, remove_postproc=True, decision_provider=visit)
    note()
    interpreter.settle()
    if interpreter.failure:
        raise UndescribedError(interpreter.failure)
    for name in leaf_blocks(interpreter.schedule.mod["main"]):
        # A block whose state cannot be made is described by its axes, or not at all.
        with suppress(UndescribedError):
            interpreter.state.block(named_block(interpreter.schedule, name))
    return _Live(interpreter, variables)


def _signature(node: Any, blocks: _Blocks, name_of: Callable[[Any], str]) -> Hashable:
    """Return a key that distinguishes a statement of TensorIR from others, ignoring annotations of loops and blocks.
    Its leaf blocks are added to ``blocks``."""
    if isinstance(node, For):
        thread = "" if node.thread_binding is None else str(node.thread_binding.thread_tag)
        return extent_of(node, str(node.loop_var.name)), int(node.kind), thread, _signature(node.body, blocks, name_of)
    if isinstance(node, SeqStmt):
        return tuple(_signature(each, blocks, name_of) for each in node.seq)
    if not isinstance(node, SBlockRealize):
        return int(structural_hash(node, map_free_vars=True))
    block: SBlock = node.block
    name, before = str(block.name_hint), len(blocks.reads)
    reads = {name_of(region.source) for region in block.reads}
    writes = {name_of(region.source) for region in block.writes}
    inside = _signature(block.body, blocks, name_of)
    if len(blocks.reads) == before:
        blocks.reads[name], blocks.writes[name] = reads, writes
    return name, frozenset(reads), frozenset(writes), inside


def _loops_of(block: BlockState) -> Hashable:
    """Return a key of the known facts of a block's loops and place."""
    place = None
    if block.at is not None:
        target, loop = block.at
        place = target.name, next(at for at, (_, each) in enumerate(framed(target)) if each is loop.current)
    loops = tuple((loop.factors, loop.kind) for loop in distinct(block.loops))
    within = None if block.within is None else _loops_of(block.within)
    return block.name, block.iters, block.rebinding, block.warp, loops, place, within
