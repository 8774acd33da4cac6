"""What a candidate costs on a device, in closed form: the draft's analytic model.

:func:`analyse` evaluates a whole decision matrix and returns the predicted latency, Pruner's symbols, the intermediate
terms (they are the features of the learned models too) and which candidates are worth building at all.

On a CPU the level L0 of the analyzer is refined to a model of the register-blocked inner loop, because that is what
decides there: cycles per vector operation from the fused-multiply-add ports and their latency (too few independent
accumulators leave them idle), loads, stores and spilled registers; then traffic into L1, L2 and from memory by the
largest sub-nest that fits; then parallel imbalance. On CUDA it is Pruner's equation 1 with a bounded L0 term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import INLINE_LOCATION, Access, Choice, Sketch, Statement
from policies import symbols as pruner
from policies.quantities import (
    Floats,
    Ints,
    Nest,
    contiguous_run,
    enclosing_depth,
    fitting_depth,
    footprint,
    moved_elements,
    nest,
    parallel_extent,
    touched_elements,
    unit_stride,
    vector_extent,
    working_set,
)
from policies.sampling import Matrix
from policies.symbols import Symbols

FMA_PORTS = 2
FMA_LATENCY = 4
LOAD_PORTS = 2
FLOP_PER_FMA = 2
L1_FILL_BYTES_PER_CYCLE = 48.0
L2_FILL_BYTES_PER_CYCLE = 16.0
EXPOSED_FILLS = 0.1
"""Share of the time to fill caches that prefetching does not hide behind the computation."""
SPILL_CYCLES = 4.0
"""Cycles that one spilled accumulator adds to a vector operation on it: it is stored and loaded again in a chain."""
USABLE_CACHE = 0.75
"""Share of a cache that a tile can count on."""
LINE_BYTES = pruner.MEMORY_LINE_BYTES["cpu"]
STRAIGHT_LINE_OPERATIONS = 128.0
"""Unrolled vector operations up to which a compiler allocates registers well and the decoded code stays cached."""
UNROLL_PENALTY = 0.35
"""Slowdown for each doubling beyond them (measured: 1.4 to 3 times at 400 to 900 operations)."""
MAX_UNROLLED_POINTS = 1500
"""Straight-line vector operations beyond which the compiler takes seconds and the instruction cache overflows."""
MAX_SPILL_FACTOR = 1.5
"""Accumulators beyond this multiple of the registers are never worth building."""
INLINED_FACTOR = 2.0
"""How much longer the inner loop takes when it computes an inlined producer (padding: a condition) at every point."""
MAX_VTHREADS = 64
LAUNCH_SECS = 3e-6
"""Starting a parallel region or a kernel."""


@dataclass(frozen=True)
class Analysis:
    """``latency_secs`` (n,), positive and finite; ``feasible`` (n,); ``terms`` by name, each (n,)."""

    latency_secs: Floats
    feasible: NDArray[np.bool_]
    terms: dict[str, Floats]
    symbols: tuple[Symbols, ...]


def latency_secs(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
    """Predicted seconds per run of every candidate, shape ``(n,)``. Needs a described sketch (ValueError else)."""
    return analyse(sketch, matrix, device).latency_secs


def feasible(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> NDArray[np.bool_]:
    """Which candidates are worth building, shape ``(n,)``; all of them where the sketch is not described."""
    if not sketch.statements:
        return np.ones(len(matrix), dtype=bool)
    return analyse(sketch, matrix, device).feasible


def analyse(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Analysis:
    """Evaluate the analytic model; ValueError where the sketch has no statements."""
    if not sketch.statements:
        raise ValueError(f"sketch {sketch.index} is not described symbolically: {sketch.undescribed}")
    return _analyse_cuda(sketch, matrix, device) if device.kind == "cuda" else _analyse_cpu(sketch, matrix, device)


def _unroll_limit(sketch: Sketch, statement: Statement, matrix: Matrix) -> Floats:
    """Iterations up to which loops are unrolled by the unroll Choice, shape ``(n,)``; 0 where there is none."""
    if statement.unroll_column is None:
        return np.zeros(len(matrix))
    decision = sketch.decisions[sketch.offsets.index(statement.unroll_column)]
    if not isinstance(decision, Choice):
        raise ValueError(f"column {statement.unroll_column} of {statement.name} is not a choice")
    return np.array(decision.values, dtype=np.float64)[matrix[:, statement.unroll_column]]


@dataclass(frozen=True)
class _Registers:
    """The register-blocked inner loop of a statement; every field (n,)."""

    vector: Floats
    vectors: Floats
    accumulators: Floats
    needed: Floats
    step_operations: Floats
    loads: Floats
    stores: Floats
    cycles: Floats
    operations: Floats
    unrolled: Floats


def _registers(
    sketch: Sketch, matrix: Matrix, loops: Nest, touched: list[Floats], device: DeviceAbstraction
) -> _Registers:
    """Cycles of a vector operation in the innermost loops, from ports, latency, loads, stores and spills."""
    statement = loops.statement
    vector = vector_extent(loops)
    vectors = np.ceil(vector / device.lanes)
    axis = statement.loops[loops.kept[-1]].axis if loops.kept else 0
    written = {access.buffer for access in statement.accesses if access.write}
    step = loops.step_depth
    step_operations = loops.spatial_points(step) / vector * vectors
    declared = statement.accumulator_depth is not None
    tile_depth = loops.compact_depth(statement.accumulator_depth) if statement.accumulator_depth is not None else step
    accumulators = loops.spatial_points(tile_depth) / vector * vectors

    loads = np.zeros(loops.count)
    operands = np.zeros(loops.count)
    for access, elements in zip(statement.accesses, touched, strict=True):
        if access.write or access.buffer in written:
            continue
        inner = elements[step]
        if loops.kept and unit_stride(statement, access, axis):
            loaded = inner / vector * vectors
            # The vectors of one row of the tile are kept and used for every other row.
            operands = operands + np.minimum(loaded, vectors)
        else:
            loaded = inner  # a broadcast for each element, or a gather of single elements
        loads += loaded
    loads = loads / step_operations

    reduced = np.ones(loops.count)
    for at in range(step - 1, -1, -1):
        if not loops.reduction[at]:
            break
        reduced = reduced * loops.extents[at]
    if declared:
        held = np.ones(loops.count, dtype=bool)
        reduced = (
            np.array([loops.extents[at] for at in range(tile_depth, loops.depth) if loops.reduction[at]])
            .reshape(-1, loops.count)
            .prod(axis=0)
        )
        unrolled_loops = [at for at, kind in enumerate(loops.kinds) if kind == "unroll"]
        unrolled = loops.extents[unrolled_loops].prod(axis=0) * vectors
    else:
        # The compiler keeps the accumulators in registers over the innermost reduction only where the loops inside it
        # are fully unrolled, which it does by itself up to a handful of iterations.
        limit = np.maximum(_unroll_limit(sketch, statement, matrix), 8.0)
        held = (step_operations <= limit) & (accumulators <= device.registers)
        unrolled = vectors * _explicitly_unrolled(loops, vector, _unroll_limit(sketch, statement, matrix))
    updates = np.where(held, 1.0 / reduced, 1.0) if step else np.ones(loops.count)
    needed = accumulators + operands + 1.0
    spilled = np.where(held, np.maximum(needed - device.registers, 0.0) / np.maximum(accumulators, 1.0), 0.0)
    loads = loads + updates + spilled
    stores = updates + spilled
    independent = np.maximum(np.where(held, np.minimum(accumulators, device.registers), step_operations), 1.0)
    ports = np.full(loops.count, 1.0 / FMA_PORTS)
    cycles = _smooth_max(ports, FMA_LATENCY / independent, loads / LOAD_PORTS, stores) + 1.0 / step_operations
    cycles = cycles + SPILL_CYCLES * spilled
    cycles = cycles * (
        1.0 + UNROLL_PENALTY * np.maximum(np.log2(np.maximum(unrolled, 1.0) / STRAIGHT_LINE_OPERATIONS), 0.0)
    )
    operations = loops.points() / vector * vectors
    return _Registers(
        vector, vectors, accumulators, needed, step_operations, loads, stores, cycles, operations, unrolled
    )


def _explicitly_unrolled(loops: Nest, vector: Floats, limit: Floats) -> Floats:
    """Iterations of the largest sub-nest (reduction loops too) that is unrolled up to ``limit``, at least 1, (n,)."""
    largest = np.ones(loops.count)
    inside = np.ones(loops.count)
    for extent in loops.extents[::-1]:
        inside = inside * extent
        largest = np.where(inside / vector <= limit, np.maximum(inside / vector, 1.0), largest)
    return largest


def _smooth_max(*terms: Floats) -> Floats:
    """Norm of order 4: close to the largest term, a little above where several are alike (they overlap badly)."""
    total = np.zeros_like(terms[0])
    for term in terms:
        squared = term * term
        total = total + squared * squared
    return np.asarray(np.sqrt(np.sqrt(total)))


def _line_share(run: Floats, access: Access) -> Floats:
    """Share of the moved cache lines that is used, for a contiguous run of elements: Pruner's P_l2m, in (0, 1]."""
    return pruner.utilisation(np.maximum(run, 1.0) * access.element_bytes, LINE_BYTES)


