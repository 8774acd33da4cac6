"""Weights as a kernel finds them in its network.

Between two runs of a kernel its network reads the weights of all others, so that those of a large network come from
memory each time. A kernel that is run again and again has them in its caches. Here it gets other copies of its weights
from run to run, until as much was read as the network reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_ALIGNED_BYTES = 64
"""TVM's kernels expect their tensors at multiples of it."""
_LEAST_BYTES = 256 << 10
"""Smaller weights take less time to read than a call from here takes."""
_CACHES = 2
"""Copies of more than the last cache are as cold as of all memory. With twice of it nothing is left, however it
replaces."""
_UNKNOWN_CACHE_BYTES = 32 << 20


class WeightCopies:
    """Memory of this process' CPU for copies of weights, which one kernel after the other uses."""

    def __init__(self, cache_bytes: int) -> None:
        """``cache_bytes``: of the last caches together, 0 where they are not known."""
        self._most_bytes = _CACHES * (cache_bytes or _UNKNOWN_CACHE_BYTES)
        self._memory: Any = None

    def argument_sets(
        self, tensors: Sequence[Any], weights: Sequence[int], weights_bytes: int, most: float = math.inf
    ) -> list[Sequence[Any]]:
        """Return the arguments of a kernel with as many copies of its weights as are read between two of its runs.

        Args:
            tensors: the arguments.
            weights: positions of the weights among them.
            weights_bytes: bytes of all weights of the network; 0 for a kernel that is in none.
            most: largest number of sets.
        """
        sizes = {at: _bytes(tensors[at]) for at in weights}
        own = sum(sizes.values())
        if own < _LEAST_BYTES:
            return [tensors]
        count = int(min(most, math.ceil(min(weights_bytes, self._most_bytes) / own)))
        sets = [tensors]
        place = 0
        for _ in range(count - 1):
            copied = list(tensors)
            for at, size in sizes.items():
                copied[at] = self._copy(tensors[at], place)
                place += -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES
            sets.append(copied)
        return sets

    def _copy(self, tensor: Any, place: int) -> Any:
        import tvm

        if self._memory is None:
            # Pages of new memory would be made for every kernel.
            self._memory = tvm.runtime.empty((self._most_bytes,), "uint8", tensor.device)
        bits = tvm.DataType(str(tensor.dtype)).bits
        if bits % 8 or place + _bytes(tensor) > self._most_bytes:
            copy = tvm.runtime.empty(tensor.shape, str(tensor.dtype), tensor.device)
        else:
            copy = self._memory._create_view(tensor.shape, str(tensor.dtype), place)
        return tensor.copyto(copy)


def _bytes(tensor: Any) -> int:
    import tvm

    elements: int = math.prod(tensor.shape)
    return elements * int(tvm.DataType(str(tensor.dtype)).bits) // 8
