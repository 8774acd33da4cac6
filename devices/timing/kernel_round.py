"""The time of a round of kernels: each runs once, one after the other, as in a network.

A kernel that runs again and again finds its input where its last run left it, often in the cache of the same core. In a
network it finds what another kernel wrote, perhaps on another core, and a call costs something too. So kernels take
longer in a round than alone. Here the output of each kernel is the input of the next one: two pieces of memory take
turns, as a network's storage does.
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

ROUNDS_SECS = 0.1
"""Time for the rounds."""
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 100


@dataclass(frozen=True, slots=True)
class RoundArguments:
    """Arguments of one kernel in a round."""

    count: int
    """Number of the arguments."""
    reads: int | None
    """Position of the input that the kernel before it writes; None for none."""
    writes: int | None
    """Position of the output that the next kernel reads; None for none."""

    @classmethod
    def of(cls, artifact: Artifact, any_values: bool) -> RoundArguments:
        """Return those of an artifact. The kernel before it writes its largest input that is no constant weight and no
        integer, which may be an index.

        ``any_values``: false for a kernel that wants certain values (positive ones, or places): its inputs stay.
        """
        floats = [at for at, spec in enumerate(artifact.args) if is_float(spec.dtype) and not spec.holds]
        inputs = [at for at in floats if at not in artifact.packed and at not in artifact.outputs]
        outputs = [at for at in floats if at in artifact.outputs]

        def size(at: int) -> int:
            return nbytes(artifact.args[at])

        reads = max(inputs, key=size, default=None) if any_values else None
        return cls(len(artifact.args), reads, max(outputs, key=size, default=None))


def encode_round(arguments: Sequence[RoundArguments]) -> str:
    """Return the kernels' arguments as JSON text."""
    return json.dumps([asdict(each) for each in arguments])


def decode_round(text: str) -> list[RoundArguments]:
    """Return what :func:`encode_round` wrote."""
    return [RoundArguments(**each) for each in json.loads(text)]


def one_round(arguments: Sequence[RoundArguments], objects: Sequence[Any]) -> Callable[[], None]:
    """Return a function that calls all kernels once.

    Args:
        arguments: of the kernels.
        objects: the module and the tensors of each kernel, one after the other.
    """
    calls: list[tuple[Any, list[Any]]] = []
    place = 0
    for each in arguments:
        module, tensors = objects[place], list(objects[place + 1 : place + 1 + each.count])
        place += 1 + each.count
        calls.append((module["main"], tensors))
    passed_on = [
        (tensors, at, (number + is_output) % 2)
        for number, (each, (_, tensors)) in enumerate(zip(arguments, calls, strict=True))
        for is_output, at in enumerate((each.reads, each.writes))
        if at is not None
    ]
    if passed_on:
        largest = max((tensors[at] for tensors, at, _ in passed_on), key=_bytes)
        memory = [_memory_like(largest) for _ in range(2)]
        for tensors, at, half in passed_on:
            # The bits of another type may be subnormal numbers, which are slow.
            if str(tensors[at].dtype) == str(largest.dtype):
                tensors[at] = memory[half]._create_view(tensors[at].shape, str(tensors[at].dtype), 0)

    def run() -> None:
        for kernel, tensors in calls:
            kernel(*tensors)

    return run


def median_secs(run: Callable[[], None], undisturbed: Callable[[], AbstractContextManager[None]]) -> float:
    """Return the median seconds of a round, for about :data:`ROUNDS_SECS`, two rounds at least, beside a first one that
    makes pages.

    ``undisturbed``: makes the context of each round.
    """
    secs: list[float] = []
    while len(secs) <= _LEAST_ROUNDS or (sum(secs) < ROUNDS_SECS and len(secs) <= _MOST_ROUNDS):
        with undisturbed():
            began = time.perf_counter()
            run()
            secs.append(time.perf_counter() - began)
    return statistics.median(secs[1:])


def most_secs(round_secs: float) -> float:
    """Return the longest time of :func:`median_secs`, with rounds of ``round_secs`` at most."""
    return ROUNDS_SECS + (_LEAST_ROUNDS + 1) * round_secs


def _bytes(tensor: Any) -> int:
    import tvm

    elements: int = math.prod(tensor.shape)
    return elements * int(tvm.DataType(str(tensor.dtype)).bits) // 8


def _memory_like(tensor: Any) -> Any:
    """Return memory of the size of a tensor, with its values."""
    import tvm

    memory = tvm.runtime.empty((_bytes(tensor),), "uint8", tensor.device)
    tensor.copyto(memory._create_view(tensor.shape, str(tensor.dtype), 0))
    return memory
