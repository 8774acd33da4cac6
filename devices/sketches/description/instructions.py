"""Effects of the instructions of a trace on the loops and blocks of :class:`TraceState`: one function for each kind.

A trace with an instruction that is not in :data:`EFFECTS` cannot be described.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from devices.sketches.description import block_transforms, loopnest
from devices.sketches.description.live_schedule import (
    axes_of,
    consumers,
    content,
    loops_around,
    named_content,
    producers,
    sampled_loop,
)
from devices.sketches.description.loopnest import BlockState, LoopState, distinct, frame_extents, framed, nest_of
from devices.sketches.description.trace_state import TraceState
from devices.sketches.description.undescribed import UndescribedError
from fleet_tune.base.sketch import Axis, LoopKind

SAMPLING = ("SamplePerfectTile", "SampleCategorical", "SampleComputeLocation")
WARP_LANES = 32

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
_NEUTRAL = (
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
)


@dataclass(frozen=True)
class TraceStep:
    """One instruction of a trace, just before it runs on the schedule."""

    kind: str
    #: Inputs as the trace writes them: names of variables, and constants.
    names: Sequence[Any]
    attributes: Sequence[Any]
    #: Names of the variables that the instruction defines.
    outputs: Sequence[str]
    #: Inputs as objects of the schedule: random variables, and constants.
    inputs: Sequence[Any]


Effect = Callable[[TraceState, TraceStep], None]


def apply(state: TraceState, step: TraceStep) -> None:
    """Apply the effect of ``step`` on the schedule to ``state``. Raises :class:`UndescribedError`."""
    effect = EFFECTS.get(step.kind)
    if effect is None:
        raise UndescribedError(f"instruction {step.kind} is not interpreted")
    effect(state, step)


def _nothing(_state: TraceState, _step: TraceStep) -> None:
    """Change no loops."""


# Loops


def _get_loops(state: TraceState, step: TraceStep) -> None:
    state.blocks.name_loops(step.outputs, nest_of(state.block(step.inputs[0]), len(step.outputs)))


def _split(state: TraceState, step: TraceStep) -> None:
    loop = state.blocks.loop(step.names[0])
    owner = state.blocks.owner(loop)
    log = state.decisions
    parts: list[tuple[int | None, int | None, tuple[int, ...]]] = []
    for factor in step.names[1:]:
        column = log.columns.get(factor) if isinstance(factor, str) else None
        size = int(factor) if isinstance(factor, int | float) else None
        parts.append((column, size, log.choices.get(column, ()) if column is not None else ()))
    nested = loopnest.split(loop, parts, frame_extents(owner))
    at = owner.loops.index(loop)
    owner.loops[at : at + 1] = nested
    state.blocks.name_loops(step.outputs, nested)


def _fuse(state: TraceState, step: TraceStep) -> None:
    parts = [state.blocks.loop(name) for name in step.names]
    fused = loopnest.fuse(state.blocks.owner(parts[0]).loops, parts)
    state.blocks.name_loops(step.outputs, [fused])


def _reorder(state: TraceState, step: TraceStep) -> None:
    order = [state.blocks.loop(name) for name in step.names]
    loopnest.reorder(state.blocks.owner(order[0]).loops, order)


def _set_kind(state: TraceState, step: TraceStep) -> None:
    state.blocks.loop(step.names[0]).kind = _KINDS[step.kind]


def _bind(state: TraceState, step: TraceStep) -> None:
    if step.attributes[0] not in _THREADS:
        raise UndescribedError(f"loops bound to {step.attributes[0]}")
    state.blocks.loop(step.names[0]).kind = _THREADS[step.attributes[0]]


# Places of blocks


def _compute_at(state: TraceState, step: TraceStep) -> None:
    top, target = state.block(step.inputs[0]).top, step.names[1]
    if target in state.decisions.location_columns:
        if state.places is None:
            top.column = state.decisions.location_columns[target]
            return
        location = _sampled_target(state, step.inputs)
        if location is None:
            return  # the block stays at the root, or was inlined
        top.at = location
    else:
        loop = state.blocks.loop(target)
        # Other blocks in the loops around this block stay there when it moves away.
        for block in state.blocks.blocks.values():
            if block.at is not None and block.at[0].top is top and block.at[1].current not in distinct(top.loops):
                block.at = (state.blocks.owner(block.at[1].current), block.at[1])
        top.at = (_neighbour(state, step, loop) or state.blocks.owner(loop), loop)
    loopnest.moved(top)


def _neighbour(state: TraceState, step: TraceStep, loop: LoopState) -> BlockState | None:
    """Return a known block in ``loop`` that is a consumer of the moved block, or, for ReverseComputeAt, a producer of
    it; None if there is none."""
    schedule, block = state.schedule, step.inputs[0]
    others = producers(schedule, block) if step.kind == "ReverseComputeAt" else consumers(schedule, block)
    for other in others:
        neighbour = state.blocks.find(schedule, other)
        if neighbour is not None and neighbour.column is None and any(each is loop for _, each in framed(neighbour)):
            return neighbour
    return None


def _sampled_target(state: TraceState, inputs: Sequence[Any]) -> tuple[BlockState, LoopState] | None:
    """Return the loop that TVM has sampled; None for the root, and for a block that is computed inline."""
    schedule = state.schedule
    chosen = sampled_loop(schedule, inputs[1])
    if chosen is None:
        return None
    for consumer in consumers(schedule, inputs[0]):
        for at, loop in enumerate(loops_around(schedule, consumer)):
            if loop.loop_var.same_as(chosen.loop_var):
                reader = state.block(consumer)
                return reader, framed(reader)[at][1]
    raise UndescribedError("a sampled location that is no loop of a consumer")


# Blocks


def _decompose_reduction(state: TraceState, step: TraceStep) -> None:
    block, loop = state.block(step.inputs[0]), state.blocks.loop(step.names[1])
    del state.blocks.blocks[block.name]
    reductions = {at for at, axis in enumerate(_axes(state, block)) if axis.reduction}
    initial = block_transforms.decompose(block, loop, reductions)
    state.blocks.add(block)
    state.blocks.add(initial)


def _rfactor(state: TraceState, step: TraceStep) -> None:
    loop, factor_axis = state.blocks.loop(step.names[0]), int(step.attributes[0])
    block = state.blocks.owner(loop)
    old = tuple(int(n) for n in named_content(state.schedule, block.name).writes[0].source.shape)
    partial, bound = block_transforms.rfactor(block, loop, _axes(state, block), state.decisions.values)
    state.blocks.add(partial)

    def note_buffer() -> None:
        statement = named_content(state.schedule, partial.name)
        assert partial.rebinding is not None, "rfactor has rebound the block"
        if [int(v.dom.extent) for v in statement.iter_vars] != [extent for _, _, extent in partial.rebinding.values]:
            raise UndescribedError(f"rfactor of block {block.name} leaves other reductions than expected")
        name = state.buffers.add(statement.writes[0].source)
        state.buffers.partial_sums[name] = (*old[:factor_axis], bound, *old[factor_axis:])

    state.pending.append(note_buffer)


def _blockize(state: TraceState, step: TraceStep) -> None:
    loop = state.blocks.loop(step.names[0])
    body = state.blocks.owner(loop)
    state.blocks.add(block_transforms.blockize(body, loop, _axes(state, body)))


def _forget_block(state: TraceState, step: TraceStep) -> None:
    """Drop the state of a block, which gets new iteration variables with one loop each. The state is made again when
    the block is next used."""
    state.blocks.blocks.pop(content(state.schedule, step.inputs[0]).name_hint, None)


def _axes(state: TraceState, block: BlockState) -> tuple[Axis, ...]:
    """Return the axes of a block's frame."""
    if block.rebinding is not None:
        return block.rebinding.axes
    return axes_of(named_content(state.schedule, block.name.removesuffix("_update")))