def _traffic(
    loops: Nest, touched: list[Floats], resident: Floats, capacity: float, local: dict[str, Floats]
) -> tuple[Floats, Floats]:
    """Bytes moved into a cache of ``capacity`` bytes (whole lines), and the working set that stays in it.

    ``local``: bytes of the buffers that another statement produces right here; those that fit never leave the cache.
    """
    fits = fitting_depth(resident, USABLE_CACHE * capacity)
    columns = np.arange(loops.count)
    moved = np.zeros(loops.count)
    for access, elements in zip(loops.statement.accesses, touched, strict=True):
        if access.scope == "local":
            continue
        size = moved_elements(loops, elements, fits) * access.element_bytes
        run = _run_at(loops, access, fits)
        size = size / _line_share(run, access)
        if access.buffer in local:
            size = np.where(local[access.buffer] <= USABLE_CACHE * capacity, 0.0, size)
        moved += size
    return moved, resident[fits, columns]


def _run_at(loops: Nest, access: Access, depth: Ints) -> Floats:
    """Contiguous run at a depth that differs between candidates, shape ``(n,)``."""
    run = np.ones(loops.count)
    for each in np.unique(depth):
        rows = depth == each
        run[rows] = contiguous_run(loops, access, int(each))[rows]
    return run


def _located(sketch: Sketch, matrix: Matrix, main: Nest, touched: list[Floats]) -> tuple[list[Ints], list[Floats]]:
    """For every statement after the main one: how many of the main loops enclose it, and how many points it computes.

    Inside a loop it computes what the main statement touches there of the buffer they share, each time anew.
    """
    columns = np.arange(main.count)
    depths, points = [], []
    shared = {access.buffer: elements for access, elements in zip(main.statement.accesses, touched, strict=True)}
    for statement in sketch.statements[1:]:
        depth = enclosing_depth(sketch, main, statement, matrix)
        own = float(np.prod([axis.extent for axis in statement.axes]))
        wanted = np.full(main.count, own)
        for access in statement.accesses:
            if access.buffer in shared:
                inside = np.maximum(depth, 0)
                elements = shared[access.buffer][inside, columns] * main.outer[inside, columns]
                wanted = np.where(depth > 0, np.maximum(elements, own if access.write else 1.0), wanted)
                break
        depths.append(depth)
        points.append(wanted)
    return depths, points


