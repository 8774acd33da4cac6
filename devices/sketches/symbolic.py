"""From a trace to the symbolic sketch: all facts of a design space that ``policies`` needs, so that it works without
TVM.

The trace is interpreted (:mod:`devices.sketches.description.interpreter`) while it is replayed, and its blocks become
statements (:mod:`devices.sketches.description.statements`). The contents of blocks (axes, affine accesses, float
operations) are read from the scheduled program, because splitting and reordering do not change them.

If one block may be placed inside of the main block's loops, its place stays open in the description. If several blocks
may be placed, or the main block itself, the possible places of a block depend on the places of the others. Then every
combination of places has its own description (:attr:`fleet_tune.base.sketch.Sketch.variants`,
:mod:`devices.sketches.description.location_combinations`).

The description is checked against the replayed schedule: for the decisions of the replay, loop extents and order must
equal those of the real loops. A trace that uses an instruction which the interpreter does not know, that raises an
error, or that takes too long (:mod:`devices.sketches.description.deadline`) keeps its decisions and stays undescribed,
with the reason.
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
    """For every Location, TVM's values of its choices; None for other decisions. TVM's values are depths in its fused
    loops, while the Location itself counts the statement's loops."""
    statements: tuple[Statement, ...]
    undescribed: str
    """Reason why there are no statements; empty if there are."""
    variants: tuple[tuple[Statement, ...], ...] = ()
    """See :class:`fleet_tune.base.sketch.Sketch`."""
    variant_of: tuple[int, ...] = ()
    """See :class:`fleet_tune.base.sketch.Sketch`."""


def describe(fresh: Schedule, trace: Trace) -> SketchDescription:
    """Describe ``trace``, a trace without post-processors, on the program of ``fresh``, which is not changed. Raises
    TVM's errors if the trace cannot be replayed.

    If several blocks are placed, there are no statements, and ``undescribed`` says why; :func:`describe_variants` then
    makes the description.
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
    """Return the statements, or no statements and the reason."""
    if interpreter.failure:
        return (), interpreter.failure
    try:
        return StatementBuilder(interpreter, {}).statements(), ""
    except Exception as error:
        return (), reason_of(error)
