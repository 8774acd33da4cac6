"""The analytic model of a candidate on a CPU: compute and memory seconds of every statement.

This is Pruner's analyzer with the levels of a CPU. L0, the registers, matters most on a CPU, so it is refined to a
model of the inner loop: cycles per vector operation from the fused-multiply-add ports and their latency (too few
independent accumulators leave them idle), loads, stores and spilled registers. The other levels are the traffic into
L1, into L2 and from memory, each by the largest sub-nest that fits, and the cores that are idle (P_l2c).

``n`` candidates; every vector has the shape ``(n,)`` and the floating type of the nest.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis import symbols as pruner
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.cpu.fewer_rows import time_over_rows
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.inner import inner_loop
from policies.analysis.cpu.parts import InnerLoop, ProducerConsumer, bytes_of, line_share, smooth_max
from policies.analysis.cpu.producers_consumers import (
    count_partial_sums,
    fusible,
    local_bytes,
    place,
    producer_consumer_secs,
    row_run,
)
from policies.analysis.cpu.program import Program
from policies.analysis.cpu.regions import refused
from policies.analysis.cpu.traffic import Traffic
from policies.analysis.quantities import contiguous_run, parallel_extent, vector_extent
from policies.analysis.symbols import Symbols
from policies.arrays import Floats, Matrix

CORE = (
    "compute_secs", "l1_secs", "l2_secs", "memory_secs", "other_secs", "cycles", "parallel", "busy", "vector",
    "accumulators", "step_operations", "loads", "stores", "unrolled", "inlined", "held_l1", "held_l2",
)  # fmt: skip
"""Names of the terms that every CPU candidate has."""


class CpuModel:
    """The model of a statement that computes, evaluated for candidates; see
    :class:`policies.analysis.model.AnalyticModel`.

    :class:`policies.analysis.cpu.moves.MovesModel` replaces three formulas of the main statement: its inner loop, its
    seconds, and its start.
    """

    def __init__(
        self,
        sketch: Sketch,
        matrix: Matrix,
        device: DeviceAbstraction,
        dtype: DTypeLike,
        constants: CpuConstants = FITTED,
    ) -> None:
        self._program = program = Program(sketch, matrix, device, dtype, constants)
        self._device = device
        self._statement = program.statement
        self._main = program.main
        partial_sums = count_partial_sums(program)
        self._beside = [place(program, other, partial_sums) for other in sketch.statements[1:]]
        self._parallel = parallel_extent(self._main, fusible(program, self._beside))
        self._busy = pruner.utilisation(self._parallel, device.cores)
        local = local_bytes(program, self._beside)
        self._inner = self._inner_loop(inner_loop(program, self._beside, local))
        self._traffic = Traffic(program, local)
        self._compute_secs = self._compute()
        self._into_l1, self._held_l1 = self._traffic.into(device.l1_bytes)
        self._into_l2, self._held_l2 = self._traffic.into(device.l2_bytes)
        from_memory, _ = self._traffic.into(device.l3_bytes or device.l2_bytes)
        cycles = self._busy * (program.hertz * device.cores)
        self._l1_secs = self._into_l1 / (cycles * constants.l1_fill_bytes_per_cycle)
        self._l2_secs = self._into_l2 / (cycles * constants.l2_fill_bytes_per_cycle)
        self._memory_secs = from_memory / device.bandwidth_bytes
        others = [
            producer_consumer_secs(program, beside, self._busy, self._inner.compiled_row) for beside in self._beside
        ]
        self._other_secs = [secs for secs, _ in others]
        self._other_vectors = [vector for _, vector in others]
        latency = self._main_secs()
        latency = latency + np.where(self._parallel > 1, self._launch_secs(), 0.0).astype(latency.dtype)
        for secs in self._other_secs:
            latency = latency + secs
        over_rows = time_over_rows(sketch, matrix, device, self._busy)
        self.latency_secs: Floats = (latency * over_rows).astype(latency.dtype)
        self.feasible = (self._inner.unrolled <= constants.max_unrolled_points) & ~refused(program, self._beside)
        if self._statement.accumulator_depth is not None:
            self.feasible &= self._inner.accumulators <= constants.max_spill_factor * device.registers

    @property
    def within_limits(self) -> NDArray[np.bool_]:
        """See :class:`policies.analysis.model.AnalyticModel`."""
        return self.feasible

    # -- the main statement ---------------------------------------------------------------------------------------

    def _inner_loop(self, scheduled: InnerLoop) -> InnerLoop:
        """The inner loop of the main statement."""
        return scheduled

    def _compute(self) -> Floats:
        inner = self._inner
        operations = self._main.points() * inner.vectors / inner.vector
        work = operations * inner.cycles * (1.0 / (self._program.hertz * self._device.cores)) / self._busy
        for beside in self._beside:
            if beside.fixed is None:
                work = np.where(beside.inlined, work * self._program.constants.inlined_factor, work)
        return work

    def _main_secs(self) -> Floats:
        """Seconds of the main statement: its slowest level, the fills that prefetching does not hide, and the fills of
        evicted data."""
        slowest = smooth_max(self._compute_secs, self._l1_secs, self._l2_secs, self._memory_secs)
        exposed = self._program.constants.exposed_fills * (self._l1_secs + self._l2_secs)
        return slowest + exposed + self._evicted_secs()

    def _evicted_secs(self) -> Floats:
        """Seconds to refill data that the L2 cache holds for reuse but loses before their reuse. The more data it
        holds, the more pages share its sets, and the more of them the following data evict."""
        constants, device = self._program.constants, self._device
        held = self._held_l2 / device.l2_bytes
        share = constants.evicted_share * np.maximum(held - constants.kept_share, 0.0)
        cycles = self._busy * (self._program.hertz * device.cores)
        return share * self._into_l1 / (cycles * constants.l2_fill_bytes_per_cycle)

    def _launch_secs(self) -> float:
        """Seconds to start the main statement."""
        return self._program.constants.launch_secs

    # -- inputs of the learned models -----------------------------------------------------------------------------

    def symbols(self) -> tuple[Symbols, ...]:
        """S1 to S9 of the main statement."""
        inner, runs = self._inner, self._runs
        reads = [run for run, a in zip(runs, self._statement.accesses, strict=True) if not a.write] or runs
        return (
            Symbols(
                s1=inner.needed,
                s2=inner.step_operations,
                s3=self._held_l2,
                s4=inner.vector,
                s5=self._into_l2,
                s6=self._parallel,
                s7=np.minimum.reduce(reads) if reads else self._main.full(1.0),
                s8=self._main.points() * self._statement.flop_per_point,
                s9=self._main.full(0.0),
            ),
        )

    def statement_symbols(self) -> tuple[Symbols, ...]:
        """S1 to S9 of every statement, the main one first. Pruner's equation 1 sums over them.

        A statement beside the main one works on one vector at a time: an operand and a result in registers, one
        operation a step, nothing held. Inside the main nest it moves nothing into L2 and runs in the main nest's
        parallel loops. With a nest of its own it moves each global buffer once. An inlined statement is computed
        wherever the main one reads it.
        """
        return (*self.symbols(), *(self._symbols_beside(beside) for beside in self._beside))

    def _symbols_beside(self, beside: ProducerConsumer) -> Symbols:
        main, statement, loops = self._main, beside.statement, beside.alone
        one = main.full(1.0)
        row = row_run(self._program, beside)
        bytes_moved = float(sum(bytes_of(access) for access in statement.accesses if access.scope == "global"))
        runs = [contiguous_run(loops, access, 0) for access in statement.accesses] or [one]
        inside = np.full(main.count, beside.fixed > 0) if beside.fixed is not None else beside.inside | beside.inlined
        points = np.where(inside, beside.points, one * loops.points())
        if beside.fixed is None:
            points = np.where(beside.inlined, main.points(), points)
        return Symbols(
            s1=one * 2,
            s2=one,
            s3=one,
            s4=np.where(inside, row, one * vector_extent(loops)),
            s5=np.where(inside, 0.0, one * bytes_moved),
            s6=np.where(inside, self._parallel, one * parallel_extent(loops)),
            s7=np.where(inside, row, np.minimum.reduce([one * run for run in runs])),
            s8=points * statement.flop_per_point,
            s9=one * 0,
        )

    @cached_property
    def _runs(self) -> list[Floats]:
        return [contiguous_run(self._main, access, self._program.step) for access in self._statement.accesses]

    def core(self) -> dict[str, Floats]:
        """The most informative terms, by the names of :data:`CORE`, each ``(n,)``, positive or zero."""
        main, inner = self._main, self._inner
        inlined = main.full(1.0)
        for beside in self._beside:
            if beside.fixed is None:
                inlined = np.where(beside.inlined, np.maximum(inlined, 2.0), inlined)
        other_secs = main.full(0.0)
        for secs in self._other_secs:
            other_secs = other_secs + secs
        return {
            "compute_secs": self._compute_secs,
            "l1_secs": self._l1_secs,
            "l2_secs": self._l2_secs,
            "memory_secs": self._memory_secs,
            "other_secs": other_secs,
            "cycles": inner.cycles,
            "parallel": self._parallel,
            "busy": self._busy,
            "vector": inner.vector,
            "accumulators": inner.accumulators,
            "step_operations": inner.step_operations,
            "loads": inner.loads,
            "stores": inner.stores,
            "unrolled": inner.unrolled,
            "inlined": inlined,
            "held_l1": self._held_l1,
            "held_l2": self._held_l2,
        }

    def terms(self) -> dict[str, Floats]:
        """The intermediate quantities by name, each ``(n,)``, positive or zero: the core, and details."""
        main, inner, device = self._main, self._inner, self._device
        terms = self.core()
        terms |= {
            "latency": self.latency_secs,
            "lane_use": inner.vector / (inner.vectors * device.lanes),
            "registers_over": np.maximum(inner.needed / device.registers, 1.0),
            "intensity": self._statement.flop_per_point * main.points() / np.maximum(self._into_l2, 1.0),
        }
        for at, beside in enumerate(self._beside):
            name = beside.statement.name
            terms |= {
                f"{name}.secs": self._other_secs[at],
                f"{name}.points": beside.points,
                f"{name}.depth": np.exp2(beside.depth.astype(main.extents.dtype)),
                f"{name}.vector": self._other_vectors[at],
            }
        for at, (access, elements) in enumerate(self._program.accesses()):
            run = self._runs[at]
            terms[f"a{at}.run"] = run
            terms[f"a{at}.step"] = main.pick(elements, self._program.step)
            if access.write:
                terms[f"a{at}.lines"] = line_share(run, access)
        return terms