def _analyse_cpu(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Analysis:
    statement = sketch.statements[0]
    main = nest(statement, matrix)
    touched = [footprint(main, access) for access in statement.accesses]
    resident = working_set(main, touched)
    hertz = device.peak_flops / (device.cores * device.lanes * FMA_PORTS * FLOP_PER_FMA)
    depths, points = _located(sketch, matrix, main, touched)

    fusible = np.full(main.count, main.depth, dtype=np.int64)
    for depth in depths:
        fusible = np.where(depth > 0, np.minimum(fusible, depth), fusible)
    parallel = parallel_extent(main, fusible)
    busy = pruner.utilisation(parallel, device.cores)

    inner = _registers(sketch, matrix, main, touched, device)
    flop_share = max(statement.flop_per_point, 1.0) / FLOP_PER_FMA
    inlined = np.zeros(main.count, dtype=bool)
    for depth in depths:
        inlined |= depth == INLINE_LOCATION
    work = inner.operations * flop_share * np.where(inlined, INLINED_FACTOR, 1.0)
    compute = work * inner.cycles / (hertz * device.cores * busy)

    columns = np.arange(main.count)
    local: dict[str, Floats] = {}
    for other, depth in zip(sketch.statements[1:], depths, strict=True):
        for access, elements in zip(statement.accesses, touched, strict=True):
            if any(access.buffer == its.buffer for its in other.accesses):
                size = elements[np.maximum(depth, 0), columns] * access.element_bytes
                local[access.buffer] = np.where(depth > 0, size, np.inf)
    into_l1, held_l1 = _traffic(main, touched, resident, device.l1_bytes, local)
    into_l2, held_l2 = _traffic(main, touched, resident, device.l2_bytes, local)
    last_level = device.l3_bytes or device.l2_bytes
    from_memory, _ = _traffic(main, touched, resident, last_level, local)
    share = hertz * device.cores * busy
    l1_secs = into_l1 / (L1_FILL_BYTES_PER_CYCLE * share)
    l2_secs = into_l2 / (L2_FILL_BYTES_PER_CYCLE * share)
    memory_secs = from_memory / device.bandwidth_bytes
    main_secs = _smooth_max(compute, l1_secs, l2_secs, memory_secs) + EXPOSED_FILLS * (l1_secs + l2_secs)

    other_secs = np.zeros(main.count)
    terms: dict[str, Floats] = {}
    for at, (other, depth, wanted) in enumerate(zip(sketch.statements[1:], depths, points, strict=True), start=1):
        secs, width = _elementwise_secs(other, matrix, depth, wanted, parallel, device, hertz)
        other_secs += secs
        terms |= {
            f"s{at}.secs": secs,
            f"s{at}.points": wanted,
            f"s{at}.depth": np.asarray(2.0**depth, dtype=np.float64),
            f"s{at}.vector": width,
        }

    runs = [contiguous_run(main, access, main.step_depth) for access in statement.accesses]
    reads = [run for run, access in zip(runs, statement.accesses, strict=True) if not access.write] or runs
    shortest = np.minimum.reduce(reads) if reads else np.ones(main.count)
    total = main_secs + other_secs + LAUNCH_SECS
    terms |= {
        "latency": total,
        "compute_secs": compute,
        "l1_secs": l1_secs,
        "l2_secs": l2_secs,
        "memory_secs": memory_secs,
        "other_secs": other_secs,
        "cycles": inner.cycles,
        "parallel": parallel,
        "busy": busy,
        "vector": inner.vector,
        "lane_use": inner.vector / (inner.vectors * device.lanes),
        "accumulators": inner.accumulators,
        "registers_over": np.maximum(inner.needed / device.registers, 1.0),
        "step_operations": inner.step_operations,
        "loads": inner.loads,
        "stores": inner.stores,
        "unrolled": inner.unrolled,
        "inlined": np.where(inlined, 2.0, 1.0),
        "held_l1": held_l1,
        "held_l2": held_l2,
        "intensity": statement.flop_per_point * main.points() / np.maximum(into_l2, 1.0),
    }
    for at, (access, run, elements) in enumerate(zip(statement.accesses, runs, touched, strict=True)):
        terms[f"a{at}.run"] = run
        terms[f"a{at}.step"] = elements[main.step_depth]
        if access.write:
            terms[f"a{at}.lines"] = _line_share(run, access)
    symbols = Symbols(
        s1=inner.needed,
        s2=inner.step_operations,
        s3=held_l2,
        s4=inner.vector,
        s5=into_l2,
        s6=parallel,
        s7=shortest,
        s8=np.full(main.count, statement.flop_per_point) * main.points(),
    )
    tile_limit = MAX_SPILL_FACTOR * device.registers
    good = inner.unrolled <= MAX_UNROLLED_POINTS
    if statement.accumulator_depth is not None:
        good &= inner.accumulators <= tile_limit
    return Analysis(total, good, terms, (symbols,))


def _elementwise_secs(
    statement: Statement,
    matrix: Matrix,
    depth: Ints,
    points: Floats,
    parallel: Floats,
    device: DeviceAbstraction,
    hertz: float,
) -> tuple[Floats, Floats]:
    """Seconds of a producer or consumer of the main statement, and the extent of its vector loop, each (n,).

    Inside the main nest its data are in cache; with a nest of its own they come from memory or the last cache.
    """
    loops = nest(statement, matrix)
    vector = np.minimum(vector_extent(loops), points)
    use = np.where(vector > 1.0, vector / np.ceil(vector / device.lanes), 1.0)
    work = points / use * max(len(statement.accesses), 1) / LOAD_PORTS
    inside = depth > 0
    own = parallel_extent(loops, np.full(loops.count, loops.depth, dtype=np.int64))
    busy = pruner.utilisation(np.where(inside, parallel, own), device.cores)
    compute = work / (hertz * device.cores * busy)
    moved = sum(
        float(np.prod(access.shape)) * access.element_bytes for access in statement.accesses if access.scope == "global"
    )
    rate = (
        device.bandwidth_bytes
        if moved > max(device.l3_bytes, device.l2_bytes)
        else (L2_FILL_BYTES_PER_CYCLE * hertz * device.cores * busy)
    )
    alone = np.maximum(compute, moved / rate) + LAUNCH_SECS
    secs = np.where(inside, compute, np.where(depth == INLINE_LOCATION, 0.0, alone))
    return secs, vector


def _analyse_cuda(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Analysis:
    """Pruner's analyzer on the main statement, its L0 term bounded to ``S2 / (S1 + S2)``."""
    statement = sketch.statements[0]
    main = nest(statement, matrix)
    touched = [footprint(main, access) for access in statement.accesses]
    blocks, threads = main.product("blockIdx.x"), main.product("threadIdx.x")
    vthreads = main.product("vthread")
    bound = max((at + 1 for at, kind in enumerate(main.kinds) if kind != "serial"), default=0)
    written = {access.buffer for access in statement.accesses if access.write}
    flop = statement.flop_per_point * main.points()

    reads = [
        (access, elements)
        for access, elements in zip(statement.accesses, touched, strict=True)
        if not access.write and access.buffer not in written
    ]
    accumulators = main.spatial_points(bound) * vthreads
    operands = sum((elements[main.step_depth] for _, elements in reads), np.zeros(main.count))
    # A block stages what all its threads need for one iteration of the outer reduction loops, which follow the bound
    # loops: every axis runs over its whole extent inside the block, less those loops.
    block_depth = max((at + 1 for at, kind in enumerate(main.kinds) if kind == "blockIdx.x"), default=0)
    staged = main.inside[block_depth].copy()
    for at in range(bound, main.depth):
        if not main.reduction[at]:
            break
        axis = statement.loops[main.kept[at]].axis
        if main.kept[at] == next(k for k in main.kept if statement.loops[k].axis == axis):
            staged[axis] /= main.extents[at]
    rounds = main.points(block_depth) / staged.prod(axis=0)
    shared = np.zeros(main.count)
    moved = np.zeros(main.count)
    run = np.full(main.count, np.inf)
    for access, _ in reads:
        stage = touched_elements(statement, access, staged)
        shared += stage * access.element_bytes
        moved += stage * rounds * blocks * access.element_bytes
        run = np.minimum(run, contiguous_run(main, access, bound))
    for access, elements in zip(statement.accesses, touched, strict=True):
        if access.write:
            moved += elements[0] * access.element_bytes
    symbols = Symbols(
        s1=accumulators + operands,
        s2=main.spatial_points(main.step_depth) * vthreads,
        s3=shared,
        s4=threads,
        s5=moved,
        s6=blocks,
        s7=np.where(np.isfinite(run), run, 1.0),
        s8=flop,
    )
    limit = pruner.limits(device)
    terms = pruner.penalties(symbols, limit)
    bounded = symbols.s2 / np.maximum(symbols.s1 + symbols.s2, 1.0)
    compute = flop / (limit.peak_flops * bounded * terms.l1_c * terms.alpha_l1 * terms.l2_c)
    memory = moved / (limit.bandwidth_bytes * terms.l0_m * terms.l1_m * terms.l2_m)
    total = compute + memory + LAUNCH_SECS
    good = (shared <= device.l1_bytes) & (threads <= (device.max_threads_per_block or 1024))
    good &= (symbols.s1 <= limit.m_l0) & (symbols.s1 * threads <= device.registers) & (vthreads <= MAX_VTHREADS)
    return Analysis(
        total,
        good,
        {
            "latency": total,
            "compute_secs": compute,
            "memory_secs": memory,
            "registers": symbols.s1,
            "step_operations": symbols.s2,
            "shared": shared,
            "threads": threads,
            "moved": moved,
            "blocks": blocks,
            "run": symbols.s7,
            "l1_c": terms.l1_c,
            "alpha": terms.alpha_l1,
            "l2_c": terms.l2_c,
            "l2_m": terms.l2_m,
        },
        (symbols,),
    )
