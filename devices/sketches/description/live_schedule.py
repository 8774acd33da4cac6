"""Access to a live schedule: the loops and blocks that its random variables stand for.

TVM wraps a schedule's methods in Python type checks of all arguments, which take most of a millisecond for each call.
The interpreter of traces makes tens of thousands of calls, so it calls the wrapped functions directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule.instruction import Instruction
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

from devices.sketches.description.accesses import REDUCTION, axis_of
from fleet_tune.base.sketch import Axis

_GET: Callable[..., Any] = inspect.unwrap(Schedule.get)
_GET_SBLOCK: Callable[..., Any] = inspect.unwrap(Schedule.get_sblock)
_GET_LOOPS: Callable[..., Any] = inspect.unwrap(Schedule.get_loops)
_GET_CONSUMERS: Callable[..., Any] = inspect.unwrap(Schedule.get_consumers)
_GET_PRODUCERS: Callable[..., Any] = inspect.unwrap(Schedule.get_producers)
_GET_CHILD_BLOCKS: Callable[..., Any] = inspect.unwrap(Schedule.get_child_blocks)
_ANNOTATE: Callable[..., Any] = inspect.unwrap(Schedule.annotate)
_UNANNOTATE: Callable[..., Any] = inspect.unwrap(Schedule.unannotate)
_SAMPLE_CATEGORICAL: Callable[..., Any] = inspect.unwrap(Schedule.sample_categorical)
_SAMPLE_LOCATION: Callable[..., Any] = inspect.unwrap(Schedule.sample_compute_location)
_COMPUTE_AT: Callable[..., Any] = inspect.unwrap(Schedule.compute_at)


def content(schedule: Schedule, variable: Any) -> Any:
    """Return the block or loop that a random variable stands for."""
    return _GET(schedule, variable)


def sampled_loop(schedule: Schedule, variable: Any) -> Any | None:
    """Return the loop of a sampled location; None for the root, and for a block that is computed inline."""
    if variable is None:
        return None
    try:
        loop = _GET(schedule, variable)
    except (RuntimeError, ValueError, TypeError):
        return None
    return loop if hasattr(loop, "loop_var") else None


def named_block(schedule: Schedule, name: str) -> Any:
    """Return the random variable of a block of ``main``."""
    return _GET_SBLOCK(schedule, name, "main")


def named_content(schedule: Schedule, name: str) -> Any:
    return content(schedule, named_block(schedule, name))


def loops_around(schedule: Schedule, block: Any) -> list[Any]:
    """Return the loops between a block and the next enclosing block, from the outermost."""
    return [_GET(schedule, loop) for loop in _GET_LOOPS(schedule, block)]


def consumers(schedule: Schedule, block: Any) -> list[Any]:
    return list(_GET_CONSUMERS(schedule, block))


def producers(schedule: Schedule, block: Any) -> list[Any]:
    return list(_GET_PRODUCERS(schedule, block))


def loop_of_place(schedule: Schedule, block: Any, place: int) -> Any:
    """Return the random variable of the loop that a SampleComputeLocation with the decision ``place`` returns, if it is
    valid."""
    return _GET_LOOPS(schedule, _GET_CONSUMERS(schedule, block)[0])[place]


def perform(schedule: Schedule, instruction: Instruction, inputs: Sequence[Any], decision: Any) -> list[Any] | None:
    """Run an instruction of a kind that may follow a sampled place, and return its outputs. An instruction of any other
    kind is not run; then return None."""
    kind, attributes = instruction.kind.name, instruction.attrs
    if kind == "SampleComputeLocation":
        return [_SAMPLE_LOCATION(schedule, *inputs, decision)]
    if kind == "ComputeAt":
        _COMPUTE_AT(schedule, *inputs, bool(attributes[0]), int(attributes[1]))
        return []
    if kind == "SampleCategorical":
        return [_SAMPLE_CATEGORICAL(schedule, attributes[0], attributes[1], decision)]
    if kind == "GetSBlock":
        return [_GET_SBLOCK(schedule, str(attributes[0]), str(attributes[1]))]
    if kind == "Annotate":
        _ANNOTATE(schedule, inputs[0], str(attributes[0]), inputs[1])
        return []
    if kind == "Unannotate":
        _UNANNOTATE(schedule, inputs[0], str(attributes[0]))
        return []
    getters = {"GetConsumers": _GET_CONSUMERS, "GetProducers": _GET_PRODUCERS, "GetChildBlocks": _GET_CHILD_BLOCKS}
    return list(getters[kind](schedule, *inputs)) if kind in getters else None


def axes_of(statement: Any) -> tuple[Axis, ...]:
    """Return the iteration variables of a block."""
    return tuple(axis_of(iteration) for iteration in statement.iter_vars)


def bindings(schedule: Schedule, block: Any) -> list[Any]:
    """Return the expressions that the axes of a block are bound to."""
    statement = content(schedule, block)
    values: list[list[Any]] = []

    def visit(realize: SBlockRealize) -> None:
        if realize.block.same_as(statement):
            values.append(list(realize.iter_values))

    structural_walk(schedule.mod["main"].body, (SBlockRealize, visit))
    return values[0]


def reduction_variables(schedule: Schedule, block: Any) -> list[Any]:
    """Return the loop variables that reduction axes of a block run over."""
    return [
        variable
        for axis, value in zip(content(schedule, block).iter_vars, bindings(schedule, block), strict=True)
        if int(axis.iter_type) == REDUCTION
        for variable in undefined_vars(value)
    ]
