"""The extra time of kernels that run in a round, one after the other as in a network, compared with each kernel alone.

A kernel that runs again and again finds its input where its last run left it, often in the cache of the same core. In a
network another kernel has written the input, perhaps on another core, and each call has a cost too. So kernels take
longer in a round than alone. Here the output of each kernel is the input of the next one: two buffers alternate, as a
network's storage does.

Rounds and kernels alone are timed in turn, so that a short slow-down of the machine affects both.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from devices.protocol import Artifact
from devices.timing.arguments import is_float, nbytes
from devices.timing.cold_weights import WeightCopies
from devices.timing.evaluator import batch_timer

ROUNDS_SECS = 0.3
"""Seconds for all comparisons, unless a single one takes longer."""
_ROUNDS = 3
_LEAST_RUNS, _MOST_RUNS = 3, 100
_BATCH_SECS = 5e-4
"""Seconds of the runs of a kernel alone. There are at least ``_LEAST_RUNS`` of them."""
_COMPARISON = 12
"""Longest time of a comparison, in rounds: rounds and kernels alone, each with a run that does not count, and copying
of the weights."""


@dataclass(frozen=True, slots=True)
class RoundArguments:
    """Arguments of one kernel in a round."""

    count: int
    """Number of the arguments."""
    reads: int | None
    """Position of the input that the kernel before it writes; ``None`` for none."""
    writes: int | None
    """Position of the output that the next kernel reads; ``None`` for none."""
    weights: tuple[int, ...] = ()
    """Positions of the weights."""

    @classmethod
    def of(cls, artifact: Artifact, any_values: bool) -> RoundArguments:
        """Return the arguments of an artifact's kernel. The kernel before it writes the largest input that is no
        constant weight and no integer (an integer may be an index).

        ``any_values``: false for a kernel that needs certain values (positive ones, or floats from which it makes
        integers): no kernel writes its inputs.
        """
        floats = [at for at, spec in enumerate(artifact.args) if is_float(spec.dtype) and not spec.holds]
        inputs = [at for at in floats if at not in artifact.packed and at not in artifact.outputs]
        outputs = [at for at in floats if at in artifact.outputs]

        def size(at: int) -> int:
            return nbytes(artifact.args[at])

        reads = max(inputs, key=size, default=None) if any_values else None
        return cls(len(artifact.args), reads, max(outputs, key=size, default=None), artifact.packed)


def encode_round(arguments: Sequence[RoundArguments]) -> str:
    """Return the kernels' arguments as JSON text."""
    return json.dumps([asdict(each) for each in arguments])


def decode_round(text: str) -> list[RoundArguments]:
    """Return what :func:`encode_round` wrote."""
    return [RoundArguments(**{**each, "weights": tuple(each["weights"])}) for each in json.loads(text)]


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of a round, with its own tensors."""

    arguments: RoundArguments
    module: Any
    tensors: Sequence[Any]

    def size(self, at: int | None) -> int:
        """Return the bytes of an argument, 0 for None."""
        return 0 if at is None else _bytes(self.tensors[at])


def loaded_kernels(arguments: Sequence[RoundArguments], objects: Sequence[Any]) -> list[LoadedKernel]:
    """Return the kernels of a round.

    Args:
        arguments: arguments of each kernel.
        objects: the module and the tensors of each kernel, one after the other.
    """
    kernels = []
    place = 0
    for each in arguments:
        kernels.append(LoadedKernel(each, objects[place], list(objects[place + 1 : place + 1 + each.count])))
        place += 1 + each.count
    return kernels


def one_round(kernels: Sequence[LoadedKernel]) -> Callable[[], None]:
    """Return a function that calls all kernels once, each with the output of the one before it."""
    kernels = in_chain(kernels)
    calls = [(each.module["main"], list(each.tensors)) for each in kernels]
    passed_on = [
        (tensors, at, (number + is_output) % 2)
        for number, (each, (_, tensors)) in enumerate(zip(kernels, calls, strict=True))
        for is_output, at in enumerate((each.arguments.reads, each.arguments.writes))
        if at is not None
    ]
    if passed_on:
        largest = max((tensors[at] for tensors, at, _ in passed_on), key=_bytes)
        memory = [_memory_like(largest) for _ in range(2)]
        for tensors, at, half in passed_on:
            # Tensors of another type keep their own memory: read as another type, bits may be subnormal numbers, which
            # are slow.
            if str(tensors[at].dtype) == str(largest.dtype):
                tensors[at] = memory[half]._create_view(tensors[at].shape, str(tensors[at].dtype), 0)

    def run() -> None:
        for kernel, tensors in calls:
            kernel(*tensors)

    return run


def in_chain(kernels: Sequence[LoadedKernel]) -> list[LoadedKernel]:
    """Return the kernels in an order in which each reads about as much as the one before it writes, as in a network:
    data that was written long before is no longer in the caches. The first kernel reads the most."""
    left = sorted(kernels, key=lambda each: each.size(each.arguments.reads), reverse=True)
    chain = left[:1]
    del left[:1]
    while left:
        written = chain[-1].size(chain[-1].arguments.writes)
        nearest = min(left, key=lambda each: abs(math.log((1 + each.size(each.arguments.reads)) / (1 + written))))
        left.remove(nearest)
        chain.append(nearest)
    return chain


class KernelsAlone:
    """Times kernels of this process' CPU, each by itself.

    Weights are as cold as in the round: between two uses of the same weights as much is read as all kernels have.
    """

    def __init__(self, kernels: Sequence[LoadedKernel], copies: WeightCopies) -> None:
        self._kernels = kernels
        self._copies = copies
        self._weights_bytes = sum(_bytes(each.tensors[at]) for each in kernels for at in each.arguments.weights)

    def secs(self) -> float:
        """Return the sum of the seconds of one run of each kernel."""
        return sum(map(self._secs_of, self._kernels))

    def _secs_of(self, kernel: LoadedKernel) -> float:
        import tvm

        first_secs = batch_timer(kernel.module, "main", tvm.cpu(), [kernel.tensors])(1)
        runs = min(_MOST_RUNS, max(_LEAST_RUNS, math.ceil(_BATCH_SECS / max(first_secs, 1e-9))))
        weights = kernel.arguments.weights
        sets = self._copies.argument_sets(kernel.tensors, weights, self._weights_bytes, runs)
        return batch_timer(kernel.module, "main", tvm.cpu(), sets)(runs)


def extra_secs(run_round: Callable[[], None], alone_secs: Callable[[], float], most_round_secs: float) -> float | None:
    """Return the seconds by which a round takes longer than the kernels alone: the median of comparisons, which take
    about :data:`ROUNDS_SECS`. There is at least one. Noise may bring it below 0.

    Args:
        run_round: calls each kernel once.
        alone_secs: returns the sum of the kernels' seconds alone.
        most_round_secs: limit of a round. ``None`` is returned if the first round takes longer.
    """
    began = time.perf_counter()
    if _timed(run_round) > most_round_secs:
        return None
    differences: list[float] = []
    while not differences or time.perf_counter() - began < ROUNDS_SECS:
        run_round()  # not timed: the kernels alone have filled the caches
        round_secs = statistics.median(_timed(run_round) for _ in range(_ROUNDS))
        differences.append(round_secs - alone_secs())
    return statistics.median(differences)


def most_round_secs(timeout_secs: float) -> float:
    """Return the limit of a round with which :func:`extra_secs` takes at most ``timeout_secs`` in addition to
    :data:`ROUNDS_SECS`."""
    return timeout_secs / (1 + _COMPARISON)


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


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
