"""Constants of the CPU analyzer. They describe the processors that it was developed on, and the compiler.

:data:`policies.analysis.cpu.fitted.FITTED` has their values and says where these come from; ``python -m bench
fit-analyzer`` fits them anew. Quantities that the probe of a device measures (peak, caches, lanes, registers) are not
constants.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MoveConstants:
    """Constants of statements that only move data (:mod:`policies.analysis.cpu.moves`)."""

    cycles: float
    """Cycles to load an element and to put it into its place in a vector."""
    iteration_cycles: float
    """Cycles for each iteration of the parallel loop."""
    line_cycles: float
    """Cycles for each cache line that is read."""
    store_cycles: float
    """Cycles for each store of a register or a part of one."""
    launch_secs: float
    """Seconds to start the statement; the shortest recorded transposes take 2 microseconds in all."""


@dataclass(frozen=True)
class RowWiseConstants:
    """Constants of row-wise kernels (:mod:`policies.analysis.cpu.row_wise`)."""

    clock_hertz: float
    """Clock in which chains of instructions are counted, in cycles per second."""
    call_operations: float
    """Additions that a function such as exp takes."""
    division_operations: float
    """Additions that a division takes."""
    chain_cycles: float
    """Cycles that a vector addition waits for the one before it. Work on the other rows that go together can fill
    them."""
    total_cycles: float
    """Cycles of such a wait when partial sums are added up."""
    total_row_cycles: float
    """Cycles of the last additions, for each row and each number that is added."""
    group_cycles: float
    """Cycles of a loop's own instructions for each vector."""
    step_cycles: float
    """Cycles to start a loop."""
    part_cycles: float
    """Cycles for each further part of a vector that is loaded or stored in parts."""
    single_cycles: float
    """Cycles to take one number out of a vector and to put it back."""
    unrolled_whole: float
    """Most operations of a loop that the compiler unrolls completely."""
    unrolled_part: float
    """Most operations in the unrolled body of a longer loop, which the compiler unrolls by a divisor of its
    iterations."""
    l2_bytes_per_cycle: float
    """Bytes that one core reads from its L2 cache in a cycle."""
    l3_bandwidths: float
    """Bandwidth of the last cache, in multiples of the memory's bandwidth."""
    parallel_secs: float
    """Seconds to start a parallel region of several threads. A measurement repeats the region without a pause."""


@dataclass(frozen=True)
class CpuConstants:
    """All constants of the CPU analyzer. Its own fields belong to all models or to the inner loops; ``moves`` and
    ``rows`` belong to one model each."""

    fma_ports: int
    """Vector operations that a core starts in a cycle."""
    fma_latency: int
    """Cycles until the result of a fused multiply-add can be added to again."""
    load_ports: int
    """Vector loads that a core starts in a cycle."""
    window_operations: int
    """Vector operations that a processor looks ahead: its reordering window."""
    row_cycles: float
    """Cycles to start a row of a region."""
    gather_loads: float
    """Loads that one lane of a gathered vector costs, which includes putting it into its place. The lanes of a gathered
    vector are different elements that are not adjacent in memory: those of channels of two groups (the channels of one
    group share an input), or elements far apart."""
    strided_loads: float
    """Loads per element of stride for a vector whose lanes lie a small stride apart: the whole span of the vector is
    loaded and shuffled."""
    loop_cycles: float
    """Cycles of a loop's own instructions. The processor runs most of these in parallel with the others."""
    flop_per_fma: int
    """Float operations of a fused multiply-add."""
    l1_fill_bytes_per_cycle: float
    """Bytes that one core moves into its L1 cache in a cycle."""
    l2_fill_bytes_per_cycle: float
    """Bytes that one core moves into its L2 cache in a cycle."""
    exposed_fills: float
    """Share of the time to fill caches that prefetching does not hide behind the computation."""
    spill_cycles: float
    """Cycles that one spilled accumulator adds to a vector operation on it: it is stored and loaded again in a
    chain."""
    usable_cache: float
    """Share of a cache that a tile can count on."""
    kept_share: float
    """Share of the L2 cache up to which all data that it holds for reuse stay there."""
    evicted_share: float
    """Share of the reused data that is lost for each cache size that is held beyond ``kept_share``."""
    page_bytes: int
    """Addresses that differ by a multiple of this are in the same set of an L1 cache, whatever its size."""
    conflict_free_share: float
    """Share of the lines of a set that one access can count on."""
    conflict_cycles: float
    """Cycles of an access for each line beyond ``conflict_free_share`` of a set's lines."""
    max_conflicts: float
    """Number of excess lines beyond which the cost does not grow: every access then comes from the next cache."""
    odd_vector_factor: float
    """Slowdown of vectors longer than a register whose length is no power of two: the compiler takes them apart and
    puts them together again (measured: 2 times for 24 lanes, 3 to 10 times for 28, 48 and 49)."""
    unrolled_by_compiler: float
    """Iterations that a compiler unrolls by itself."""
    fully_unrolled: float
    """Most iterations of a tile of sums, its whole reduction included, that a compiler unrolls completely. It then
    keeps the sums in registers and can vectorise the loop around them (seen with 9 to 252, on depthwise and grouped
    convolutions)."""
    fully_unrolled_steps: float
    """Most steps of the reduction alone with which it does so (seen with 9 and 25, with 36 at times, not with 64 and
    128)."""
    least_row: float
    """Least length of the loop around the sums, in registers, for the compiler to vectorise it."""
    around_loads: float
    """Factor on the loads of these sums: neighbouring rows are loaded and shuffled anew for every sum."""
    sum_loads: float
    """Loads for an addition: the value and, if the compiler does not keep it in a register, the sum."""
    shortest_row: float
    """Fewest adjacent sums that the compiler vectorises (seen with 4 and 6, not with 2)."""
    hoisted_steps: float
    """Most steps of a sum that the compiler hoists out of a loop that repeats it (seen with 48, not with 64)."""
    straight_line_operations: float
    """Unrolled vector operations up to which a compiler allocates registers well and the decoded code stays cached."""
    unroll_penalty: float
    """Slowdown for each doubling beyond ``straight_line_operations`` (measured: 1.4 to 3 times at 400 to 900
    operations)."""
    max_unrolled_points: int
    """Straight-line vector operations beyond which the compiler takes seconds and the instruction cache overflows."""
    max_spill_factor: float
    """Candidates with more accumulators than this multiple of the registers are never worth building."""
    inlined_factor: float
    """Factor on the inner loop's time when it computes an inlined producer (padding: a condition) at every
    point."""
    launch_secs: float
    """Seconds to start a parallel region."""
    moves: MoveConstants
    """Constants of statements that only move data."""
    rows: RowWiseConstants
    """Constants of row-wise kernels."""
