"""The emulation of CUDA finds what it is there for: races, writes outside of arrays, barriers that not all reach."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.cuda_on_cpu import CpuProgram, EmulationError, run_on_cpu

THREADS = 64
HEADING = """
extern "C" __global__ void __launch_bounds__(64) kernel(float* __restrict__ a_ptr, float* __restrict__ b_ptr) {
"""
NEIGHBOUR = "shared[threadIdx.x] = a_ptr[threadIdx.x]; BARRIER b_ptr[threadIdx.x] = shared[(threadIdx.x + 1) % 64];"


def run(body: str, folder: Path) -> np.ndarray:
    arrays = {"a": np.arange(THREADS, dtype=np.float32), "b": np.zeros(THREADS, np.float32)}
    run_on_cpu(f"{HEADING}\n__shared__ float shared[64];\n{body}\n}}", {"threadIdx.x": THREADS}, arrays, folder)
    return arrays["b"]


def test_threads_exchange_numbers_at_a_barrier(tmp_path: Path) -> None:
    b = run(NEIGHBOUR.replace("BARRIER", "__syncthreads();"), tmp_path)
    np.testing.assert_array_equal(b, np.roll(np.arange(THREADS), -1))


def test_a_missing_barrier_is_found(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="b depends on the order of threads"):
        run(NEIGHBOUR.replace("BARRIER", ""), tmp_path)


@pytest.mark.parametrize("place", ["64", "-1"])
def test_a_write_outside_of_an_array_is_found(tmp_path: Path, place: str) -> None:
    with pytest.raises(EmulationError, match="it writes outside of b"):
        run(f"b_ptr[{place}] = 1.0f;", tmp_path)


def test_a_barrier_that_not_all_threads_reach_is_found(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="wait for each other at different barriers"):
        run("if (threadIdx.x % 2) __syncthreads(); else __syncwarp();", tmp_path)


def test_lanes_of_a_warp_sum_up(tmp_path: Path) -> None:
    steps = " ".join(f"x += __shfl_down_sync(0xffffffff, x, {by}, 32);" for by in (16, 8, 4, 2, 1))
    b = run(f"float x = a_ptr[threadIdx.x]; {steps} if (threadIdx.x % 32 == 0) b_ptr[threadIdx.x] = x;", tmp_path)
    assert (b[0], b[32]) == (sum(range(32)), sum(range(32, 64)))


def test_what_nobody_wrote_in_dynamic_shared_memory_is_no_number(tmp_path: Path) -> None:
    body = "extern __shared__ uchar buf_dyn_shmem_ptr[]; b_ptr[threadIdx.x] = ((float*)buf_dyn_shmem_ptr)[threadIdx.x];"
    assert np.isnan(run(body, tmp_path)).all()


_BOUNDS = 'extern "C" __global__ void __launch_bounds__(64)'
FIRST = f"{_BOUNDS} main_kernel(float* __restrict__ a_ptr, float* __restrict__ sums_ptr)"
SECOND = f"""{_BOUNDS} main_kernel_1(float* __restrict__ b_ptr, float* __restrict__ sums_ptr) {{
  b_ptr[threadIdx.x] = sums_ptr[0];
}}"""


@pytest.mark.parametrize("spare_bytes", [4, 256])
def test_kernels_run_in_the_order_of_their_numbers_and_hand_on_values(tmp_path: Path, spare_bytes: int) -> None:
    sums = "{ float x = 0; for (int at = 0; at < 64; ++at) x += a_ptr[at]; if (threadIdx.x == 0) sums_ptr[0] = x; }"
    source = f"{SECOND}\n{FIRST} {sums}"
    arrays = {"a": np.arange(THREADS, dtype=np.float32), "b": np.zeros(THREADS, np.float32)}
    with closing(CpuProgram(source, tmp_path)) as program:
        program.run([{"threadIdx.x": 64}, {"threadIdx.x": 32}], arrays, spare_bytes)
    assert arrays["b"].tolist() == [2016.0] * 32 + [0.0] * 32
    assert not list(tmp_path.iterdir())


def test_what_no_kernel_wrote_is_no_number_to_the_next_one(tmp_path: Path) -> None:
    source = f"{FIRST} {{ }}\n{SECOND}"
    arrays = {"a": np.zeros(THREADS, np.float32), "b": np.zeros(THREADS, np.float32)}
    with closing(CpuProgram(source, tmp_path)) as program:
        program.run([{"threadIdx.x": 64}] * 2, arrays, 4)
    assert np.isnan(arrays["b"]).all()


def test_a_write_outside_of_what_kernels_hand_on_is_found(tmp_path: Path) -> None:
    source = f"{FIRST} {{ sums_ptr[1] = 1.0f; }}\n{SECOND}"
    arrays = {"a": np.zeros(THREADS, np.float32), "b": np.zeros(THREADS, np.float32)}
    with closing(CpuProgram(source, tmp_path)) as program, pytest.raises(EmulationError, match="outside of sums"):
        program.run([{"threadIdx.x": 64}] * 2, arrays, 4)
