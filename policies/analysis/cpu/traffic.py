"""Bytes that the main statement of a CPU program moves into a cache.

``n`` candidates; every vector has the shape ``(n,)``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import Access
from policies.analysis.cpu.parts import LINE_BYTES, line_share
from policies.analysis.cpu.program import Program
from policies.analysis.quantities import (
    contiguous_run,
    fitting_depth,
    innermost_movers,
    moved_elements,
    working_set,
)
from policies.arrays import Floats

_Key = tuple[str, tuple[tuple[int, ...], ...]]
"""A buffer and its index. A read and a write of the same elements have the same key."""


class Traffic:
    """The traffic of a program's main statement.

    Args:
        program: the candidates.
        local: bytes of the buffers that the main statement shares with a statement inside its nest
            (:func:`policies.analysis.cpu.producers_consumers.local_bytes`). Those that fit never leave the cache.
    """

    def __init__(self, program: Program, local: Mapping[str, Floats]) -> None:
        self._program = program
        self._local = local
        self._resident = working_set(program.main, program.touched)
        self._movers: dict[_Key, NDArray[np.uint8]] = {}

    @property
    def whole(self) -> Floats:
        """Bytes of the whole statement."""
        whole: Floats = self._resident[0]
        return whole

    def into(self, capacity: float) -> tuple[Floats, Floats]:
        """Bytes moved into a cache of ``capacity`` bytes (whole lines), and the working set that stays in it."""
        usable = self._program.constants.usable_cache * capacity
        return self._once(usable) if (self.whole <= usable).all() else self._repeated(usable)

    def _once(self, usable: float) -> tuple[Floats, Floats]:
        """Return what :meth:`into` returns, if the cache holds the whole statement of every candidate: all data are
        moved once."""
        main = self._program.main
        inside = main.inside(0)
        moved_by_access: dict[_Key, Floats] = {}
        total = main.full(0.0)
        for access, elements in self._program.accesses():
            if access.scope != "local":
                key = (access.buffer, access.index)
                if key not in moved_by_access:
                    run = contiguous_run(main, access, 0, inside)
                    moved_by_access[key] = self._bytes(access, elements[0], run, usable)
                total += moved_by_access[key]
        return total, self.whole

    def _repeated(self, usable: float) -> tuple[Floats, Floats]:
        """Return what :meth:`into` returns, if the largest sub-nest that fits is repeated: its data are moved again."""
        main = self._program.main
        fits = fitting_depth(self._resident, usable)
        resident = main.pick(self._resident, fits)
        inside_of: dict[int, tuple[NDArray[np.int64], list[Floats]]] = {}  # by the bytes of an element
        moved_by_access: dict[_Key, Floats] = {}
        total = main.full(0.0)
        for access, elements in self._program.accesses():
            if access.scope == "local":
                continue
            key = (access.buffer, access.index)
            if key not in moved_by_access:
                moved = moved_elements(main, elements, fits, self._movers_of(key, elements))
                if access.element_bytes not in inside_of:
                    # The cache also holds some iterations of the loop around this sub-nest: those that share a line.
                    kept = resident * (LINE_BYTES / access.element_bytes) <= usable
                    depth = np.where(kept, np.maximum(fits - 1, 0), fits)
                    inside_of[access.element_bytes] = depth, main.inside_at(depth)
                run = contiguous_run(main, access, *inside_of[access.element_bytes])
                moved_by_access[key] = self._bytes(access, moved, run, usable)
            total += moved_by_access[key]
        return total, resident

    def _bytes(self, access: Access, elements: Floats, run: Floats, usable: float) -> Floats:
        """Bytes in whole lines of moved elements, which lie in contiguous runs of ``run`` elements; 0 for a local
        buffer that fits."""
        moved = elements * access.element_bytes / line_share(run, access)
        if access.buffer in self._local:
            moved = moved * (self._local[access.buffer] > usable)
        return moved

    def _movers_of(self, key: _Key, elements: Floats) -> NDArray[np.uint8]:
        if key not in self._movers:
            self._movers[key] = innermost_movers(self._program.main, elements)
        return self._movers[key]
