"""Cost of a row-wise kernel on a CPU: a few rows at a time through steps that reduce them or compute each element.

A core has two kinds of work. The time of operations on full vector registers follows from the device's peak. The other
instructions (loops, additions that wait for each other, numbers put in their places) do not become fewer with wide
vectors. They are counted in cycles of a usual clock (``clock_hertz``): a processor that works on half a register at a
time has a low peak, but no slower chains.

What the compiler makes of a candidate matters most. It widens a number of lanes that is not a power of two to the next
power, and loads and stores such vectors in parts whose lengths are powers of two. If a loop over such sums is not
completely unrolled, the sums are kept between iterations as single numbers: each iteration takes the vectors apart and
puts them together again.

``n`` candidates; every vector has the shape ``(n,)``. Constants:
:class:`policies.analysis.cpu.constants.RowWiseConstants`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, RowStep, RowWise, Sketch
from policies.analysis import symbols as pruner
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.parts import smooth_max
from policies.analysis.symbols import Symbols
from policies.arrays import Floats, Matrix


@dataclass(frozen=True)
class VectorLanes:
    """Vectors of ``count`` lanes in the registers of a device; every field ``(n,)``."""

    count: Floats
    """Lanes of a vector."""
    registers: Floats
    """Full registers that a vector fills once it is widened to a power of two; a fraction for a short vector."""
    parts: Floats
    """Parts in which a vector is loaded."""
    odd: NDArray[np.bool_]
    """True if a vector is widened."""


def lanes_of(counts: Floats, lanes: int) -> VectorLanes:
    """Vectors of ``counts`` elements, (n,), in registers of ``lanes`` elements."""
    widened = np.exp2(np.ceil(np.log2(counts)))
    rest = (counts % lanes).astype(np.int64)
    parts = counts // lanes
    for bit in range(lanes.bit_length()):
        parts = parts + (rest >> bit & 1)
    return VectorLanes(counts, widened / lanes, parts, widened != counts)


def operations(step: RowStep, constants: CpuConstants) -> float:
    """Cost of one element of a step, in additions."""
    return (
        step.operations
        + constants.rows.division_operations * step.divisions
        + constants.rows.call_operations * step.calls
    )


def flop(kernel: RowWise, constants: CpuConstants) -> float:
    """Cost of all rows, in additions."""
    return kernel.rows * sum(step.elements * operations(step, constants) for step in kernel.steps)


class RowWiseModel:
    """The model of a row-wise kernel, evaluated for candidates; see :class:`policies.analysis.model.AnalyticModel`."""

    def __init__(
        self,
        sketch: Sketch,
        matrix: Matrix,
        device: DeviceAbstraction,
        dtype: DTypeLike,
        constants: CpuConstants = FITTED,
    ) -> None:
        self._constants = constants
        assert sketch.row_wise is not None
        self._kernel = kernel = sketch.row_wise
        self._device = device
        hertz = device.peak_flops / (device.cores * device.lanes * constants.fma_ports * constants.flop_per_fma)
        self._register_cycles = constants.rows.clock_hertz / hertz
        self._rows = np.asarray(matrix[:, kernel.together], dtype=dtype)
        self._lanes = [self._lanes_of(sketch, matrix, step) for step in kernel.steps]
        self._unrolled: Floats = np.ones_like(self._rows)
        self._step_cycles = [
            self._reduction(step, lanes) if step.few else self._rows * self._element_wise(step, lanes)
            for step, lanes in zip(kernel.steps, self._lanes, strict=True)
        ]
        self._parallel = kernel.rows / self._rows
        self._busy = pruner.utilisation(self._parallel, device.cores)
        # Seconds of all rows for each cycle that the rows of one group, which go together, take.
        self._secs_per_cycle = self._parallel / (self._busy * device.cores * constants.rows.clock_hertz)
        self._memory_secs = self._memory()
        cycles = np.sum(self._step_cycles, axis=0)
        launch = np.where(self._parallel > 1, constants.rows.parallel_secs, 0.0) if device.cores > 1 else 0.0
        slowest = smooth_max(cycles * self._secs_per_cycle, self._memory_secs)
        self.latency_secs: Floats = (slowest + launch).astype(dtype)
        self.feasible: NDArray[np.bool_] = np.ones(len(matrix), dtype=bool)

    def _lanes_of(self, sketch: Sketch, matrix: Matrix, step: RowStep) -> VectorLanes:
        if step.column is None:
            counts = np.full_like(self._rows, max(step.few, 1))
        elif step.few:
            choice = sketch.decisions[sketch.offsets.index(step.column)]
            assert isinstance(choice, Choice)
            counts = step.few * np.array(choice.values, dtype=self._rows.dtype)[matrix[:, step.column]]
        else:
            counts = matrix[:, step.column].astype(self._rows.dtype)
        return lanes_of(counts, self._device.lanes)

    def _busy_cycles(self, count: Floats | float, registers: Floats) -> Floats:
        """Cycles of ``count`` vector operations, each on ``registers`` registers. One operation takes at least
        ``1 / fma_ports`` cycles."""
        constants = self._constants
        return np.asarray(count * np.maximum(registers * self._register_cycles, 1.0) / constants.fma_ports)

    def _element_wise(self, step: RowStep, lanes: VectorLanes) -> Floats:
        """Cycles of one row. The compiler vectorises a loop that the schedule does not vectorise (one lane), except for
        the remainder."""
        constants = self._constants
        alone = (lanes.count == 1) & (step.elements >= self._device.lanes)
        full = self._device.lanes
        count = np.where(alone, full, lanes.count)
        registers = np.where(alone, 1.0, lanes.registers)
        parts = np.where(alone, 1.0, lanes.parts)
        of_part = np.where(count < full, 1.0, self._register_cycles)
        moved = parts * of_part * (step.reads / constants.load_ports + step.writes)
        joined = constants.rows.part_cycles * lanes.odd * (parts - 1.0) * (step.reads + step.writes)
        group = (
            np.maximum(self._busy_cycles(operations(step, constants), registers), moved)
            + joined
            + constants.rows.group_cycles
        )
        left = np.where(alone, step.elements % full, 0) * operations(step, constants) / constants.fma_ports
        return np.asarray(step.elements // count * group + left + constants.rows.step_cycles)

    def _reduction(self, step: RowStep, lanes: VectorLanes) -> Floats:
        """Cycles of the rows that go together: each row is reduced to partial results, these to the last few numbers,
        and these to one."""
        constants = self._constants
        rows, steps = self._rows, step.elements / lanes.count
        loads = step.reads * lanes.parts * (self._register_cycles / constants.load_ports)
        row = np.maximum(self._busy_cycles(operations(step, constants), lanes.registers), loads)
        joined = constants.rows.part_cycles * lanes.odd * (lanes.parts - 1.0)
        partial = (
            steps * (np.maximum(rows * row, constants.rows.chain_cycles) + rows * joined + constants.rows.group_cycles)
            + constants.rows.step_cycles
        )
        body = rows * (step.operations * np.ceil(lanes.registers) + step.reads * lanes.parts)
        whole = steps * body <= constants.rows.unrolled_whole
        times = np.where(whole, steps, unrolled(steps, body, constants))
        partial = partial + np.where(
            lanes.odd & ~whole, constants.rows.single_cycles * rows * lanes.count * steps / times, 0.0
        )
        self._unrolled = self._unrolled + times * body
        last: Floats | float = lanes.count
        if step.few > 1:
            last = step.few
            partial = (
                partial
                + lanes.count / last * np.maximum(constants.rows.total_cycles, rows)
                + constants.rows.step_cycles
            )
        return np.asarray(
            partial + last * np.maximum(constants.rows.total_cycles, constants.rows.total_row_cycles * rows)
        )

    def _memory(self) -> Floats:
        """Seconds to move the data that the kernel reads and writes, from the nearest cache that holds all of them."""
        constants = self._constants
        device, moved = self._device, float(self._kernel.rows * self._kernel.moved_bytes)
        of_core = moved / device.cores
        if moved > constants.usable_cache * max(device.l3_bytes, device.l2_bytes):
            secs = moved / device.bandwidth_bytes
        elif of_core > constants.usable_cache * device.l2_bytes:
            secs = moved / (constants.rows.l3_bandwidths * device.bandwidth_bytes)
        elif of_core > constants.usable_cache * device.l1_bytes:
            secs = of_core / (constants.rows.clock_hertz * constants.rows.l2_bytes_per_cycle)
        else:
            secs = 0.0
        return np.full_like(self._rows, secs)

    # -- inputs of the learned models -----------------------------------------------------------------------------

    def symbols(self) -> tuple[Symbols, ...]:
        """Empty: a row-wise kernel has no statements."""
        return ()

    def statement_symbols(self) -> tuple[Symbols, ...]:
        """Empty; see :meth:`symbols`."""
        return ()

    @property
    def within_limits(self) -> NDArray[np.bool_]:
        """See :class:`policies.analysis.model.AnalyticModel`."""
        return self.feasible

    def core(self) -> dict[str, Floats]:
        """The terms of :data:`policies.analysis.cpu.model.CORE`, each ``(n,)``. Terms that a row-wise kernel does not
        have are 0."""
        steps = list(zip(self._kernel.steps, self._lanes, self._step_cycles, strict=True))
        none = np.zeros_like(self._rows)
        computed = sum((cycles for step, _, cycles in steps if not step.few), none)
        reduced = sum((cycles for step, _, cycles in steps if step.few), none)
        wide = [lanes.count for step, lanes, _ in steps if not step.few]
        sums = [lanes for step, lanes, _ in steps if step.few]
        elements = sum(step.elements for step, *_ in steps)
        return {
            "compute_secs": computed * self._secs_per_cycle,
            "l1_secs": none,
            "l2_secs": none,
            "memory_secs": self._memory_secs,
            "other_secs": reduced * self._secs_per_cycle,
            "cycles": (computed + reduced) / (self._rows * elements),
            "parallel": self._parallel,
            "busy": self._busy,
            "vector": np.minimum.reduce(wide) if wide else none,
            "accumulators": self._rows * sum((np.ceil(lanes.registers) for lanes in sums), none) / len(sums),
            "step_operations": none,
            "loads": sum((step.reads * lanes.parts / lanes.count for step, lanes, _ in steps), none),
            "stores": sum((step.writes * lanes.parts / lanes.count for step, lanes, _ in steps), none),
            "unrolled": self._unrolled,
            "inlined": none,
            "held_l1": self._rows * self._kernel.held_bytes,
            "held_l2": none,
        }

    def terms(self) -> dict[str, Floats]:
        """The intermediate quantities by name, each ``(n,)``, positive or zero: the core, and those of each step."""
        terms = self.core() | {"latency": self.latency_secs}
        for step, lanes, cycles in zip(self._kernel.steps, self._lanes, self._step_cycles, strict=True):
            terms |= {
                f"{step.name}.secs": cycles * self._secs_per_cycle,
                f"{step.name}.lanes": lanes.count,
                f"{step.name}.parts": lanes.parts,
            }
        return terms


def unrolled(steps: Floats, body: Floats, constants: CpuConstants) -> Floats:
    """Iterations of a loop of ``steps`` that the compiler unrolls into one, ``(n,)``: the largest divisor of ``steps``
    for which the unrolled body has at most ``unrolled_part`` operations. ``body``: operations of one iteration; fewer
    than 1 count as 1."""
    body = np.maximum(body, 1.0)
    times = np.ones_like(steps)
    for divisor in range(2, int(constants.rows.unrolled_part / body.min(initial=constants.rows.unrolled_part)) + 1):
        times = np.where((steps % divisor == 0) & (divisor * body <= constants.rows.unrolled_part), divisor, times)
    return times
