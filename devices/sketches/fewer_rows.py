"""A sketch's trace on the task's kernel over fewer rows: what one schedule does where a network has smaller tiles."""

from __future__ import annotations

from dataclasses import replace

from tvm import IRModule
from tvm.s_tir import Schedule, Trace

from devices.sketches.programs import program_for
from devices.sketches.symbolic import describe
from devices.sketches.traces import instructions
from fleet_tune.base.sketch import Decision, Sketch, Tile


def over_fewer_rows(sketch: Sketch, trace: Trace, module: IRModule) -> Sketch | None:
    """Return a described sketch as its trace is on another kernel; None where it does not fit, or cannot be described.

    Args:
        sketch: the sketch of the task's own kernel.
        trace: its trace.
        module: the kernel over fewer rows.
    """
    try:
        program = program_for(module, instructions(trace))
        # With a seed: what fits, and is kept for all runs, must not depend on which decisions are drawn.
        fresh = Schedule(program, seed=1, debug_mask="none", error_render_level="none")
        schedule = fresh.copy()
        # Without its decisions, which are those of more rows.
        Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        facts = describe(fresh, schedule.trace)
    except Exception:  # TVM's errors: such a kernel is computed by another schedule
        return None
    others = replace(sketch, decisions=facts.decisions, statements=facts.statements)
    fits = len(facts.decisions) == len(sketch.decisions) and all(map(_is_alike, sketch.decisions, facts.decisions))
    return others if fits and facts.statements else None


def _is_alike(one: Decision, other: Decision) -> bool:
    """Return true if a decision of one means the same for the other."""
    if isinstance(one, Tile) and isinstance(other, Tile):
        return one.parts == other.parts
    return one == other
