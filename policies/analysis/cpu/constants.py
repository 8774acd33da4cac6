"""Numbers of the CPU model: of the processors that it was made with, and of what their compiler does.

They were fitted on the development sets of ``bench/data`` (docs/search.md, *Draft*), nearly all of one kind of
CPU. What the probe of a device measures (peak, caches, lanes, registers) is not among them.
"""

from __future__ import annotations

FMA_PORTS = 2
FMA_LATENCY = 4
LOAD_PORTS = 2
WINDOW_OPERATIONS = 128
"""Vector operations that a processor looks ahead."""
ROW_CYCLES = 2.0
"""Cycles to begin with a row of a region."""
GATHER_LOADS = 2.0
"""Loads that one lane of a gathered vector is worth: it is put into its place, too. Gathered is a vector whose lanes
differ and are no neighbours in memory: over channels of two groups (which share an input of each), or far apart."""
STRIDED_LOADS = 1.0
"""Loads for each element of the stride of lanes a small stride apart: what a full vector of them spans, shuffled."""
LOOP_CYCLES = 0.1
"""Cycles of a loop's own instructions, most of which the processor runs beside the others."""
FLOP_PER_FMA = 2
L1_FILL_BYTES_PER_CYCLE = 48.0
L2_FILL_BYTES_PER_CYCLE = 16.0
EXPOSED_FILLS = 0.3
"""Share of the time to fill caches that prefetching does not hide behind the computation."""
SPILL_CYCLES = 4.0
"""Cycles that one spilled accumulator adds to a vector operation on it: it is stored and loaded again in a chain."""
USABLE_CACHE = 0.75
"""Share of a cache that a tile can count on."""
PAGE_BYTES = 4096
"""Addresses that differ by a multiple of this are in the same set of an L1 cache, whatever its size."""
CONFLICT_FREE_SHARE = 0.5
"""Share of the lines of a set that one access can count on."""
CONFLICT_CYCLES = 0.3
"""Cycles of an access for each line beyond that share of a set's lines."""
MAX_CONFLICTS = 48.0
"""Lines too many beyond which it does not get worse: every access comes from the next cache."""
ODD_VECTOR_FACTOR = 4.0
"""Slowdown of vectors longer than a register whose length is no power of two: the compiler takes them apart and puts
them together again (measured: 2 times for 24 lanes, 3 to 10 times for 28, 48 and 49)."""
UNROLLED_BY_COMPILER = 8.0
"""Iterations that a compiler unrolls by itself."""
FULLY_UNROLLED = 256.0
"""Iterations of a tile of sums with its whole reduction up to which a compiler unrolls all of it, keeps the sums in
registers, and then can vectorise the loop around them (seen with 9 to 252, on depthwise and grouped convolutions)."""
FULLY_UNROLLED_STEPS = 32.0
"""The same of the reduction alone (seen with 9 and 25, with 36 at times, not with 64 and 128)."""
LEAST_ROW = 0.75
"""Length of that loop, in registers, from which it does."""
AROUND_LOADS = 2.0
"""Loads that each load of the sums is worth there: neighbouring rows are loaded and shuffled anew for every sum."""
SUM_LOADS = 2.0
"""What is read for an addition: the value and, where the compiler does not hold it, the sum."""
SHORTEST_ROW = 4.0
"""Sums beside each other from which the compiler makes vectors of them (seen with 4 and 6, not with 2)."""
HOISTED_STEPS = 48.0
"""Steps of a sum up to which the compiler takes it out of a loop that repeats it (seen with 48, not with 64)."""
STRAIGHT_LINE_OPERATIONS = 128.0
"""Unrolled vector operations up to which a compiler allocates registers well and the decoded code stays cached."""
UNROLL_PENALTY = 0.15
"""Slowdown for each doubling beyond them (measured: 1.4 to 3 times at 400 to 900 operations)."""
MAX_UNROLLED_POINTS = 1500
"""Straight-line vector operations beyond which the compiler takes seconds and the instruction cache overflows."""
MAX_SPILL_FACTOR = 1.5
"""Accumulators beyond this multiple of the registers are never worth building."""
INLINED_FACTOR = 1.5
"""How much longer the inner loop takes when it computes an inlined producer (padding: a condition) at every point."""
MOVE_CYCLES = 0.5
"""Cycles of each element of a statement that only moves data (:mod:`policies.analysis.cpu.moves`): it is loaded and put
into its place in a vector. Fitted on the recorded transposes."""
MOVE_ITERATION_CYCLES = 0.3
"""Cycles of such a statement for each iteration of its parallel loop, fitted on the recorded transposes."""
MOVE_LINE_CYCLES = 0.2
"""Cycles for each line that it reads, fitted on the recorded transposes."""
MOVE_STORE_CYCLES = 0.4
"""Cycles for each store of a register or a part of one, fitted on the recorded transposes."""
MOVE_LAUNCH_SECS = 1e-6
"""Starting such a statement, fitted on the recorded transposes: the shortest take 2 microseconds in all."""
LAUNCH_SECS = 3e-6
"""Starting a parallel region."""
