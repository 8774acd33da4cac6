"""From a trace to the symbolic sketch: the knowledge of a design space that ``policies`` needs, without TVM.

The trace is interpreted (:mod:`devices.sketches.description.interpreter`) while it is replayed, and its blocks become
statements (:mod:`devices.sketches.description.statements`). The contents of loops (axes, affine accesses, float
operations) are read from the scheduled program, where splitting and reordering do not change them.

Where one block may be placed inside of the main one's loops, its place stays open in the description. Where several
blocks may be placed, or the main one itself, the possible places of a block depend on those of the others: every
combination of places then has its own description (:attr:`fleet_tune.base.sketch.Sketch.variants`,
:mod:`devices.sketches.description.location_combinations`).

The description is checked against the replayed schedule: for the decisions of the replay, loop extents and order must
be those of the real loops. A trace that uses an instruction without interpretation, that meets an error, or that takes
too long (:mod:`devices.sketches.description.deadline`) keeps its decisions and is left undescribed, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.s_tir import Schedule, Trace

from devices.sketches.description.instructions import SAMPLING
from devices.sketches.description.interpreter import Interpreter
from devices.sketches.description.location_combinations import LocationCombinations
from devices.sketches.description.statements import StatementBuilder, loop_depths
from devices.sketches.description.undescribed import reason_of
from devices.sketches.traces import instructions
from fleet_tune.base.sketch import Decision, Location, Statement

__all__ = ["SAMPLING", "SketchDescription", "describe", "describe_variants"]


@dataclass(frozen=True)
class SketchDescription:
    """The description of a trace."""

    decisions: tuple[Decision, ...]
    locations: tuple[tuple[int, ...] | None, ...]
    """For every decision the values TVM gives to its choices (for a Location: depths in TVM's fused loops, where the
    Location's own count the statement's loops), else None."""
    statements: tuple[Statement, ...]
    undescribed: str
    """Reason why there are no statements; empty where there are."""
    variants: tuple[tuple[Statement, ...], ...] = ()
    """See :class:`fleet_tune.base.sketch.Sketch`."""
    variant_of: tuple[int, ...] = ()
    """See :class:`fleet_tune.base.sketch.Sketch`."""


def describe(fresh: Schedule, trace: Trace) -> SketchDescription:
    """Describe ``trace``, a trace without post-processors, of the program of ``fresh`` (not changed). Raises TVM's
    errors where the trace cannot be replayed.

    Where several blocks are placed, :func:`describe_variants` makes the description; ``undescribed`` then says so.
    """
    interpreter = _replay(fresh, trace)
    statements, failure = _statements(interpreter)
    log = interpreter.state.decisions
    decisions = list(log.decisions)
    places = log.locations
    locations = tuple(places.get(index) for index in range(len(decisions)))
    for index, values in places.items() if statements else ():
        location = decisions[index]
        if isinstance(location, Location) and index in log.targets:
            decisions[index] = Location(location.block, loop_depths(values, log.targets[index][1]))
    return SketchDescription(tuple(decisions), locations, statements, failure)


def describe_variants(fresh: Schedule, trace: Trace, description: SketchDescription) -> SketchDescription:
    """Describe every combination of places of the blocks of a trace that :func:`describe` could not describe."""
    places = [values for values in description.locations if values is not None]
    if description.statements or not places:
        return description
    try:
        variants, variant_of = LocationCombinations(fresh, trace, instructions(trace), places).described()
    except Exception as error:
        return replace(description, undescribed=reason_of(error))
    return SketchDescription(description.decisions, description.locations, variants[0], "", variants, variant_of)


def _replay(fresh: Schedule, trace: Trace) -> Interpreter:
    interpreter = Interpreter(fresh.copy(), instructions(trace))
    trace.apply_to_schedule(interpreter.schedule, remove_postproc=True, decision_provider=interpreter.visit)
    interpreter.settle()
    if not interpreter.done:
        raise RuntimeError("the replay of a trace has skipped instructions")
    return interpreter


def _statements(interpreter: Interpreter) -> tuple[tuple[Statement, ...], str]:
    """Return the statements, or none and the reason."""
    if interpreter.failure:
        return (), interpreter.failure
    try:
        return StatementBuilder(interpreter, {}).statements(), ""
    except Exception as error:
        return (), reason_of(error)
