"""Launches and shared memory of CUDA candidates: as lowered, and as TVM's check of GPU code sees them."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir import transform as passes
from tvm.target import Target
from tvm_ffi import structural_walk

from fleet_tune.base.sketch import Sketch
from policies.analysis.launch import launch, shared_bytes
from policies.analysis.quantities import nest
from policies.arrays import Floats, Matrix
from policies.space.sampling import sample
from tests.devices.sketches.test_symbolic_quantities import CUDA, drawn, listed
from tests.helpers.lowered import placed_blocks
from tests.helpers.properties import examples
from tests.helpers.workloads import TARGETS, WORKLOADS, space

MAX_THREADS, MAX_SHARED = 1024, 49152
TILED = ("wide-matmul", "wide-half-matmul", "conv3", "depthwise", "half-conv", "half-batched", "softmax", "global-pool")

draws = st.tuples(st.integers(0, 20), st.integers(0, 2**32 - 1))
cuda_targets = st.sampled_from(CUDA)


def threads_per_block(sketch: Sketch, matrix: Matrix) -> Floats:
    """Threads of a block; the most of any kernel where the sketch has several."""
    main, *others = sketch.statements
    kernels = [main, *(each for each in others if not each.fixed_depth)]
    return np.asarray(np.max([launch(nest(each, matrix)).threads for each in kernels], axis=0))


def allocated_bytes(schedule: Schedule) -> int:
    """Bytes of the buffers in shared memory once TVM has cut them to what a block keeps of them, and multiplied them
    for its software pipeline."""
    lowered = tvm.transform.Sequential(
        [
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.UnifyThreadBinding(),
            passes.CompactBufferAllocation(),
            passes.LowerMatchBuffer(),
            passes.InjectSoftwarePipeline(),
        ]
    )(schedule.mod)
    sizes: list[int] = []

    def block(node: SBlock) -> None:
        for buffer in node.alloc_buffers:
            if str(buffer.scope()).startswith("shared"):
                strides = [int(stride) for stride in buffer.strides]
                elements = strides[0] * int(buffer.shape[0]) if strides else prod(int(n) for n in buffer.shape)
                sizes.append(elements * tvm.DataType(str(buffer.dtype)).bits // 8)

    structural_walk(lowered["main"].body, (SBlock, block))
    return sum(sizes)


@examples(60)
@given(target=cuda_targets, workload=st.sampled_from(sorted(WORKLOADS)), draw=draws)
def test_shared_memory_is_what_tvm_allocates(target: str, workload: str, draw: tuple[int, int]) -> None:
    sketch, rows, candidate = drawn(target, workload, draw)
    assert shared_bytes(sketch, rows)[0] == allocated_bytes(space(target, workload).apply(candidate))


@examples(60)
@given(target=cuda_targets, workload=st.sampled_from(sorted(WORKLOADS)), draw=draws)
def test_blocks_threads_and_virtual_threads(target: str, workload: str, draw: tuple[int, int]) -> None:
    sketch, rows, candidate = drawn(target, workload, draw)
    blocks = placed_blocks(space(target, workload).apply(candidate).mod["main"])
    for statement in sketch.statements:
        if not listed(statement):
            continue
        tagged = list(zip(blocks[statement.name].extents, blocks[statement.name].kinds(), strict=True))
        real = [
            prod(extent for extent, kind in tagged if kind.startswith(prefix))
            for prefix in ("blockIdx", "threadIdx", "vthread")
        ]
        found = launch(nest(statement, rows))
        assert [found.blocks[0], found.threads[0] / statement.warp, found.vthreads[0]] == real


@cache
def checks(target: str, workload: str) -> tuple[list[ms.Postproc], ms.Postproc, ms.Postproc]:
    """The post-processors before the check of GPU code, the check, and the check with the two limits lifted."""
    designs = space(target, workload)
    before = [p for p in designs.postprocs if not isinstance(p, ms.postproc.VerifyGPUCode)]
    lifted = {**TARGETS[target], "max_threads_per_block": 1 << 20, "max_shared_memory_per_block": 1 << 30}
    made = []
    for attributes in (TARGETS[target], lifted):
        check = ms.postproc.VerifyGPUCode()
        check._initialize_with_tune_context(ms.TuneContext(target=Target(attributes, host="llvm")))
        made.append(check)
    return before, made[0], made[1]


@examples(60)
@given(target=cuda_targets, workload=st.sampled_from(TILED), draw=draws)
def test_tvm_refuses_what_is_over_the_limits(target: str, workload: str, draw: tuple[int, int]) -> None:
    """And the other way round: what the limits of threads and shared memory alone refuse is over them here."""
    sketch, rows, candidate = drawn(target, workload, draw)
    before, check, lifted = checks(target, workload)
    over = shared_bytes(sketch, rows)[0] > MAX_SHARED or threads_per_block(sketch, rows)[0] > MAX_THREADS

    def verdict(last: ms.Postproc) -> bool:
        schedule = space(target, workload).apply(candidate)
        schedule.enter_postproc()
        return all(postproc.apply(schedule) for postproc in (*before, last))

    refused = not verdict(check)
    if over:
        # On tensor cores TVM may put the buffer that sums are written back through in the memory of the inputs' ones,
        # so that ours is an upper bound.
        assert refused or sketch.rule == "tensorize"
    elif refused:
        assert not verdict(lifted), "refused by a limit that the symbolic quantities do not exceed"


def test_a_software_pipeline_keeps_what_it_fetches_for_each_stage() -> None:
    plain, three, four = space("sm_90", "wide-matmul").sketches
    rows = sample(plain, 20, np.random.default_rng(0))
    assert (shared_bytes(three, rows) == 3 * shared_bytes(plain, rows)).all()
    assert (shared_bytes(four, rows) == 4 * shared_bytes(plain, rows)).all()


def test_random_candidates_fall_on_both_sides_of_the_limits() -> None:
    """So that the test above cannot pass because nothing is ever over the limits."""
    for workload in ("wide-matmul", "wide-half-matmul"):
        sketch = space("sm_90", workload).sketches[0]
        rows = sample(sketch, 500, np.random.default_rng(0))
        for over in (shared_bytes(sketch, rows) > MAX_SHARED, threads_per_block(sketch, rows) > MAX_THREADS):
            assert 0 < over.sum() < len(over)
