"""Design spaces: from a task to its sketches, and from a candidate to a scheduled program.

The sketches of a task come from three sources: MetaSchedule (its space generator with the default rules of the target),
our own rules (:data:`OWN_RULES`), and imported traces that follow no other sketch
(:attr:`fleet_tune.base.domain.Task.imported`). A sketch is a trace whose sampling decisions are open; a candidate
closes them. Scheduling applies the closed trace to the task's program, and then MetaSchedule's post-processors, which
vectorise, unroll, bind threads and change the layout of constant weights. No post-processors run after an imported
trace that has none, or after a trace that calls a library. The resulting trace, post-processors included, is what a
record stores: applied to the unscheduled program it gives the same scheduled program, here and in plain TVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import tvm
from tvm.s_tir import SBlock, SBlockRealize, Schedule, Trace
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule.instruction import Instruction
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.tirx import BufferStore, For, PrimFunc, SeqStmt, Stmt
from tvm_ffi import structural_walk

from devices.host.garbage_collection import garbage_collection_paused
from devices.protocol import TensorSpec
from devices.sketches import intrinsics
from devices.sketches.contiguous_loops import in_contiguous_order
from devices.sketches.defaults import default_schedules
from devices.sketches.fewer_rows import over_fewer_rows
from devices.sketches.generation import REFUSALS, first_line, generated, rule_name, without_sketches
from devices.sketches.half_operators import PAIRED, holding_pairs
from devices.sketches.plain_weights import LAYOUT_REWRITE, with_plain_weights
from devices.sketches.programs import is_rewritten, program_for
from devices.sketches.rules.attention.rule import ATTENTION, attention
from devices.sketches.rules.library import uses_library
from devices.sketches.rules.library.program import with_library_calls
from devices.sketches.rules.library.rule import ONEDNN, onednn
from devices.sketches.rules.line_wise import LINE_WISE, line_wise
from devices.sketches.rules.overlapping_tiles import OVERLAPPING_TILES, overlapping_tiles
from devices.sketches.rules.register_blocked import REGISTER_BLOCKED, register_blocked
from devices.sketches.rules.row_copies import ROW_COPIES, row_copies
from devices.sketches.rules.row_wise import ROW_WISE, row_wise, row_wise_kernel
from devices.sketches.rules.tiled_transpose import TILED_TRANSPOSE, tiled_transposes
from devices.sketches.rules.winograd.rule import WINOGRAD, winograd
from devices.sketches.symbolic import SAMPLING, SketchDescription, describe, describe_variants
from devices.sketches.traces import full_text, instructions, open_text
from devices.targets import parse_target
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import IMPORTED, Choice, Sketch, SketchOfFewerRows, Tile

_POSTPROCESSING = "EnterPostproc"

OWN_RULES = {
    REGISTER_BLOCKED: register_blocked,
    TILED_TRANSPOSE: tiled_transposes,
    ROW_WISE: row_wise,
    ROW_COPIES: row_copies,
    LINE_WISE: line_wise,
    WINOGRAD: winograd,
    OVERLAPPING_TILES: overlapping_tiles,
    ATTENTION: attention,
    ONEDNN: onednn,
}
"""Our own sketch rules, by name."""

GENERATED = "MetaSchedule's rules"
"""Name in :attr:`DesignSpace.left_out` for all sketches of MetaSchedule, if it makes none."""


class ScheduleError(Exception):
    """A candidate that cannot be scheduled; the text says why."""


class _LayoutError(Exception):
    """TVM cannot change the layout of weights."""


@dataclass(frozen=True)
class Scheduled:
    """A scheduled program."""

    module: tvm.IRModule = field(repr=False)
    """IRModule ready to build, with the function ``main`` over ``args`` and a function ``pack_<i>(original, packed)``
    for each argument in ``packed``."""
    original_args: tuple[TensorSpec, ...]
    """Arguments with constant weights in their original layouts."""
    args: tuple[TensorSpec, ...]
    outputs: tuple[int, ...]
    """Indices of the arguments that ``main`` writes."""
    packed: tuple[int, ...]
    """Indices of the constant weights that ``main`` expects in another layout."""
    trace: str = field(repr=False)
    """JSON text of the whole trace, including post-processors; empty for the unscheduled program."""


class DesignSpace:
    """The sketches of a task, and the scheduling of its candidates. Keeps the parsed program in memory."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._module = parse_module(task.workload.module)
        self._target = parse_target(task.device_class.target)
        intrinsics.load_intrinsics(task.device_class.target)
        self._fresh = fresh_schedule(self._module, ())
        self._context, _, _ = without_sketches(self._module, self._target)  # the post-processors point into it
        self.postprocs = list(self._context.space_generator.postprocs)
        self._left_out: list[tuple[str, str]] = []
        self._finished: set[str] = set()  # ids of sketches without post-processing
        self._traces: list[Trace] = []
        self._programs: list[Schedule] = []  # of the sketches, unscheduled
        self._sampled: list[list[Instruction]] = []
        self._descriptions: list[SketchDescription] = []
        # Described only as far as scheduling needs it: describing variants takes seconds if the places of several
        # blocks are open.
        self._open: list[Sketch] = []
        # Sketches are made lazily and in order: scheduling a candidate needs only the sketches up to its own.
        self._coming = self._opened()
        self._failure: Exception | None = None

    def _opened(self) -> Iterator[Sketch]:
        """Make and yield the sketches, one at a time."""
        for rule, generic in self._spaces():
            trace = generic.simplified(remove_postproc=True)
            text = open_text(trace)
            if any(text == sketch.trace_text for sketch in self._open):
                continue
            program = fresh_schedule(self._module, instructions(trace)) if is_rewritten(text) else self._fresh
            try:
                facts = describe(program, trace)
            except Exception as error:  # a trace that cannot be replayed cannot be scheduled; the others can
                self._left_out.append((rule, first_line(error)))
                continue
            if uses_library(text):  # its trace names the library's call, and has no loops
                facts = replace(facts, statements=(), undescribed="a library computes it")
            self._traces.append(trace)
            self._programs.append(program)
            self._sampled.append([inst for inst in trace.insts if inst.kind.name in SAMPLING])
            self._descriptions.append(facts)
            sketch = Sketch(len(self._open), rule, text, facts.decisions, facts.statements, facts.undescribed)
            if rule == ROW_WISE and not facts.statements:
                sketch = self._with_rows(sketch)
            self._open.append(sketch)
            is_plain = rule == IMPORTED and not any(inst.kind.name == _POSTPROCESSING for inst in generic.insts)
            if is_plain or uses_library(text):
                self._finished.add(sketch.id)
            yield sketch

    def _spaces(self) -> Iterator[tuple[str, Trace]]:
        """Yield the traces of our rules, of MetaSchedule and of imports, each with its rule. A rule that fails, and a
        trace that does not fit the program, are skipped and noted in :attr:`left_out`."""
        is_attention = False
        for rule, make in OWN_RULES.items():
            try:
                found = [(rule, own.trace) for own in make(self._module, self._target)]
            except Exception as error:  # an error of TVM, or a mistake in the rule
                self._left_out.append((rule, first_line(error)))
                continue
            is_attention = is_attention or (rule == ATTENTION and bool(found))
            yield from found
        if not is_attention:  # MetaSchedule makes nearly 100 sketches of an attention, with two dozen decisions each
            _, traces, refusal = generated(self._module, self._target)
            if refusal:
                self._left_out.append((GENERATED, refusal))
            yield from ((rule_name(trace), trace) for trace in traces)
        for text in self._task.imported:
            try:
                yield IMPORTED, replayed(self._module, text).trace
            except (ScheduleError, ValueError) as error:
                self._left_out.append((IMPORTED, first_line(error)))

    def _sketch(self, sketch_id: str) -> Sketch | None:
        """Return the sketch with an id, after making it if need be; None if the task has no such sketch."""
        opened = chain(tuple(self._open), iter(self._open_next, None))
        return next((each for each in opened if each.id == sketch_id), None)

    def _open_all(self) -> list[Sketch]:
        while self._open_next() is not None:
            pass
        return self._open

    def _open_next(self) -> Sketch | None:
        """Make and return the next sketch; None if none is left. After an error, every further call raises the same
        error."""
        if self._failure is not None:
            raise self._failure
        try:
            return next(self._coming, None)
        except Exception as error:
            self._failure = error
            raise

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Rule and reason of every sketch that TVM could not schedule. The rule :data:`GENERATED` stands for all of
        MetaSchedule's sketches."""
        self._open_all()
        return tuple(self._left_out)

    def _with_rows(self, sketch: Sketch) -> Sketch:
        """Return a row-wise sketch with its work on a row. If the work cannot be described, return the sketch without
        it."""
        try:
            kernel = row_wise_kernel(self._module, self._target)
        except Exception as error:
            return replace(sketch, undescribed=first_line(error))
        return sketch if kernel is None else replace(sketch, row_wise=kernel, undescribed="")

    @property
    def undescribed(self) -> tuple[Sketch, ...]:
        """Sketches of the task, described only as far as scheduling needs it: combinations of places are not
        described."""
        return tuple(self._open_all())

    @cached_property
    def sketches(self) -> tuple[Sketch, ...]:
        """Sketches of the task, described symbolically as far as possible."""
        return tuple(self.described(at) for at in range(len(self._open_all())))

    def described(self, at: int) -> Sketch:
        """Return the sketch with the index ``at``, described symbolically as far as possible."""
        sketch = self._described(at)
        return replace(sketch, fewer_rows=self._fewer_rows(sketch)) if self._task.fewer_rows else sketch

    @cached_property
    def _fewer(self) -> list[tuple[tvm.IRModule, float]]:
        """The kernels over fewer rows and their work. Scheduling candidates does not need them."""
        return [(parse_module(each.module), each.work) for each in self._task.fewer_rows]

    def _fewer_rows(self, sketch: Sketch) -> tuple[SketchOfFewerRows, ...]:
        """Return the sketch over each of the fewer rows; empty if one of them cannot be described. Sketches with
        combinations of places are not described over fewer rows: that takes seconds for each kernel."""
        if not sketch.statements or sketch.variants:
            return ()
        trace = self._traces[sketch.index]
        found = [(over_fewer_rows(sketch, trace, module), work) for module, work in self._fewer]
        described = tuple(SketchOfFewerRows(each, work) for each, work in found if each is not None)
        return described if len(described) == len(found) else ()

    def _described(self, at: int) -> Sketch:
        self._open_all()
        if self._open[at].row_wise is not None:
            return self._open[at]
        # A description makes hundreds of thousands of small objects, and nearly none are in reference cycles. Garbage
        # collection would take a fifth of the time, and more while a large network is in memory.
        with garbage_collection_paused():
            whole = describe_variants(self._programs[at], self._traces[at], self._descriptions[at])
        return replace(
            self._open[at],
            statements=whole.statements,
            undescribed=whole.undescribed,
            variants=whole.variants,
            variant_of=whole.variant_of,
        )

    def recognise(self, trace: Trace) -> Candidate | None:
        """Return the candidate that a trace represents, whichever program wrote it; None if the trace follows no
        sketch, or has a decision that its sketch does not allow. Only the instructions are compared."""
        plain = trace.simplified(remove_postproc=True)
        text = open_text(plain)
        for sketch, facts in zip(self._open_all(), self._descriptions, strict=True):
            if sketch.trace_text == text:
                decided = [plain.decisions.get(inst) for inst in plain.insts if inst.kind.name in SAMPLING]
                vector = _vector(sketch, facts.locations, decided)
                return None if vector is None else Candidate(self._task.id, sketch.index, sketch.id, vector)
        return None

    def schedule(self, candidate: Candidate) -> Scheduled:
        """Return the program of ``candidate``. Raises :class:`ScheduleError` if TVM refuses it.

        If TVM cannot change the layout of weights (an index that it cannot invert, a copy inside of an outer block,
        which cannot be moved out of the program), the weights keep their layout.
        """
        self._sketch(candidate.sketch_id)
        if candidate.sketch_id in self._finished:
            return _finish(self._module, self.apply(candidate))
        try:
            return self._postprocessed(candidate, self.postprocs)
        except _LayoutError:
            others = [each for each in self.postprocs if not isinstance(each, ms.postproc.RewriteLayout)]
            return self._postprocessed(candidate, others)

    def _postprocessed(self, candidate: Candidate, postprocs: Sequence[ms.Postproc]) -> Scheduled:
        schedule = self.apply(candidate)
        try:
            schedule.enter_postproc()
            for postproc in postprocs:
                try:
                    applies = postproc.apply(schedule)
                except REFUSALS as error:
                    if isinstance(postproc, ms.postproc.RewriteLayout):
                        raise _LayoutError(first_line(error)) from error
                    raise
                if not applies:
                    raise ScheduleError(f"{type(postproc).__name__} rejects the schedule")
                if isinstance(postproc, ms.postproc.RewriteLayout) and _has_inner_rewrite(schedule.mod["main"]):
                    raise _LayoutError
        except REFUSALS as error:
            raise ScheduleError(first_line(error)) from error
        return _finish(self._module, schedule)

    def apply(self, candidate: Candidate) -> Schedule:
        """Return the schedule of ``candidate`` before post-processing. Raises :class:`ScheduleError`."""
        sketch = self._sketch(candidate.sketch_id)
        if sketch is None:
            raise ScheduleError(f"task {self._task.id} has no sketch {candidate.sketch_id}")
        index = sketch.index
        trace = self._traces[index]
        values = _values(sketch, self._descriptions[index].locations, candidate.decisions)
        closed = Trace(trace.insts, dict(zip(self._sampled[index], values, strict=True)))
        schedule = self._programs[index].copy()
        try:
            closed.apply_to_schedule(schedule, remove_postproc=True)
        except REFUSALS as error:
            raise ScheduleError(first_line(error)) from error
        return schedule


