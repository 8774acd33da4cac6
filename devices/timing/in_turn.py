"""The time of kernels that run in turn, each once, as in a network.

A kernel that runs again and again finds its input where its last run left it, often in the cache of the same core. In a
network it finds what another kernel wrote, perhaps on another core, and a call costs something too. So kernels take
longer in turn than alone. Here the output of each kernel is the input of the next one: two pieces of memory take turns,
as a network's storage does.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from devices.protocol import Artifact
from devices.timing.arguments import is_float, nbytes

IN_TURN_SECS = 0.1
"""Time for the rounds."""
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 100


@dataclass(frozen=True, slots=True)
class TurnArguments:
    """Arguments of one kernel in a round."""

    count: int
    """Number of the arguments."""
    reads: int | None
    """Position of the input that the kernel before it writes; None for none."""
    writes: int | None
    """Position of the output that the next kernel reads; None for none."""

    @classmethod
    def of(cls, artifact: Artifact) -> TurnArguments:
        """Return those of an artifact. Its largest input that is neither a constant weight nor an index is written by
        the kernel before it; integers may be indices, which must be valid."""
        floats = [at for at, spec in enumerate(artifact.args) if is_float(spec.dtype) and not spec.holds]
        inputs = [at for at in floats if at not in artifact.packed and at not in artifact.outputs]
        outputs = [at for at in floats if at in artifact.outputs]

        def size(at: int) -> int:
            return nbytes(artifact.args[at])

        return cls(len(artifact.args), max(inputs, key=size, default=None), max(outputs, key=size, default=None))


def encode_turns(turns: Sequence[TurnArguments]) -> str:
    """Return the kernels' arguments as JSON text."""
    return json.dumps([asdict(each) for each in turns])


def decode_turns(text: str) -> list[TurnArguments]:
    """Return what :func:`encode_turns` wrote."""
    return [TurnArguments(**each) for each in json.loads(text)]


def one_round(turns: Sequence[TurnArguments], objects: Sequence[Any]) -> Callable[[], None]:
    """Return a function that calls all kernels once.

    Args:
        turns: the kernels.
        objects: the module and the tensors of each kernel, one after the other.
    """
    calls: list[tuple[Any, list[Any]]] = []
    place = 0
    for turn in turns:
        module, tensors = objects[place], list(objects[place + 1 : place + 1 + turn.count])
        place += 1 + turn.count
        calls.append((module["main"], tensors))
    passed_on = [
        (tensors, at, (number + is_output) % 2)
        for number, (turn, (_, tensors)) in enumerate(zip(turns, calls, strict=True))
        for is_output, at in enumerate((turn.reads, turn.writes))
        if at is not None
    ]
    memory = [_memory_for([tensors[at] for tensors, at, _ in passed_on]) for _ in range(2)] if passed_on else []
    for tensors, at, half in passed_on:
        tensors[at] = memory[half]._create_view(tensors[at].shape, str(tensors[at].dtype), 0)

    def run() -> None:
        for kernel, tensors in calls:
            kernel(*tensors)

    return run


def round_secs(run: Callable[[], None], undisturbed: Callable[[], AbstractContextManager[None]]) -> float:
    """Return the median seconds of a round, for about :data:`IN_TURN_SECS`, five rounds at least.

    ``undisturbed``: makes the context of each round.
    """
    secs: list[float] = []
    while len(secs) <= _LEAST_ROUNDS or (sum(secs) < IN_TURN_SECS and len(secs) < _MOST_ROUNDS):
        with undisturbed():
            began = time.perf_counter()
            run()
            secs.append(time.perf_counter() - began)
    return statistics.median(secs[1:])  # the first one makes pages


def _memory_for(tensors: Sequence[Any]) -> Any:
    """Return memory that is large enough for each of the tensors, with the values of the largest one."""
    import tvm

    def size(tensor: Any) -> int:
        elements: int = math.prod(tensor.shape)
        return elements * int(tvm.DataType(str(tensor.dtype)).bits) // 8

    largest = max(tensors, key=size)
    memory = tvm.runtime.empty((size(largest),), "uint8", largest.device)
    largest.copyto(memory._create_view(largest.shape, str(largest.dtype), 0))
    return memory
