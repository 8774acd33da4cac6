"""Weights as a kernel finds them in its network.

Between two runs of a kernel its network reads the weights of all other kernels, so that the weights of a large network
come from memory each time. A kernel that is run again and again has its weights in the caches. Here it gets another
copy of its weights in each run. There are so many copies that between two uses of one as much is read as the network
reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_ALIGNED_BYTES = 64
"""Alignment of tensors that TVM's kernels expect."""
_LEAST_BYTES = 256 << 10
"""Smaller weights take less time to read than a call from here takes."""
_CACHES = 2
"""Limit of the size of all copies, in sizes of the last-level caches. Copies that are larger than these caches are as
cold as main memory. With twice their size no copy stays in the caches, whatever their replacement policy."""
_UNKNOWN_CACHE_BYTES = 32 << 20


class WeightCopies:
    """Memory of this process' CPU for copies of weights. One kernel after the other uses it."""

    def __init__(self, cache_bytes: int) -> None:
        """``cache_bytes``: bytes of the last-level caches together; 0 if they are not known."""
        self._most_bytes = _CACHES * (cache_bytes or _UNKNOWN_CACHE_BYTES)
        self._memory: Any = None

    def argument_sets(
        self, tensors: Sequence[Any], weights: Sequence[int], weights_bytes: int, most: float = math.inf
    ) -> list[Sequence[Any]]:
        """Return sets of arguments of a kernel, each with a copy of its weights: as many as the kernel needs to find
        its weights cold. The first set is ``tensors``.

        Args:
            tensors: the arguments.
            weights: positions of the weights among them.
            weights_bytes: bytes of all weights of the network; 0 for a kernel that is in no network.
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
            # Allocated once: otherwise the system would make new pages for every kernel.
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