def unscheduled(task: Task) -> Scheduled:
    """Return the oracle of ``task``: its program without a tuned schedule. On a CPU its loops are reordered
    (:mod:`devices.sketches.contiguous_loops`), on a GPU it has TVM's default schedule."""
    module = parse_module(task.workload.module)
    args = _specs(module["main"])
    target = parse_target(task.device_class.target)
    if target.kind.name == "llvm":
        module = in_contiguous_order(module)
    else:
        with target:
            module = default_schedules()(module)
    return Scheduled(module, args, args, _outputs(module["main"]), (), "")


def replay(workload_module: str, trace: str) -> Scheduled:
    """Return the program that a record describes: ``workload_module`` (:attr:`Workload.module`) scheduled by ``trace``.

    Raises :class:`ScheduleError` if the trace does not fit the program.
    """
    module = parse_module(workload_module)
    return _finish(module, replayed(module, trace))


def apply_trace(module: tvm.IRModule, trace: str) -> tvm.IRModule:
    """Schedule the function ``main`` of ``module`` by a stored trace, including its post-processors.

    A block inside of the function (annotated ``meta_schedule.layout_rewrite_preproc``) changes the layout of constant
    weights. ``relax.transform.SplitLayoutRewritePreproc`` moves this block out of the function when a network is
    compiled. Raises :class:`ScheduleError` if the trace does not fit the program.
    """
    return with_layout_changes(replayed(module, trace), module)


