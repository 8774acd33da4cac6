"""Tensors that are kept on a device, since sending them takes long: TVM's RPC moves 70 MB/s, byte by byte."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

Tensors = list[Any]


class TensorCache:
    """Lists of tensors by key. The most recently used lists are kept, up to ``most_bytes`` together. A list that is
    larger is kept alone."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Hashable, tuple[Tensors, int]] = OrderedDict()

    def get(self, key: Hashable, nbytes: int, make: Callable[[], Tensors]) -> Tensors:
        """Return the tensors of ``key``. If they are not kept, drop others to make room, then call ``make``."""
        if key not in self._kept:
            while self._kept and nbytes + sum(size for _, size in self._kept.values()) > self._most_bytes:
                self._kept.popitem(last=False)
            self._kept[key] = make(), nbytes
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def replace(self, key: Hashable, tensors: Tensors) -> None:
        """Replace the tensors of ``key`` by ``tensors`` of the same size."""
        self._kept[key] = tensors, self._kept[key][1]

    def clear(self) -> None:
        """Drop all tensors."""
        self._kept.clear()

    def drop(self, key: Hashable) -> None:
        self._kept.pop(key, None)
