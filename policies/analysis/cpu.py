"""The analytic model of a candidate on a CPU: compute and memory seconds of every statement.

Pruner's analyzer with the levels of a CPU. L0, the registers, is refined to a model of the inner loop, because that is
what decides there: cycles per vector operation from the fused-multiply-add ports and their latency (too few independent
accumulators leave them idle), loads, stores and spilled registers. Then traffic into L1, L2 and from memory by the
largest sub-nest that fits each of them, and the cores that have nothing to do (P_l2c).

``n`` candidates; every vector has the shape ``(n,)`` and the floating type of the nest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import Access, Sketch, Statement
from policies.analysis import symbols as pruner
from policies.analysis.cpu_constants import (
    AROUND_LOADS,
    CONFLICT_CYCLES,
    CONFLICT_FREE_SHARE,
    EXPOSED_FILLS,
    FLOP_PER_FMA,
    FMA_LATENCY,
    FMA_PORTS,
    FULLY_UNROLLED,
    FULLY_UNROLLED_STEPS,
    GATHER_LOADS,
    INLINED_FACTOR,
    L1_FILL_BYTES_PER_CYCLE,
    L2_FILL_BYTES_PER_CYCLE,
    LAUNCH_SECS,
    LEAST_ROW,
    LOAD_PORTS,
    LOOP_CYCLES,
    MAX_CONFLICTS,
    MAX_SPILL_FACTOR,
    MAX_UNROLLED_POINTS,
    ODD_VECTOR_FACTOR,
    PAGE_BYTES,
    ROW_CYCLES,
    SPILL_CYCLES,
    STRAIGHT_LINE_OPERATIONS,
    UNROLL_PENALTY,
    UNROLLED_BY_COMPILER,
    USABLE_CACHE,
    WINDOW_OPERATIONS,
)
from policies.analysis.cpu_parts import (
    LINE_BYTES,
    Beside,
    Inner,
    RegisterTile,
    bytes_of,
    choose,
    elements_along,
    footprints,
    innermost_reduction,
    line_share,
    memory_parts,
    smooth_max,
    spatial_within,
    step_depths,
)
from policies.analysis.quantities import (
    Ints,
    contiguous_run,
    enclosing_depth,
    fitting_depth,
    in_digits,
    innermost_movers,
    lines_per_set,
    moved_elements,
    nest,
    parallel_extent,
    unit_stride,
    unroll_limit,
    vector_extent,
    working_set,
)
from policies.analysis.symbols import Symbols
from policies.arrays import Floats, Matrix

CORE = (
    "compute_secs", "l1_secs", "l2_secs", "memory_secs", "other_secs", "cycles", "parallel", "busy", "vector",
    "accumulators", "step_operations", "loads", "stores", "unrolled", "inlined", "held_l1", "held_l2",
)  # fmt: skip
"""Names of the terms that every CPU candidate has."""

_Key = tuple[str, tuple[tuple[int, ...], ...]]
"""A buffer and how it is indexed: reading and writing it have this in common."""


def _sums_innermost(statement: Statement) -> bool:
    """Whether the innermost loop of more than one iteration is a reduction's."""
    for loop in reversed(statement.loops):
        axis = statement.axes[loop.axis]
        if axis.extent > 1 and (loop.column is not None or loop.extent != 1):
            return axis.reduction
    return False


