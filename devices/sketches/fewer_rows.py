"""A sketch's trace applied to the task's kernel over fewer rows: the effect of one schedule on the smaller tiles of a
network."""

from __future__ import annotations

from dataclasses import replace

from tvm import IRModule
from tvm.s_tir import Schedule, Trace

from devices.sketches.programs import program_for
from devices.sketches.symbolic import describe
from devices.sketches.traces import instructions
from fleet_tune.base.sketch import Decision, Sketch, Tile


def over_fewer_rows(sketch: Sketch, trace: Trace, module: IRModule) -> Sketch | None:
    """Return a described sketch whose trace was applied to another kernel; None if the trace does not fit that kernel,
    or the result cannot be described.

    Args:
        sketch: the sketch of the task's own kernel.
        trace: its trace.
        module: the kernel over fewer rows.
    """
    try:
        program = program_for(module, instructions(trace))
        # With a seed: whether the trace fits is kept for all runs, and must not depend on the drawn decisions.
        fresh = Schedule(program, seed=1, debug_mask="none", error_render_level="none")
        schedule = fresh.copy()
        # Without the decisions of the trace, which were made for more rows.
        Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        facts = describe(fresh, schedule.trace)
    except Exception:  # any error of TVM: another schedule computes such a kernel
        return None
    others = replace(sketch, decisions=facts.decisions, statements=facts.statements)
    fits = len(facts.decisions) == len(sketch.decisions) and all(map(_is_alike, sketch.decisions, facts.decisions))
    return others if fits and facts.statements else None


def _is_alike(one: Decision, other: Decision) -> bool:
    """Return true if two decisions have the same meaning. The extents of tiles may differ."""
    if isinstance(one, Tile) and isinstance(other, Tile):
        return one.parts == other.parts
    return one == other