def with_layout_changes(schedule: Schedule, original: tvm.IRModule) -> tvm.IRModule:
    """Return the result of :func:`apply_trace` for a schedule of the program ``original``."""
    return tvm.IRModule({"main": with_plain_weights(_program_of(schedule, original)["main"], original["main"])})


def arguments_of(workload_module: str) -> tuple[TensorSpec, ...]:
    """Return the arguments of a workload (:attr:`Workload.module`), outputs included. Raises ValueError for text that
    this version of TVM cannot read."""
    return _specs(parse_module(workload_module)["main"])


def parse_module(text: str) -> tvm.IRModule:
    """Return the IRModule of a :attr:`Workload.module`."""
    return tvm.ir.load_json(text)


def replayed(module: tvm.IRModule, trace: str) -> Schedule:
    """Apply a stored trace to a program and return the schedule. Raises :class:`ScheduleError` if the trace does not
    fit."""
    try:
        steps = json.loads(trace)
        schedule = fresh_schedule(module, steps[0])
        Trace.apply_json_to_schedule(steps, schedule)
    except REFUSALS as error:
        raise ScheduleError(first_line(error)) from error
    return schedule


def fresh_schedule(module: tvm.IRModule, steps: Sequence[Sequence[Any]]) -> Schedule:
    """Return a schedule of the unscheduled program that the instructions of a trace apply to. Raises
    :class:`ScheduleError` if they apply to another program."""
    try:
        program = program_for(module, steps)
    except ValueError as error:
        raise ScheduleError(str(error)) from error
    return Schedule(program, debug_mask="none", error_render_level="none")


