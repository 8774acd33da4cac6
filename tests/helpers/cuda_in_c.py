"""CUDA kernels without a GPU: their source is compiled as C++, and each thread of a block is one of the system.

Blocks run one after the other. What the kernels of integers need of CUDA is here, and no more.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from tvm.tirx import For
from tvm_ffi import structural_walk

Array = npt.NDArray[Any]
# CUDA defines __dp4a as the sum of a number and four products of signed bytes.
_CUDA = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <pthread.h>
using std::max; using std::min; using std::round; using std::roundf; using std::rint; using std::rintf;
struct Place { int x = 0, y = 0, z = 0; };
static thread_local Place threadIdx; static Place blockIdx;
static pthread_barrier_t together;
static void __syncthreads() { pthread_barrier_wait(&together); }
static int __dp4a(int a, int b, int c) {
  for (int at = 0; at < 32; at += 8) c += (signed char)(a >> at) * (signed char)(b >> at);
  return c;
}
#define VECTORS(T, N) struct N##2 { T x, y; }; struct N##3 { T x, y, z; }; struct N##4 { T x, y, z, w; }; \\
  static N##2 make_##N##2(T x, T y) { return {x, y}; } \\
  static N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; } \\
  static N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(int, int) VECTORS(unsigned, uint) VECTORS(float, float) VECTORS(unsigned char, uchar)
VECTORS(short, short) VECTORS(unsigned short, ushort) VECTORS(signed char, char)
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define alignas(n)
typedef unsigned char uchar; typedef unsigned short ushort;
"""
_RUN = """
struct Thread { Place place; void** arrays; };
static void* in_thread(void* given) {
  Thread* thread = (Thread*)given; threadIdx = thread->place; void** arrays = thread->arrays;
  KERNEL(ARGUMENTS);
  return nullptr;
}
extern "C" void run(void** arrays) {
  static Thread all[THREADS]; static pthread_t ids[THREADS];
  for (blockIdx.y = 0; blockIdx.y < BLOCKS_Y; ++blockIdx.y) for (blockIdx.x = 0; blockIdx.x < BLOCKS_X; ++blockIdx.x) {
    pthread_barrier_init(&together, nullptr, THREADS);
    for (int at = 0; at < THREADS; ++at) {
      all[at].place.x = at % THREADS_X; all[at].place.y = at / THREADS_X; all[at].arrays = arrays;
      pthread_create(&ids[at], nullptr, in_thread, &all[at]);
    }
    for (int at = 0; at < THREADS; ++at) pthread_join(ids[at], nullptr);
    pthread_barrier_destroy(&together);
  }
}
"""


def extents(body: Any) -> dict[str, int]:
    """The blocks and threads that a scheduled program is bound to, by axis."""
    found: dict[str, int] = {}

    def loop(node: For) -> None:
        if node.thread_binding is not None:
            found[str(node.thread_binding.thread_tag)] = int(node.extent)

    structural_walk(body, [(For, loop)])
    return found


def run_in_threads(source: str, bound: Mapping[str, int], arrays: Mapping[str, Array], folder: Path) -> None:
    """Run the one kernel of ``source`` over arrays, by the names of its parameters; it writes into them."""
    _, *kernels = re.split(r'extern "C" __global__(?=[^;{]*\{)', source)
    assert len(kernels) == 1, f"{len(kernels)} kernels"
    kernel = kernels[0]
    heading = kernel[: kernel.index("{")]
    parameters = re.findall(r"([\w ]+)\*(?: __restrict__)? (\w+?)(?:_ptr)?(?=[,)])", heading)
    threads = bound.get("threadIdx.x", 1), bound.get("threadIdx.y", 1)
    known = {
        "KERNEL": re.findall(r"(\w+)\(", heading)[-1],
        "ARGUMENTS": ", ".join(f"({kind.strip()}*)arrays[{at}]" for at, (kind, _) in enumerate(parameters)),
        "THREADS_X": str(threads[0]),
        "THREADS": str(threads[0] * threads[1]),
        "BLOCKS_X": str(bound.get("blockIdx.x", 1)),
        "BLOCKS_Y": str(bound.get("blockIdx.y", 1)),
    }
    run = re.sub(r"\b(" + "|".join(known) + r")\b", lambda found: known[found[1]], _RUN)
    (folder / "kernel.cc").write_text(f'{_CUDA}\nextern "C" {kernel}\n{run}')
    options = ["-O0", "-fwrapv", "-w", "-pthread", "-shared", "-fPIC"]
    library = folder / "kernel.so"
    subprocess.run(["g++", *options, "-o", library, folder / "kernel.cc"], check=True, timeout=120)
    pointers = [arrays[name].ctypes.data_as(ctypes.c_void_p) for _, name in parameters]
    ctypes.CDLL(str(library)).run((ctypes.c_void_p * len(pointers))(*pointers))