class CpuModel:
    """The model evaluated for candidates: ``latency_secs`` and ``feasible``, each ``(n,)``; the rest when asked for."""

    def __init__(self, sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, dtype: DTypeLike) -> None:
        self._sketch = sketch
        self._matrix = matrix
        self._device = device
        self._statement = sketch.statements[0]
        self._main = nest(self._statement, matrix, dtype)
        self._hertz = device.peak_flops / (device.cores * device.lanes * FMA_PORTS * FLOP_PER_FMA)
        self._touched = footprints(self._main)
        self._step = step_depths(self._main)
        self._spatial = spatial_within(self._main)
        self._movers: dict[_Key, NDArray[np.uint8]] = {}
        self._resident = working_set(self._main, self._touched)
        self._beside = [self._place(other) for other in sketch.statements[1:]]
        self._parallel = parallel_extent(self._main, self._fusible())
        self._busy = pruner.utilisation(self._parallel, device.cores)
        self._local = self._local_bytes()
        self._inner = self._inner_loop()
        self._compute_secs = self._compute()
        self._fills()
        others = [self._beside_secs(beside) for beside in self._beside]
        self._other_secs = [secs for secs, _ in others]
        self._other_vectors = [vector for _, vector in others]
        latency = self._main_secs + LAUNCH_SECS
        for secs in self._other_secs:
            latency = latency + secs
        self.latency_secs: Floats = latency
        self.feasible = self._inner.unrolled <= MAX_UNROLLED_POINTS
        if self._statement.accumulator_depth is not None:
            self.feasible &= self._inner.accumulators <= MAX_SPILL_FACTOR * device.registers

    # -- where the other statements are ---------------------------------------------------------------------------

    def _place(self, other: Statement) -> Beside:
        """Inside a loop it computes what the main statement touches there of the buffer they share, each time anew."""
        main = self._main
        depth = enclosing_depth(self._sketch, main, other, self._matrix)
        fixed = main.compact_depth(other.fixed_depth) if other.location_column is None else None
        all_points = 1.0
        for axis in other.axes:
            all_points *= axis.extent
        placed = Beside(other, depth, fixed, main.full(all_points))
        if fixed == 0:
            return placed
        touched = {access.buffer: elements for access, elements in self._accesses()}
        for access in other.accesses:
            if access.buffer in touched:
                points = self._row(touched[access.buffer], placed) * self._row(main.outer, placed)
                points = np.maximum(points, all_points if access.write else 1.0)
                if fixed is None:
                    points = np.where(placed.inside, points, main.extents.dtype.type(all_points))
                return Beside(other, depth, fixed, points)
        return placed

    def _accesses(self) -> Sequence[tuple[Access, Floats]]:
        return list(zip(self._statement.accesses, self._touched, strict=True))

    def _row(self, table: Floats, placed: Beside) -> Floats:
        """The row of a table over depths at which a statement stands, shape ``(n,)``."""
        if placed.fixed is not None:
            return np.asarray(table[placed.fixed])
        return self._main.pick(table, np.maximum(placed.depth, 0))

    def _fusible(self) -> Ints | None:
        """Leading loops that may be fused: those outside of every other statement; None where all may be."""
        fusible: Ints | None = None
        for beside in self._beside:
            if beside.fixed == 0:
                continue
            end = np.where(beside.inside, beside.depth, self._main.depth)
            fusible = end if fusible is None else np.minimum(fusible, end)
        return fusible

    # -- L0: registers --------------------------------------------------------------------------------------------

    def _inner_loop(self) -> Inner:
        """Cycles of a vector operation in the innermost loops, from ports, latency, loads, stores and spills."""
        main, statement = self._main, self._statement
        registers = float(self._device.registers)
        vector = vector_extent(main)
        tile = scheduled = self._tile(vector)
        compiled_row = main.full(1.0)
        limit = self._unroll_limit()
        if statement.accumulator_depth is not None:
            held: NDArray[np.bool_] | None = None  # everywhere
            unrolled = main.product("unroll") * tile.vectors
            around = self._vectorised_around(vector, main.compact_depth(statement.accumulator_depth))
            if around is not None:
                tile = choose(around.vector > 1.0, around, tile)
                compiled_row = around.vector
        else:
            # The compiler keeps the accumulators in registers over the innermost reduction only where the loops inside
            # it are fully unrolled, which it does by itself up to a handful of iterations.
            held = tile.operations <= np.maximum(limit, UNROLLED_BY_COMPILER)
            unrolled = tile.vectors * self._explicitly_unrolled(vector, limit)
            compiled = self._compiler_tile(np.maximum(limit, UNROLLED_BY_COMPILER))
            chosen = (vector == 1.0) & (compiled.vector > 1.0)
            tile = choose(chosen, compiled, tile)
            held = (held | chosen) & (tile.accumulators <= registers)
        reduced = tile.reduced
        parts = memory_parts(tile.vector, self._device.lanes)
        updates = 1.0 / reduced if held is None else np.where(held, 1.0 / reduced, 1.0)
        needed = tile.accumulators + tile.operands + 1.0
        spilled = np.maximum(needed - registers, 0.0) / np.maximum(tile.accumulators, 1.0)
        independent = np.minimum(tile.accumulators, registers)
        if held is not None:
            spilled = spilled * held
            independent = np.where(held, independent, tile.operations)
        # Where the reduction is short, the processor runs ahead into the next tile.
        independent = np.maximum(independent, WINDOW_OPERATIONS / reduced)
        loads = tile.loads + updates * parts + spilled
        stores = updates * parts + spilled
        cycles = smooth_max(
            1.0 / FMA_PORTS, FMA_LATENCY / np.maximum(independent, 1.0), loads * (1.0 / LOAD_PORTS), stores
        )
        cycles = cycles + LOOP_CYCLES / tile.operations + SPILL_CYCLES * spilled
        cycles = cycles + CONFLICT_CYCLES * self._conflicts(updates, scheduled.operations)
        doublings = np.log2(np.maximum(unrolled * (1.0 / STRAIGHT_LINE_OPERATIONS), 1.0))
        cycles = cycles * (1.0 + UNROLL_PENALTY * doublings)
        cycles = np.where(self._odd(vector), cycles * cycles.dtype.type(ODD_VECTOR_FACTOR), cycles)
        return Inner(
            tile.vector,
            tile.vectors,
            tile.accumulators,
            needed,
            tile.operations,
            loads,
            stores,
            cycles,
            unrolled,
            compiled_row,
        )

    def _odd(self, vector: Floats) -> NDArray[np.bool_]:
        """Whether the schedule's vectors are longer than a register and their length is no power of two."""
        length = vector.astype(np.int64)
        return np.asarray((length > self._device.lanes) & (length & (length - 1) != 0))

    def _tile(self, vector: Floats) -> RegisterTile:
        """The inner loop as it is scheduled: what is inside of the reduction, and the sums' tile."""
        main, statement = self._main, self._statement
        vectors = np.ceil(vector * (1.0 / self._device.lanes))
        per_point = vectors / vector  # vector operations for one point
        operations = main.pick(self._spatial, self._step) * per_point
        if statement.accumulator_depth is None:
            accumulators, reduced = operations, innermost_reduction(main, self._step)
        else:
            depth = main.compact_depth(statement.accumulator_depth)
            accumulators, reduced = self._spatial[depth] * per_point, main.reduced_points(depth)
        loads, operands = main.full(0.0), main.full(0.0)
        parts = memory_parts(vector, self._device.lanes)
        axis = main.axes[-1] if main.axes else 0
        for access, elements in self._operands():
            loaded = main.pick(elements, self._step)
            unit = unit_stride(statement, access, axis) if main.axes else None
            if unit:
                loaded = loaded * per_point * parts
                # The vectors of one row of the tile are kept and used for every other row.
                operands += np.minimum(loaded, vectors)
            elif unit is False:
                distinct = elements_along(main, access, axis, vector)
                loaded = np.where(distinct > 1, loaded * GATHER_LOADS * vector / distinct, loaded)
            loads += loaded  # without a unit stride: a broadcast for each element, or a gather of single elements
        return RegisterTile(vector, vectors, operations, accumulators, reduced, operands, loads / operations)

    def _compiler_tile(self, limit: Floats) -> RegisterTile:
        """The inner loop as the compiler makes it where the schedule vectorises nothing.

        It unrolls what is short and vectorises the innermost loop that is left, if that runs along the result's rows;
        ``vector`` is 1 where it does not.
        """
        main, statement = self._main, self._statement
        if not main.depth:
            return self._tile(main.full(1.0))
        depth = fitting_depth(main.within, limit)
        at = np.maximum(depth - 1, 0)
        written = [access for access in statement.accesses if access.write]
        along = [
            not main.reduction[k] and all(unit_stride(statement, access, axis) is True for access in written)
            for k, axis in enumerate(main.axes)
        ]
        vector = np.where(np.array(along)[at] & (depth > 0), main.pick(main.extents, at), 1.0)
        vectors = np.ceil(vector * (1.0 / self._device.lanes))
        accumulators = main.pick(self._spatial, depth)
        inner = main.pick(main.within, depth) / accumulators
        lanes = np.minimum(vector, self._device.lanes)
        loads = main.full(0.0)
        for access, elements in self._operands():
            loaded = main.pick(elements, depth)
            for axis in {axis for k, axis in enumerate(main.axes) if along[k]}:
                if unit_stride(statement, access, axis) is False:
                    gathered = (np.array(main.axes)[at] == axis) & (elements_along(main, access, axis, vector) > 1)
                    loaded = np.where(gathered, loaded * lanes * GATHER_LOADS, loaded)
            loads += loaded
        return RegisterTile(
            vector, vectors, accumulators * inner, accumulators, inner, main.full(1.0), loads / (accumulators * inner)
        )

    def _vectorised_around(self, vector: Floats, depth: int) -> RegisterTile | None:
        """What the compiler makes of sums (inside of ``depth``) that the schedule does not vectorise: where there are
        few it unrolls them all, and vectorises the loop around them, with what writes the sums back, if it is a serial
        one along the result's rows and no producer stands in it. That straight-line code is not counted as the
        schedule's. ``vector`` is 1 where it does not; None where it never does."""
        main = self._main
        if not main.depth:
            return None
        inside = main.within[depth]
        small = (vector == 1.0) & (inside <= FULLY_UNROLLED) & (main.reduced_points(depth) <= FULLY_UNROLLED_STEPS)
        serial = np.array([kind == "serial" for kind in main.kinds])
        at = np.maximum(fitting_depth(main.within, inside) - 1, 0)
        for beside in self._beside:
            if beside.fixed is None:  # a producer that stands in that loop, or is inlined
                small &= (beside.depth <= at) & ~beside.inlined
        if not (small & serial[at]).any():
            return None
        tile = self._compiler_tile(inside)
        taken = small & serial[at] & (tile.vector >= LEAST_ROW * self._device.lanes)
        loads = tile.loads * AROUND_LOADS
        return replace(
            tile, vector=np.where(taken, tile.vector, 1.0), vectors=np.where(taken, tile.vectors, 1.0), loads=loads
        )

    def _operands(self) -> list[tuple[Access, Floats]]:
        """The accesses that are only read, with their footprints."""
        written = {access.buffer for access in self._statement.accesses if access.write}
        return [each for each in self._accesses() if not each[0].write and each[0].buffer not in written]

    def _conflicts(self, updates: Floats, operations: Floats) -> Floats:
        """Accesses of one operation, each times the cache lines too many in the sets that it falls into, ``(n,)``.

        Addresses a page apart share a set of the L1 cache. Where the rows of a tile lie a power of two apart, they
        fall into a few sets and push each other out, although the tile is small.
        """
        main, statement = self._main, self._statement
        digits = in_digits(statement, main.inside_at(self._step))
        ways = self._device.l1_bytes / PAGE_BYTES
        total = main.full(0.0)
        for access, elements in self._accesses():
            read_back = any(access.buffer == other.buffer for other in statement.accesses if other.write)
            if access.packed or access.scope != "global" or (read_back and not access.write):
                continue
            lines = lines_per_set(statement, access, digits, PAGE_BYTES, LINE_BYTES)
            if lines is None:
                continue
            excess = np.maximum(lines - ways * CONFLICT_FREE_SHARE, 0.0)
            if access.buffer in self._local:
                # A buffer that lives inside of the nest is laid out tile by tile.
                excess = excess * np.isinf(self._local[access.buffer])
            often = updates if access.write else main.pick(elements, self._step) / operations
            total += np.minimum(excess, MAX_CONFLICTS) * often
        return total

    def _unroll_limit(self) -> Floats:
        """Iterations up to which loops are unrolled by the unroll Choice, shape ``(n,)``; 0 where there is none."""
        limit = unroll_limit(self._sketch, self._statement, self._matrix, self._main.extents.dtype)
        return self._main.full(0.0) if limit is None else limit

    def _explicitly_unrolled(self, vector: Floats, limit: Floats) -> Floats:
        """Vector iterations of the largest sub-nest (reduction loops too) unrolled up to ``limit``, at least 1."""
        depth = fitting_depth(self._main.within, limit * vector)
        return np.maximum(self._main.pick(self._main.within, depth) / vector, 1.0)

    # -- compute and memory of the main statement -----------------------------------------------------------------

    def _compute(self) -> Floats:
        inner = self._inner
        operations = self._main.points() * inner.vectors / inner.vector
        flop_share = max(self._statement.flop_per_point, 1.0) / FLOP_PER_FMA
        work = operations * inner.cycles * (flop_share / (self._hertz * self._device.cores)) / self._busy
        for beside in self._beside:
            if beside.fixed is None:
                work = work * (1.0 + (INLINED_FACTOR - 1.0) * beside.inlined)
        return work

    def _fills(self) -> None:
        """Traffic of the main statement, its seconds, and all of its seconds."""
        device = self._device
        local = self._local
        self._into_l1, self._held_l1 = self._traffic(device.l1_bytes, local)
        self._into_l2, self._held_l2 = self._traffic(device.l2_bytes, local)
        from_memory, _ = self._traffic(device.l3_bytes or device.l2_bytes, local)
        share = self._busy * (self._hertz * device.cores)
        self._l1_secs = self._into_l1 / (share * L1_FILL_BYTES_PER_CYCLE)
        self._l2_secs = self._into_l2 / (share * L2_FILL_BYTES_PER_CYCLE)
        self._memory_secs = from_memory / device.bandwidth_bytes
        slowest = smooth_max(self._compute_secs, self._l1_secs, self._l2_secs, self._memory_secs)
        self._main_secs = slowest + EXPOSED_FILLS * (self._l1_secs + self._l2_secs)

    def _local_bytes(self) -> dict[str, Floats]:
        """Bytes of the buffers that another statement makes or takes right here; infinite where it is elsewhere."""
        local: dict[str, Floats] = {}
        for beside in self._beside:
            buffers = {access.buffer for access in beside.statement.accesses}
            for access, elements in self._accesses():
                if access.buffer in buffers and beside.fixed != 0:
                    size = self._row(elements, beside) * access.element_bytes
                    local[access.buffer] = np.where(beside.inside, size, np.inf) if beside.fixed is None else size
        return local

    def _traffic(self, capacity: float, local: dict[str, Floats]) -> tuple[Floats, Floats]:
        """Bytes moved into a cache of ``capacity`` bytes (whole lines), and the working set that stays in it.

        ``local``: see :meth:`_local_bytes`; those that fit never leave the cache.
        """
        main, usable = self._main, USABLE_CACHE * capacity
        fits: int | Ints = 0 if (self._resident[0] <= usable).all() else fitting_depth(self._resident, usable)
        inside = main.inside(fits) if isinstance(fits, int) else main.inside_at(fits)
        total = main.full(0.0)
        moved_by_access: dict[_Key, Floats] = {}
        for access, elements in self._accesses():
            if access.scope == "local":
                continue
            key = (access.buffer, access.index)
            if key not in moved_by_access:
                if isinstance(fits, int):
                    moved = elements[fits]
                else:
                    moved = moved_elements(main, elements, fits, self._movers_of(key, elements))
                run = contiguous_run(main, access, fits, inside)
                moved = moved * access.element_bytes / line_share(run, access)
                if access.buffer in local:
                    moved = moved * (local[access.buffer] > usable)
                moved_by_access[key] = moved
            total += moved_by_access[key]
        return total, main.pick(self._resident, fits) if not isinstance(fits, int) else self._resident[fits]

    def _movers_of(self, key: _Key, elements: Floats) -> NDArray[np.uint8]:
        if key not in self._movers:
            self._movers[key] = innermost_movers(self._main, elements)
        return self._movers[key]

    # -- the other statements -------------------------------------------------------------------------------------

    def _beside_secs(self, beside: Beside) -> tuple[Floats, Floats]:
        """Seconds of a producer or consumer of the main statement, and the elements of its vector loop, each (n,).

        Inside the main nest its data are in cache, and it runs over the region of the buffer that the two share, row by
        row; with a nest of its own its loops are fused and its data come from memory or the last cache.
        """
        device, statement = self._device, beside.statement
        per_second = self._hertz * device.cores
        lanes = float(device.lanes)
        # A sum over the innermost loop is a chain: each addition waits for the one before, and none is vectorised.
        chain = _sums_innermost(statement)
        vector_cycles = FMA_LATENCY * lanes if chain else max(len(statement.accesses), 1) / LOAD_PORTS
        if beside.fixed is None or beside.fixed > 0:
            row = self._row_run(beside)
            row = np.where(beside.inside | (beside.fixed is not None), np.maximum(row, self._inner.compiled_row), row)
            vectors = row * (1.0 / lanes) if chain else np.ceil(row * (1.0 / lanes))
            cycles = beside.points / row * (vectors * vector_cycles + ROW_CYCLES)
            inside = cycles / self._busy * (1.0 / per_second)
            if beside.fixed is not None:
                return inside, row
        constant = all(loop.column is None for loop in statement.loops)
        loops = nest(statement, self._matrix[:1] if constant else self._matrix, self._main.extents.dtype)
        busy = pruner.utilisation(parallel_extent(loops), device.cores)
        moved = float(sum(bytes_of(access) for access in statement.accesses if access.scope == "global"))
        if moved > max(device.l3_bytes, device.l2_bytes):
            memory = self._main.full(moved / device.bandwidth_bytes)
        else:
            memory = moved / (L2_FILL_BYTES_PER_CYCLE * per_second) / busy
        points = loops.points()
        alone = np.maximum(points * (vector_cycles / lanes / per_second) / busy, memory) + LAUNCH_SECS
        if beside.fixed == 0:
            return self._main.full(0.0) + alone, self._main.full(lanes)
        return np.where(beside.inside, inside, alone * ~beside.inlined), np.where(beside.inside, row, lanes)

    def _row_run(self, beside: Beside) -> Floats:
        """Contiguous elements of the region that a statement inside of the main one works on, shape ``(n,)``."""
        buffers = {access.buffer for access in beside.statement.accesses}
        for access in self._statement.accesses:
            if access.buffer in buffers:
                depth = beside.fixed if beside.fixed is not None else np.maximum(beside.depth, 0)
                return contiguous_run(self._main, access, depth)
        return self._main.full(1.0)

    # -- what the learned models want to know ---------------------------------------------------------------------

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
        """S1 to S9 of every statement, the main one first, as Pruner's equation 1 sums over them.

        A statement beside the main one works on one vector at a time: an operand and a result in registers, one
        operation a step, nothing held. Inside the main nest it moves nothing into L2 and runs in its parallel loops;
        with a nest of its own it moves each buffer once; inlined, it is computed wherever the main one reads it.
        """
        return (*self.symbols(), *(self._symbols_beside(beside) for beside in self._beside))

    def _symbols_beside(self, beside: Beside) -> Symbols:
        main, statement = self._main, beside.statement
        constant = all(loop.column is None for loop in statement.loops)
        loops = nest(statement, self._matrix[:1] if constant else self._matrix, main.extents.dtype)
        one = main.full(1.0)
        row = self._row_run(beside)
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
        return [contiguous_run(self._main, access, self._step) for access in self._statement.accesses]

    def core(self) -> dict[str, Floats]:
        """The terms that say most of a candidate, by the names of :data:`CORE`, each ``(n,)``, positive or zero."""
        main, inner = self._main, self._inner
        inlined = main.full(1.0)
        for beside in self._beside:
            if beside.fixed is None:
                inlined = np.maximum(inlined, 1.0 + beside.inlined)
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
        for at, (access, elements) in enumerate(self._accesses()):
            run = self._runs[at]
            terms[f"a{at}.run"] = run
            terms[f"a{at}.step"] = main.pick(elements, self._step)
            if access.write:
                terms[f"a{at}.lines"] = line_share(run, access)
        return terms
