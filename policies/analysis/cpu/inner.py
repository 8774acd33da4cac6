"""L0 of the CPU model, the registers: cycles of a vector operation in the innermost loops.

``n`` candidates; every vector has the shape ``(n,)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from policies.analysis.cpu.parts import (
    LINE_BYTES,
    InnerLoop,
    ProducerConsumer,
    choose,
    instructions,
    memory_parts,
    smooth_max,
)
from policies.analysis.cpu.program import Program
from policies.analysis.cpu.sums import has_partial_sums, sum_loops
from policies.analysis.cpu.tiles import compiler_tile, scheduled_tile, unrolled_tile, vectorised_around
from policies.analysis.quantities import fitting_depth, in_digits, lines_per_set, vector_extent
from policies.arrays import Floats


def inner_loop(
    program: Program, beside_statements: Sequence[ProducerConsumer], local: Mapping[str, Floats]
) -> InnerLoop:
    """Cycles of a vector operation in the innermost loops, from ports, latency, loads, stores and spills."""
    constants = program.constants
    main, statement = program.main, program.statement
    registers = float(program.device.registers)
    vector = vector_extent(main)
    tile = scheduled = scheduled_tile(program, vector)
    compiled_row = main.full(1.0)
    limit = program.unroll_limit(statement)
    if statement.accumulator_depth is not None:
        held: NDArray[np.bool_] | None = None  # everywhere
        unrolled = main.product("unroll") * tile.vectors
        around = vectorised_around(program, beside_statements, vector, main.compact_depth(statement.accumulator_depth))
        if around is not None:
            tile = choose(around.vector > 1.0, around, tile)
            compiled_row = around.vector
    else:
        # The compiler keeps the accumulators in registers over the innermost reduction only if the loops inside it are
        # fully unrolled. It unrolls them by itself up to a handful of iterations.
        held = tile.operations <= np.maximum(limit, constants.unrolled_by_compiler)
        unrolled = tile.vectors * _explicitly_unrolled(program, vector, limit)
        whole = unrolled_tile(program, vector, limit)
        in_registers = (whole.operations > tile.operations) & (whole.accumulators + whole.operands < registers)
        tile = choose(in_registers, whole, tile)
        held |= in_registers
        compiled = compiler_tile(program, np.maximum(limit, _unrolled_sums(program)))
        chosen = (vector == 1.0) & (compiled.vector > 1.0)
        tile = choose(chosen, compiled, tile)
        held = (held | chosen) & (tile.accumulators <= registers)
    reduced = tile.reduced
    parts = memory_parts(tile.vector, program.device.lanes)
    updates = 1.0 / reduced if held is None else np.where(held, 1.0 / reduced, 1.0)
    needed = tile.accumulators + tile.operands + 1.0
    spilled = np.maximum(needed - registers, 0.0) / np.maximum(tile.accumulators, 1.0)
    independent = np.minimum(tile.accumulators, registers)
    if held is not None:
        spilled = spilled * held
        independent = np.where(held, independent, tile.operations)
    # Where the reduction is short, the processor runs ahead into the next tile.
    independent = np.maximum(independent, constants.window_operations / reduced)
    loads = tile.loads + updates * parts + spilled
    stores = updates * parts + spilled
    cycles = smooth_max(
        instructions(statement.flop_per_point, constants) * program.operation_cost / constants.fma_ports,
        constants.fma_latency / np.maximum(independent, 1.0),
        loads * (1.0 / constants.load_ports),
        stores,
    )
    cycles = cycles + constants.loop_cycles / tile.operations + constants.spill_cycles * spilled
    cycles = cycles + constants.conflict_cycles * _conflicts(program, local, updates, scheduled.operations)
    doublings = np.log2(np.maximum(unrolled * (1.0 / constants.straight_line_operations), 1.0))
    cycles = cycles * (1.0 + constants.unroll_penalty * doublings)
    cycles = np.where(
        _odd(vector, program.device.lanes), cycles * cycles.dtype.type(constants.odd_vector_factor), cycles
    )
    return InnerLoop(
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


def _unrolled_sums(program: Program) -> Floats:
    """Iterations that the compiler unrolls by itself, ``(n,)``: more for partial sums, whose loops enclose those of the
    reduction."""
    constants = program.constants
    few = program.main.full(constants.unrolled_by_compiler)
    sums = sum_loops(program.main) if has_partial_sums(program.statement) else None
    return (
        few
        if sums is None
        else np.where(sums.steps <= constants.fully_unrolled_steps, np.maximum(few, sums.steps), few)
    )


def _odd(vector: Floats, lanes: int) -> NDArray[np.bool_]:
    """True where the schedule's vectors are longer than a register and their length is not a power of two."""
    length = vector.astype(np.int64)
    return np.asarray((length > lanes) & (length & (length - 1) != 0))


def _conflicts(program: Program, local: Mapping[str, Floats], updates: Floats, operations: Floats) -> Floats:
    """Accesses of one operation, each multiplied by the excess cache lines in the sets that it uses, ``(n,)``.

    Addresses a page apart share a set of the L1 cache. If the rows of a tile lie a power of two apart, they fall into a
    few sets and evict each other, although the tile is small.
    """
    constants = program.constants
    main, statement = program.main, program.statement
    digits = in_digits(statement, main.inside_at(program.step))
    ways = program.device.l1_bytes / constants.page_bytes
    total = main.full(0.0)
    for access, elements in program.accesses():
        read_back = any(access.buffer == other.buffer for other in statement.accesses if other.write)
        if access.packed or access.scope != "global" or (read_back and not access.write):
            continue
        lines = lines_per_set(statement, access, digits, constants.page_bytes, LINE_BYTES)
        if lines is None:
            continue
        excess = np.maximum(lines - ways * constants.conflict_free_share, 0.0)
        if access.buffer in local:
            # A buffer that lives inside the nest is laid out tile by tile.
            excess = excess * np.isinf(local[access.buffer])
        often = updates if access.write else main.pick(elements, program.step) / operations
        total += np.minimum(excess, constants.max_conflicts) * often
    return total


def _explicitly_unrolled(program: Program, vector: Floats, limit: Floats) -> Floats:
    """Vector iterations of the largest sub-nest (reduction loops too) unrolled up to ``limit``, at least 1."""
    depth = fitting_depth(program.main.within, limit * vector)
    return np.maximum(program.main.pick(program.main.within, depth) / vector, 1.0)
