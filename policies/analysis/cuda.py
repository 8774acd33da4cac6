"""The analytic model of a candidate on a CUDA device: Pruner's symbol-based analyzer, statement by statement.

Every statement of the program has its symbols S1 to S9 and adds its compute and memory latency (equation 1). Registers,
shared memory, threads and blocks are those of the kernel. Operations and bytes are the statement's own: the main
statement computes on staged data; the statements that fetch into shared memory, and the one that writes the result
back, move bytes. A kernel that spills registers runs, and ``P_l0m`` says how much it loses. It is ruled out if it would
spill more than it keeps.

The model differs from the paper in two points. The paper's L0 term ``1 + S2 / S1`` has no bound, but a product of
shares of the peak needs one; here the term is ``S2 / (S1 + S2)``. (The paper's code has ``(1 + r) / (2 + r)``, where
``r`` is the operations over the memory workload; this is bounded too.) And each kernel takes :data:`LAUNCH_SECS` to
start.

``n`` candidates; every vector has the shape ``(n,)`` and the floating type of the nest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import INLINE_LOCATION, Access, Sketch, Statement
from policies.analysis import symbols as pruner
from policies.analysis.launch import bound_depth, placed_inside, shared_bytes
from policies.analysis.quantities import (
    Ints,
    Nest,
    contiguous_run,
    enclosing_depth,
    footprint,
    nest,
    product_of,
    touched_elements,
    unroll_limit,
)
from policies.analysis.symbols import Symbols
from policies.arrays import Floats, Matrix

MAX_VTHREADS = 8
"""Virtual threads that TVM's check of GPU code allows."""
MAX_UNROLLED_POINTS = 4096
"""Straight-line operations of a thread beyond which compiling takes seconds and the instruction cache overflows. Set by
hand, not compared with measurements."""
LAUNCH_SECS = 3e-6
"""Seconds to start a kernel, set by hand. A host was later seen to launch a kernel every 4 us (docs/lab/gpu.md)."""
LEAST_KEPT = 0.5
"""Least share of a thread's values that must fit into its registers for a candidate to be worth building. Set by hand,
not compared with measurements."""
FRAGMENT = 16
"""Rows, columns and reduction steps of a tensor-core product."""

CORE = (
    "compute_secs", "memory_secs", "registers", "step_operations", "shared", "threads", "moved", "blocks", "vthreads",
    "unrolled", "occupied", "l0_m", "l1_c", "alpha", "l2_c", "l2_m",
)  # fmt: skip
"""Names of the terms that every CUDA candidate has."""


@dataclass(frozen=True)
class _Region:
    """Region of a block inside some depth: ``inside`` iterations of each axis, repeated ``rounds`` times."""

    inside: Sequence[Floats]
    rounds: Floats