def _values(sketch: Sketch, locations: Sequence[tuple[int, ...] | None], vector: tuple[int, ...]) -> list[Any]:
    """Return TVM's decisions for a decision vector; raises :class:`ScheduleError` for an invalid one."""
    if len(vector) != sketch.width:
        raise ScheduleError(f"{len(vector)} decisions for a sketch of {sketch.width} columns")
    values: list[Any] = []
    for decision, places, at in zip(sketch.decisions, locations, sketch.offsets, strict=True):
        if isinstance(decision, Tile):
            factors = [int(f) for f in vector[at : at + decision.parts]]
            if min(factors) < 1 or prod(factors) != decision.extent or factors[-1] > decision.innermost_limit:
                raise ScheduleError(f"{factors} does not tile {decision}")
            values.append(factors)
            continue
        options = decision.values if isinstance(decision, Choice) else decision.locations
        if not 0 <= vector[at] < len(options):
            raise ScheduleError(f"choice {vector[at]} of {decision}")
        values.append(int(vector[at]) if places is None else places[vector[at]])
    return values


def _vector(
    sketch: Sketch, locations: Sequence[tuple[int, ...] | None], values: Sequence[Any]
) -> tuple[int, ...] | None:
    """Return the decision vector of TVM's decisions, the inverse of :func:`_values`; None if the sketch does not allow
    one of them."""
    vector: list[int] = []
    for decision, places, value in zip(sketch.decisions, locations, values, strict=True):
        if value is None:
            return None
        if isinstance(decision, Tile):
            factors = [int(factor) for factor in value]
            if len(factors) != decision.parts or prod(factors) != decision.extent or min(factors) < 1:
                return None
            if factors[-1] > decision.innermost_limit:
                return None
            vector += factors
            continue
        options = decision.values if isinstance(decision, Choice) else decision.locations
        choices = tuple(range(len(options))) if places is None else places
        if int(value) not in choices:
            return None
        vector.append(choices.index(int(value)))
    return tuple(vector)