# Buffers and annotations


def _transform_layout(state: TraceState, step: TraceStep) -> None:
    """Keep the old shape of a buffer whose new layout depends on decisions: such layouts are not described."""
    if not any(f'"data":"{column}"' in str(step.names[1]) for column in state.decisions.columns):
        return
    statement = content(state.schedule, step.inputs[0])
    if not step.attributes[1]:
        raise UndescribedError(f"a read of block {statement.name_hint} is laid out by decisions")
    state.buffers.keep_shape(statement.writes[int(step.attributes[0])].source)


def _annotate(state: TraceState, step: TraceStep) -> None:
    if not str(step.names[0]).startswith("b"):
        return
    key = step.attributes[0]
    name = content(state.schedule, step.inputs[0]).name_hint
    if name == "root":
        value = step.names[1] if len(step.names) > 1 else step.attributes[1]
        state.root[str(key)] = value if isinstance(value, str) else int(value)
    elif key == "warp_execution" and name in state.blocks.blocks:
        state.blocks.blocks[name].warp = WARP_LANES


EFFECTS: dict[str, Effect] = {
    **dict.fromkeys(_NEUTRAL, _nothing),
    **dict.fromkeys(_KINDS, _set_kind),
    "GetLoops": _get_loops,
    "Split": _split,
    "Fuse": _fuse,
    "Reorder": _reorder,
    "Bind": _bind,
    "ComputeAt": _compute_at,
    "ReverseComputeAt": _compute_at,
    "DecomposeReduction": _decompose_reduction,
    "RFactor": _rfactor,
    "Blockize": _blockize,
    "TransformBlockLayout": _forget_block,
    "PadEinsum": _forget_block,
    "TransformLayout": _transform_layout,
    "Annotate": _annotate,
}
