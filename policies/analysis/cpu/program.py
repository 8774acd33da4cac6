"""The programs of ``n`` candidates of a sketch, as all parts of the CPU model see them."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import DTypeLike

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Sketch, Statement
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.cpu.parts import footprints, spatial_within, step_depths
from policies.analysis.nests import Nest, nest
from policies.analysis.quantities import unroll_limit
from policies.arrays import Floats, Matrix


class Program:
    """The programs of all candidates: the quantities that several parts of the model share."""

    def __init__(
        self, sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, dtype: DTypeLike, constants: CpuConstants
    ) -> None:
        self.constants = constants
        self.sketch = sketch
        self.matrix = matrix
        self.device = device
        self.statement = sketch.statements[0]
        """The main statement, the sketch's first."""
        self.main = nest(self.statement, matrix, dtype)
        """Its loop nest."""
        self._nests = {id(self.statement): self.main}
        self.hertz = device.peak_flops / (device.cores * device.lanes * constants.fma_ports * constants.flop_per_fma)
        """Clock of a core, derived from the device's peak."""
        self.operation_cost = device.peak_flops / device.peak(self.statement.arithmetic)
        """Time of an operation of the main statement, relative to a float32 operation."""
        self.touched = footprints(self.main)
        """Footprint of each access of the main statement, ``(L + 1, n)``."""
        self.step = step_depths(self.main)
        """Depth just inside the innermost reduction of the main statement, ``(n,)``."""
        self.spatial = spatial_within(self.main)
        """Iterations of the main statement's spatial loops inside each depth, ``(L + 1, n)``."""

    def nest_of(self, statement: Statement) -> Nest:
        """The nest of a statement's own loops. It is evaluated for one candidate only if no decision changes them."""
        if id(statement) not in self._nests:
            constant = all(loop.column is None for loop in statement.loops)
            matrix = self.matrix[:1] if constant else self.matrix
            self._nests[id(statement)] = nest(statement, matrix, self.main.extents.dtype)
        return self._nests[id(statement)]

    def accesses(self) -> Sequence[tuple[Access, Floats]]:
        """The accesses of the main statement with their footprints."""
        return list(zip(self.statement.accesses, self.touched, strict=True))

    def operands(self) -> list[tuple[Access, Floats]]:
        """The accesses to buffers that the main statement only reads, with their footprints."""
        written = {access.buffer for access in self.statement.accesses if access.write}
        return [each for each in self.accesses() if not each[0].write and each[0].buffer not in written]

    def unroll_limit(self, statement: Statement) -> Floats:
        """Iterations up to which the unroll Choice unrolls loops, ``(n,)``; 0 if there is no such Choice."""
        limit = unroll_limit(self.sketch, statement, self.matrix, self.main.extents.dtype)
        return self.main.full(0.0) if limit is None else limit