def _finish(original: tvm.IRModule, schedule: Schedule) -> Scheduled:
    """Move the layout changes of constant weights out of the scheduled program, into functions of their own."""
    program = _program_of(schedule, original)
    scheduled = with_plain_weights(program["main"], original["main"])
    functions = {"main": RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(program)["main"]}
    params = list(scheduled.params)
    packed = []
    for nest, block in _layout_rewrites(scheduled):
        source, packed_buffer = block.reads[0].source, block.writes[0].source
        index = next(i for i, param in enumerate(params) if param.same_as(source))
        packed.append(index)
        functions[f"pack_{index}"] = _pack_function(f"pack_{index}", source, packed_buffer, nest)
    return Scheduled(
        module=tvm.IRModule(functions),
        original_args=_specs(original["main"]),
        args=_specs(functions["main"]),
        outputs=_outputs(original["main"]),
        packed=tuple(sorted(packed)),
        trace=full_text(schedule.trace),
    )


def _program_of(schedule: Schedule, original: tvm.IRModule) -> tvm.IRModule:
    """Return the scheduled program, with calls of a library if the trace asks for them. Raises
    :class:`ScheduleError`."""
    try:
        return with_library_calls(schedule.mod, original)
    except ValueError as error:
        raise ScheduleError(str(error)) from error


def _layout_rewrites(func: PrimFunc) -> Iterable[tuple[Stmt, SBlock]]:
    """Yield the loop nests at the root of ``func`` that change the layout of a weight, with their blocks."""
    body = func.body.block.body
    for nest in body.seq if isinstance(body, SeqStmt) else [body]:
        inner = nest
        while isinstance(inner, For):
            inner = inner.body
        if isinstance(inner, SBlockRealize) and LAYOUT_REWRITE in inner.block.annotations:
            yield nest, inner.block


def _has_inner_rewrite(func: PrimFunc) -> bool:
    """Return true if the layout of a weight is changed anywhere but at the root of ``func``."""
    annotated: list[Any] = []
    structural_walk(
        func.body, (SBlock, lambda block: annotated.append(block) if LAYOUT_REWRITE in block.annotations else None)
    )
    return len(annotated) != sum(1 for _ in _layout_rewrites(func))


def _pack_function(name: str, source: Any, packed: Any, nest: Stmt) -> PrimFunc:
    root = SBlockRealize([], True, SBlock([], [], [], "root", nest))
    attributes = {"global_symbol": name, "s_tir": True, "tirx.noalias": True}
    return PrimFunc([source, packed], root).with_attr(attributes)


def _specs(func: PrimFunc) -> tuple[TensorSpec, ...]:
    infos = ms.arg_info.ArgInfo.from_prim_func(func)
    pairs = holding_pairs(func.body)
    return tuple(
        TensorSpec(
            tuple(int(n) for n in info.shape),
            str(info.dtype),
            PAIRED if any(buffer.same_as(param) for buffer in pairs) else "",
        )
        for info, param in zip(infos, func.params, strict=True)
    )


def _outputs(func: PrimFunc) -> tuple[int, ...]:
    written: list[Any] = []
    structural_walk(func.body, (BufferStore, lambda store: written.append(store.buffer)))
    return tuple(i for i, param in enumerate(func.params) if any(param.same_as(buffer) for buffer in written))