class CudaModel:
    """The model of a CUDA program, evaluated for candidates; see :class:`policies.analysis.model.AnalyticModel`."""

    def __init__(self, sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, dtype: DTypeLike) -> None:
        self._sketch = sketch
        self._matrix = matrix
        self._device = device
        self._statement = sketch.statements[0]
        self._main = nest(self._statement, matrix, dtype)
        self._limit = pruner.limits(device, self._statement.arithmetic)
        self._blocks, self._threads, self._vthreads = _grid(self._main, device)
        self._registers, self._operations = self._thread_tile()
        self._shared = shared_bytes(sketch, matrix, dtype)
        others = [self._beside(number) for number in range(1, len(sketch.statements))]
        self._symbols = (self._main_symbols(), *(each for each, _ in others))
        self._launches = [self._main.full(LAUNCH_SECS), *(launch for _, launch in others)]
        self._penalties = [pruner.penalties(each, self._limit) for each in self._symbols]
        total = self._main.full(0.0)
        self._compute_secs, self._memory_secs = self._main.full(0.0), self._main.full(0.0)
        for each, terms, launch in zip(self._symbols, self._penalties, self._launches, strict=True):
            bounded = replace(terms, l0_c=each.s2 / (each.s1 + each.s2))
            compute, memory = pruner.statement_secs(each, bounded, self._limit)
            self._compute_secs = self._compute_secs + compute
            self._memory_secs = self._memory_secs + memory
            total = total + compute + memory + launch
        self.latency_secs: Floats = total
        self._in_limits = self._within_limits()
        kept = self._penalties[0].l0_m >= LEAST_KEPT
        self.feasible: NDArray[np.bool_] = self._in_limits & kept & (self._shared <= device.l1_bytes)

    # -- the kernel -----------------------------------------------------------------------------------------------

    def _thread_tile(self) -> tuple[Floats, Floats]:
        """Registers of a thread, and its float operations in one step of the reduction over its whole tile.

        The registers hold the sums and the operands. On tensor cores both are in fragments, which the lanes of a warp
        share. A step is then 16 steps of the reduction, the operands are those that are filled together, and two values
        of 16 bits share a register.
        """
        main, statement = self._main, self._statement
        bound = _thread_depth(main)
        tensor = statement.warp > 1
        steps = FRAGMENT if tensor else 1
        tile = [
            self._vthreads_of(axis, np.minimum(main.inside(0)[axis], steps) if axis_of.reduction else inside)
            for axis, (axis_of, inside) in enumerate(zip(statement.axes, main.inside(bound), strict=True))
        ]
        written = {access.buffer: access for access in statement.accesses if access.write}
        points = main.spatial_points(bound) * self._vthreads
        registers: Floats = points
        if tensor and written:
            registers = _words(points, next(iter(written.values())))
        for access in statement.accesses:
            if not access.write and access.buffer not in written:
                if tensor:
                    filled = self._filled_inside(access)
                    held = _words(touched_elements(statement, access, tile if filled is None else filled), access)
                else:
                    held = touched_elements(statement, access, tile)
                registers = registers + held
        lanes = statement.warp
        return registers / lanes, points * (steps * max(statement.flop_per_point, 1.0)) / lanes

    def _filled_inside(self, access: Access) -> list[Floats] | None:
        """Iterations of each axis that the fragment of an operand holds; None if no statement inside the nest fills it,
        or if it is not local."""
        for other in self._sketch.statements[1:]:
            if other.fixed_depth and any(a.write and a.buffer == access.buffer for a in other.accesses):
                return (
                    self._main.inside(self._main.compact_depth(other.fixed_depth)) if access.scope == "local" else None
                )
        return None

    def _tensor_products(self) -> Floats:
        """Products of 16x16x16 that the warps of a block compute in one step; 0 without tensor cores."""
        if self._statement.warp == 1:
            return self._main.full(0.0)
        tile = self._main.spatial_points(_thread_depth(self._main)) * self._vthreads
        return np.asarray(np.ceil(tile / FRAGMENT**2) * self._threads / self._statement.warp)

    def _vthreads_of(self, axis: int, inside: Floats) -> Floats:
        """Iterations of an axis in a thread, those of its virtual threads included."""
        for at, kind in enumerate(self._main.kinds):
            if kind == "vthread" and axis in self._main.moves(at):
                inside = inside * self._main.extents[at]
        return inside

    def _region(self, depth: int | Ints) -> _Region:
        """Region that all threads of a block need inside ``depth``: one depth for all candidates, or one for each."""
        main = self._main
        inside = list(main.inside(depth) if isinstance(depth, int) else main.inside_at(depth))
        rounds = main.full(1.0)
        for at, kind in enumerate(main.kinds):
            if kind.startswith("blockIdx"):
                continue
            if isinstance(depth, int):
                if at >= depth:
                    continue
                extent = main.extents[at]
            else:
                extent = np.where(depth > at, main.extents[at], main.extents.dtype.type(1))
            if kind.startswith(("threadIdx", "vthread")):
                for axis in main.moves(at):
                    inside[axis] = inside[axis] * extent
            else:
                rounds = rounds * extent
        return _Region(inside, rounds)

    def _within_limits(self) -> NDArray[np.bool_]:
        device = self._device
        good = self._threads <= (device.max_threads_per_block or 1024)
        if any(loop.kind == "vthread" for loop in self._statement.loops):
            good &= self._threads >= device.lanes  # TVM refuses a tiled kernel of less than a warp
        good &= self._pipelined_iterations() > 1  # TVM refuses a software pipeline of a single iteration
        return np.asarray(good & (self._vthreads <= MAX_VTHREADS) & (self._unrolled() <= MAX_UNROLLED_POINTS))

    def _pipelined_iterations(self) -> Floats:
        """Iterations of the loop whose steps overlap in a software pipeline; infinite without a pipeline."""
        main = self._main
        depths = [each.fixed_depth for each in self._sketch.statements[1:] if each.versions > 1]
        if not depths:
            return main.full(np.inf)
        around = range(_thread_depth(main), main.compact_depth(depths[0]))
        return product_of([main.extents[at] for at in around], main.full(1.0))

    def _unrolled(self) -> Floats:
        """Operations of a thread in its largest sub-nest that is unrolled up to the unroll Choice, at least 1."""
        limit = unroll_limit(self._sketch, self._statement, self._matrix, self._main.extents.dtype)
        if limit is None:
            return self._main.full(1.0)
        inside = self._main.within[_thread_depth(self._main) :]
        largest: Floats = (inside * (inside <= limit)).max(axis=0)
        return np.maximum(largest, 1.0) * self._vthreads

    # -- statements -----------------------------------------------------------------------------------------------

    def _symbols_of(self, compute: Floats, moved: Floats, run: Floats, products: Floats | None = None) -> Symbols:
        return Symbols(
            s1=self._registers,
            s2=self._operations,
            s3=self._shared,
            s4=self._threads,
            s5=moved,
            s6=self._blocks,
            s7=run,
            s8=compute,
            s9=self._main.full(0.0) if products is None else products,
        )

    def _main_symbols(self) -> Symbols:
        """Symbols of the main statement: its operations, and the bytes that it accesses in global memory itself.

        Each block moves these bytes once: data that its threads share are in the L1 cache.
        """
        main, statement = self._main, self._statement
        first = next((at for at, kind in enumerate(main.kinds) if not kind.startswith("blockIdx")), main.depth)
        whole = _Region(main.inside(first), main.full(1.0))
        step = self._region(_thread_depth(main))
        moved = main.full(0.0)
        runs = []
        for access in statement.accesses:
            if access.scope != "global":
                continue
            touched = touched_elements(statement, access, whole.inside)
            moved = moved + touched * self._blocks * access.element_bytes
            runs.append(_words(contiguous_run(main, access, 0, step.inside), access))
        run = np.minimum.reduce(runs) if runs else main.full(self._limit.n_l2)
        return self._symbols_of(main.points() * statement.flop_per_point, moved, run, self._tensor_products())

    def _beside(self, number: int) -> tuple[Symbols, Floats]:
        """Symbols of a statement beside the main one, and the seconds to launch it if it is a kernel of its own."""
        main, other = self._main, self._sketch.statements[number]
        if other.location_column is None:
            fixed = main.compact_depth(other.fixed_depth)
            if fixed == 0:
                return self._own_kernel(other), main.full(LAUNCH_SECS)
            return self._placed(number, fixed), main.full(0.0)
        depth = enclosing_depth(self._sketch, main, other, self._matrix)
        inside, alone = self._within(other, np.maximum(depth, 0)), self._own_kernel(other)
        inlined = depth == INLINE_LOCATION
        chosen = {name: np.where(depth > 0, getattr(inside, name), getattr(alone, name)) for name in vars(inside)}
        chosen["s5"] = np.where(inlined, 0.0, chosen["s5"])
        # Inlined, it is computed wherever the main statement reads it.
        chosen["s8"] = np.where(inlined, main.points() * other.flop_per_point, chosen["s8"])
        return Symbols(**chosen), np.where(depth == 0, LAUNCH_SECS, 0.0).astype(main.extents.dtype)

    def _placed(self, number: int, depth: int) -> Symbols:
        """Symbols of a statement at a fixed place in the main loops: it stages data that the main one reads or
        writes."""
        main, other = self._main, self._sketch.statements[number]
        try:
            inside = placed_inside(self._sketch, number, main, depth, by_block=True)
        except ValueError:  # it stands there for another statement
            return self._own_kernel(other)
        points = product_of(inside, main.full(1.0)) * self._region(depth).rounds * self._blocks
        loops = nest(other, self._matrix, main.extents.dtype)
        moved, run = main.full(0.0), main.full(0.0)
        for access in other.accesses:
            if access.scope == "global":
                moved = moved + points * access.element_bytes
                run = np.maximum(run, _words(contiguous_run(loops, access, 0, inside), access))
        return self._symbols_of(points * other.flop_per_point, moved, np.maximum(run, 1.0))

    def _within(self, other: Statement, depth: int | Ints) -> Symbols:
        """Symbols of a statement in the main loops: it works on the region of the buffer that the two share."""
        main = self._main
        buffers = {access.buffer for access in other.accesses}
        access = next((access for access in self._statement.accesses if access.buffer in buffers), None)
        if access is None:
            return self._own_kernel(other)
        region = self._region(depth)
        elements = touched_elements(self._statement, access, region.inside)
        points = elements * region.rounds * self._blocks
        run = _words(contiguous_run(main, access, 0, region.inside), access)
        moved = main.full(0.0)
        for its in other.accesses:
            if its.scope == "global":
                moved = moved + points * its.element_bytes
                if its.packed:  # the buffer lies in the order of the loops
                    run = _words(elements, its)
        return self._symbols_of(points * other.flop_per_point, moved, run)

    def _own_kernel(self, other: Statement) -> Symbols:
        """Symbols of a statement with a nest of its own: all its operations and all bytes that it accesses."""
        main = self._main
        constant = all(loop.column is None for loop in other.loops)
        loops = nest(other, self._matrix[:1] if constant else self._matrix, main.extents.dtype)
        blocks, threads, _ = _grid(loops, self._device)
        moved, run = main.full(0.0), main.full(0.0)
        for access in other.accesses:
            if access.scope == "global":
                moved = moved + footprint(loops, access)[0] * access.element_bytes
                run = np.maximum(run, _words(contiguous_run(loops, access, 0), access))
        one, none = main.full(1.0), main.full(0.0)
        flop = none + loops.points() * other.flop_per_point
        # One point at a time: an operand and a result.
        return Symbols(one * 2, one, none, none + threads, moved, none + blocks, np.maximum(run, 1.0), flop, none)

    # -- inputs of the learned models -----------------------------------------------------------------------------

    def symbols(self) -> tuple[Symbols, ...]:
        """S1 to S9 of every statement, the main one first."""
        return self._symbols

    def statement_symbols(self) -> tuple[Symbols, ...]:
        """See :class:`policies.analysis.model.AnalyticModel`: the same as :meth:`symbols`."""
        return self._symbols

    @property
    def within_limits(self) -> NDArray[np.bool_]:
        """See :class:`policies.analysis.model.AnalyticModel`."""
        return self._in_limits

    def core(self) -> dict[str, Floats]:
        """The most informative terms, by the names of :data:`CORE`, each ``(n,)``, positive or zero."""
        main, penalties = self._symbols[0], self._penalties[0]
        return {
            "compute_secs": self._compute_secs,
            "memory_secs": self._memory_secs,
            "registers": main.s1,
            "step_operations": main.s2,
            "shared": main.s3,
            "threads": main.s4,
            "moved": sum((each.s5 for each in self._symbols), self._main.full(0.0)),
            "blocks": main.s6,
            "vthreads": self._vthreads,
            "unrolled": self._unrolled(),
            "occupied": self._threads * self._blocks,
            "l0_m": penalties.l0_m,
            "l1_c": penalties.l1_c,
            "alpha": penalties.alpha_l1,
            "l2_c": penalties.l2_c,
            "l2_m": penalties.l2_m,
        }

    def terms(self) -> dict[str, Floats]:
        """The intermediate quantities by name, each ``(n,)``, positive or zero: the core, and details."""
        terms = {**self.core(), "latency": self.latency_secs}
        for statement, each in zip(self._sketch.statements, self._symbols, strict=True):
            terms |= {f"{statement.name}.moved": each.s5, f"{statement.name}.run": each.s7}
        return terms


