"""A bound on the memory that TVM keeps for outputs of networks with dynamic shapes.

TVM's allocator keeps each freed buffer for the next output of exactly that size. A network whose outputs have another
size in each call would keep a buffer of every size: a language model with 32,000 logits for each of up to 512 tokens
16 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi

from devices.networks.array_conversion import tensor_bytes

MOST_BYTES = 256 << 20
_LARGEST = 4  # buffers of the largest size are kept in any case


class OutputMemory:
    """The sizes of the outputs of one network since unused buffers were freed last."""

    def __init__(self) -> None:
        self._sizes: set[int] = set()
        self._bytes = 0

    def returned(self, outputs: Sequence[Any]) -> None:
        """Take note of the outputs of a call. Free all unused buffers of this process if those of all sizes may take
        more than :data:`MOST_BYTES`, and more than a few of the largest size."""
        for output in outputs:
            size = tensor_bytes(output)
            if size in self._sizes:
                continue
            self._sizes.add(size)
            self._bytes += size
        if self._bytes > max(MOST_BYTES, _LARGEST * max(self._sizes, default=0)):
            tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()
            self._sizes.clear()
            self._bytes = 0
