"""MetaSchedule's sketches of a program, and the fallback if one of its rules refuses the program.

A rule that applies a primitive which TVM refuses ends the generation of all sketches. Then simpler attempts follow,
until one works:

1. without reductions across threads, which fail if one reduction reads the result of another (a variance);
2. with element-wise blocks inlined into their readers, because the epilogue of a product cannot be moved into its loops
   while it also reads the result of an element-wise block (a mask);
3. with only those rules that inline, fuse and parallelise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tvm
from tvm.s_tir import SBlock, Schedule, Trace
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from devices.error_text import after
from devices.sketches.description.accesses import DATA_PARALLEL, leaf_blocks
from devices.sketches.rules.bfloat16_tiles import bfloat16_rules

# Errors that TVM raises if a primitive does not apply (ScheduleError and InternalError are RuntimeErrors).
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, KeyError)
_MESSAGE = "Error message: "
_Attempt = tuple[Schedule | None, Sequence[ms.ScheduleRule]]
"""A schedule in which blocks were inlined before generation (None: nothing was inlined), and the rules."""
_MULTI_LEVEL = (
    ms.schedule_rule.MultiLevelTiling,
    ms.schedule_rule.MultiLevelTilingWithIntrin,
    ms.schedule_rule.MultiLevelTilingTensorCore,
    ms.schedule_rule.MultiLevelTilingWideVector,
)
_TILING = (
    *_MULTI_LEVEL,
    ms.schedule_rule.AddRFactor,
    ms.schedule_rule.CrossThreadReduction,
    ms.schedule_rule.RandomComputeLocation,
)


def generated(module: tvm.IRModule, target: Target) -> tuple[ms.TuneContext, list[Trace], str]:
    """Return a tuning context, MetaSchedule's sketches of ``module`` as traces, and the last refusal. The sketches are
    made by those of MetaSchedule's default rules that apply. If no rules apply there are no traces, and the refusal
    says why; else the refusal is empty.

    The rule that looks up hand-written schedules by an annotation is not used: such schedules are no longer part of
    TVM, and each miss is logged.
    """
    probe = ms.TuneContext(target=target, space_generator="post-order-apply", mod=tvm.IRModule({}))
    rules = [r for r in probe.space_generator.sch_rules if not isinstance(r, ms.schedule_rule.ApplyCustomRule)]
    refusal = ""
    for before, chosen in _with_tiles(_attempts(module, rules), bfloat16_rules(module, target)):
        try:
            context, schedules = _spaces_by(chosen, module if before is None else before.mod, target)
        except Exception as error:  # any error of TVM's rules: fewer rules may work
            refusal = first_line(error)
            continue
        return context, [_joined(before, schedule.trace) for schedule in schedules], ""
    return *without_sketches(module, target)[:2], refusal


def without_sketches(_module: tvm.IRModule, target: Target) -> tuple[ms.TuneContext, list[Trace], str]:
    """Return the result of :func:`generated` for a program to which no rule applies, without a refusal. The context has
    the post-processors of ``target``."""
    context, _ = _spaces_by([], tvm.IRModule({}), target)
    return context, [], ""


def rule_name(trace: Trace) -> str:
    """Return the rule that made a trace, as :attr:`fleet_tune.base.sketch.Sketch.rule` names it."""
    kinds = {inst.kind.name for inst in trace.insts}
    keys = {str(inst.attrs[0]) for inst in trace.insts if inst.kind.name == "Annotate"}
    if "Tensorize" in kinds or "meta_schedule.auto_tensorize" in keys:
        return "tensorize"
    if "RFactor" in kinds:
        return "rfactor"
    return "multi-level-tiling" if "meta_schedule.tiling_structure" in keys else "loops"


def first_line(error: BaseException) -> str:
    """Return an error of TVM as one line. The error of a schedule primitive prints the program first: then it is the
    line after the program."""
    return after(error, _MESSAGE)


def _attempts(module: tvm.IRModule, rules: Sequence[ms.ScheduleRule]) -> Iterator[_Attempt]:
    if not any(_reuses(block) for block in leaf_blocks(module["main"]).values()):
        rules = [rule for rule in rules if not isinstance(rule, _MULTI_LEVEL)]
    simpler = [rule for rule in rules if not isinstance(rule, ms.schedule_rule.CrossThreadReduction)]
    sets = [rules, simpler] if len(simpler) < len(rules) else [rules]
    yield from ((None, chosen) for chosen in sets)
    try:
        inlined = _inlined(module)
    except REFUSALS:
        inlined = None
    if inlined is not None:
        yield from ((inlined, chosen) for chosen in sets)
    yield None, [rule for rule in rules if not isinstance(rule, _TILING)]


def _with_tiles(attempts: Iterator[_Attempt], tiles: Sequence[ms.ScheduleRule]) -> Iterator[_Attempt]:
    """Yield each attempt. If it has tiling rules, the same attempt with the rules ``tiles`` before them comes first."""
    for before, rules in attempts:
        tiling = next((at for at, rule in enumerate(rules) if isinstance(rule, _MULTI_LEVEL)), None)
        if tiles and tiling is not None:
            yield before, [*rules[:tiling], *tiles, *rules[tiling:]]
        yield before, rules


def _inlined(module: tvm.IRModule) -> Schedule | None:
    """Return ``module`` with its element-wise blocks inlined into the element-wise blocks that read them; None if there
    is nothing to inline. A block that a reduction reads stays: it would be computed many times."""
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    changed = False
    for block in schedule.get_child_blocks(schedule.get_sblock("root", "main")):
        readers = schedule.get_consumers(block)
        if readers and all(_is_spatial(schedule.get(each)) for each in (block, *readers)):
            try:
                schedule.compute_inline(block)
            except RuntimeError:
                continue
            changed = True
    return schedule if changed else None


def _reuses(block: SBlock) -> bool:
    """Return true for a reduction that reads one value for several of its results, as a product does. A tensor of one
    element (a scale) does not count: MetaSchedule would tile such reductions too, and gain nothing."""
    if _is_spatial(block):
        return False
    results = {axis.var for axis in block.iter_vars if int(axis.iter_type) == DATA_PARALLEL and axis.dom.extent != 1}
    read = [region for region in block.reads if any(extent != 1 for extent in region.source.shape)]
    indices = [{variable for each in region.region for variable in undefined_vars(each.min)} for region in read]
    return any(not results <= variables for variables in indices)


def _is_spatial(block: SBlock) -> bool:
    return all(int(iteration.iter_type) == DATA_PARALLEL for iteration in block.iter_vars)


def _spaces_by(
    rules: Sequence[ms.ScheduleRule], module: tvm.IRModule, target: Target
) -> tuple[ms.TuneContext, list[Schedule]]:
    generator = ms.space_generator.PostOrderApply(sch_rules=list(rules))
    context = ms.TuneContext(module, target=target, space_generator=generator, rand_state=1)
    return context, list(context.generate_design_space())


def _joined(before: Schedule | None, trace: Trace) -> Trace:
    """Return the trace of the inlining, followed by the trace that was generated for its result."""
    if before is None:
        return trace
    decisions = {inst: trace.get_decision(inst) for inst in trace.insts}
    return Trace([*before.trace.insts, *trace.insts], {i: d for i, d in decisions.items() if d is not None})
