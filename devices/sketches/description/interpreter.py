"""An abstract interpreter of traces: the loops around every block, as expressions of the decisions.

The trace is replayed on a live schedule. The interpreter visits each instruction before it runs, and applies its effect
(:mod:`devices.sketches.description.instructions`) to its own model of the loops
(:mod:`devices.sketches.description.loopnest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from math import prod
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule.instruction import Instruction

from devices.sketches.description.deadline import Deadline
from devices.sketches.description.instructions import SAMPLING, TraceStep, apply
from devices.sketches.description.live_schedule import consumers, content, loops_around, reduction_variables
from devices.sketches.description.loopnest import nest_of
from devices.sketches.description.trace_state import TraceState
from devices.sketches.description.undescribed import reason_of
from fleet_tune.base.sketch import INLINE_LOCATION, ROOT_LOCATION


class Interpreter:
    """Interprets one replay of a trace.

    Args:
        schedule: the schedule on which the trace is replayed.
        steps: the instructions of the trace (:func:`devices.sketches.traces.instructions`).
        places: TVM's decisions for the next SampleComputeLocations, in order. Blocks are then placed there, and factors
            of tiles are above 1 as far as possible. None: all blocks stay at the root, and the decision column of each
            place is noted.
    """

    def __init__(self, schedule: Schedule, steps: Sequence[list[Any]], places: Sequence[int] | None = None) -> None:
        self.state = TraceState.start(schedule, places)
        self.deadline = Deadline()
        #: Reason why the trace cannot be described; empty while there is none.
        self.failure = ""
        self._steps = steps
        self._at = 0

    @property
    def schedule(self) -> Schedule:
        return self.state.schedule

    @property
    def done(self) -> bool:
        """True once all instructions were visited."""
        return self._at == len(self._steps)

    def fork(self, places: Sequence[int]) -> Interpreter:
        """Return a copy of this interpreter at its current instruction, on a copy of its schedule. ``places``: TVM's
        decisions for the next SampleComputeLocations."""
        fork = copy(self)
        fork.state = self.state.fork(places)
        return fork

    def visit(self, instruction: Instruction, inputs: Sequence[Any], _attributes: Any, decision: Any) -> Any:
        """Interpret an instruction before it runs, and return the decision to run it with.

        The replay calls this method before each instruction. An exception would end the replay, so errors are stored in
        :attr:`failure`.
        """
        self.settle()
        kind, names, attributes, outputs = self._steps[self._at]
        self._at += 1
        places = self.state.places
        if kind == "SampleComputeLocation":
            # Without places: the root, which is always valid, and where no block disappears.
            decision = ROOT_LOCATION if places is None else places.pop(0)
        if kind == "SamplePerfectTile" and places is not None:
            decision = _even_tile(prod(int(f) for f in decision), int(instruction.attrs[0]), int(instruction.attrs[1]))
        if kind in SAMPLING:
            self._sample(instruction, inputs, outputs, decision)
        elif not self.failure:
            try:
                self.deadline.check()
                self._step(TraceStep(kind, names, attributes, outputs, inputs))
            except Exception as error:
                self.failure = reason_of(error)
        return decision

    def settle(self) -> None:
        """Run the pending actions, which read results of the last instruction."""
        pending, self.state.pending = self.state.pending, []
        if not self.failure:
            try:
                for action in pending:
                    action()
            except Exception as error:
                self.failure = reason_of(error)

    def _step(self, step: TraceStep) -> None:
        apply(self.state, step)

    def _sample(self, instruction: Instruction, inputs: Sequence[Any], outputs: list[str], decision: Any) -> None:
        """Add a sampling instruction to the log of decisions."""
        log, kind = self.state.decisions, instruction.kind.name
        if kind == "SamplePerfectTile":
            parts, limit = (int(attribute) for attribute in instruction.attrs)
            log.add_tile(outputs, [int(factor) for factor in decision], parts, limit)
        elif kind == "SampleCategorical":
            values = tuple(int(value) for value in instruction.attrs[0])
            log.add_choice(outputs[0], self._use(outputs[0]), values, int(decision))
        else:
            block = content(self.schedule, inputs[0]).name_hint
            places = (ROOT_LOCATION,) if self.state.places is not None else self._possible_places(inputs[0])
            log.add_location(outputs[0], block, places, ROOT_LOCATION)

    def _use(self, value: str) -> str:
        """Return the use of a sampled value: the last part of the name of the annotation that takes it, else
        "value"."""
        for kind, names, attributes, _ in self._steps:
            if kind == "Annotate" and value in names:
                return str(attributes[0]).rsplit(".", 1)[-1]
        return "value"

    def _possible_places(self, block: Any) -> tuple[int, ...]:
        """Return the places where a block can be computed, as TVM's values: inline if that is possible, the root, and
        the loops around its first consumer outside of the consumer's reductions.

        If a place is not valid together with the other decisions, TVM takes the next loop outwards.
        """
        schedule = self.schedule.copy()
        places = [ROOT_LOCATION]
        readers = consumers(schedule, block)
        if readers:
            reductions = reduction_variables(schedule, readers[0])
            variables = [loop.loop_var for loop in loops_around(schedule, readers[0])]
            depth = next((i for i, v in enumerate(variables) if any(v.same_as(r) for r in reductions)), len(variables))
            places += range(depth)
            if not self.failure:
                try:
                    consumer = self.state.blocks.block(schedule, readers[0])
                    nest = nest_of(consumer, len(variables))
                    self.state.decisions.targets[len(self.state.decisions.decisions)] = (consumer, nest[:depth])
                except Exception as error:
                    self.failure = reason_of(error)
        with suppress(RuntimeError):
            schedule.compute_inline(block)
            places.insert(0, INLINE_LOCATION)
        return tuple(places)


def _even_tile(extent: int, parts: int, limit: int) -> list[int]:
    """Return a tile with as few factors of 1 as possible. It depends on the arguments only, not on drawn decisions."""
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