def _grid(loops: Nest, device: DeviceAbstraction) -> tuple[Floats, Floats, Floats]:
    """Blocks, threads of a block, and virtual threads, each ``(n,)``.

    If no loop is bound to blocks or threads, the spatial iterations are spread over blocks of as many threads as are
    allowed.
    """

    def bound(prefix: str) -> tuple[Floats, bool]:
        chosen = [loops.extents[at] for at, kind in enumerate(loops.kinds) if kind.startswith(prefix)]
        return product_of(chosen, loops.full(1.0)), bool(chosen)

    (blocks, in_blocks), (threads, in_threads), (vthreads, _) = bound("blockIdx"), bound("threadIdx"), bound("vthread")
    if not in_blocks and not in_threads:
        spatial = loops.spatial_points(0)
        threads = np.minimum(spatial, float(device.max_threads_per_block or 1024))
        blocks = np.ceil(spatial / threads)
    return blocks, threads * loops.statement.warp, vthreads


def _thread_depth(loops: Nest) -> int:
    """Depth just inside the loops that blocks and threads run over: the bound loops, or, if no loop is bound, the outer
    loops over the output, which MetaSchedule's AutoBind binds."""
    reductions = {axis for axis, each in enumerate(loops.statement.axes) if each.reduction}
    spatial = next((at for at in range(loops.depth) if reductions.intersection(loops.moves(at))), loops.depth)
    return bound_depth(loops) or spatial


def _words(elements: Floats, access: Access) -> Floats:
    """Elements counted in words of four bytes, the unit of memory transactions."""
    return elements * (access.element_bytes / pruner.ELEMENT_BYTES)
