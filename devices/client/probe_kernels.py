"""Kernels that show the speed of a device: one that only multiplies and adds in registers, one that only moves memory.

Both are compiled for the device's target like any candidate and run over the same path, so that they work for every
device that candidates work for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from devices.builds.linking import link
from devices.builds.passes.kernel_passes import WITH_KERNEL_PASSES
from devices.cuda.compiler import compiling_for
from devices.targets import parse_target

# Independent sums per core: more than latency x units of any FMA pipeline (4 x 2 on x86 and ARM servers).
_SUMS = 12
_STEPS = 2048
_CUDA_THREADS = 256
_CUDA_SUMS = 16
_ROWS = 256  # rows for each core: some milliseconds on a server
SLOWEST_FLOPS, SLOWEST_BYTES = 1e6, 1e7
"""FLOP/s of a core and bytes/s of a memory that are slower than any real device: an emulated board is twenty times as
fast. The speed of a device is not known before its probe has run."""
CHUNK = 4096
"""Elements of one parallel step of the memory kernels; sizes are multiples of it."""


@dataclass(frozen=True)
class ProbeKernel:
    """A library whose ``main`` runs over tensors."""

    library: bytes
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the tensors."""
    work: float
    """Operations or bytes of one run."""
    slowest_secs: float
    """Seconds of one run on the slowest device."""


def arithmetic(
    target: str, cores: int, lanes: int, core_rows: int = _ROWS, dot: Callable[[Any, Any], Any] | None = None
) -> ProbeKernel:
    """Return the kernel ``C[p, j] = sum_k A[j] * B[k]`` with the sums over ``j`` in registers; its ``work`` is in FLOP.

    Args:
        target: canonical target.
        cores: CPU threads or multiprocessors.
        lanes: float32 values of a vector register, or threads of a warp.
        core_rows: values of ``p`` for each CPU thread.
        dot: operator on int32 tensors instead of the multiplication; ``None`` for a multiplication in float32.
    """
    cuda = parse_target(target).kind.name == "cuda"
    width = _CUDA_THREADS * _CUDA_SUMS if cuda else _SUMS * lanes
    rows = cores * (64 if cuda else core_rows)
    dtype = "int32" if dot else "float32"
    a = te.placeholder((width,), dtype, name="A")
    b = te.placeholder((_STEPS,), dtype, name="B")
    k = te.reduce_axis((0, _STEPS), name="k")
    c = te.compute((rows, width), lambda _p, j: te.sum(dot(a[j], b[k]) if dot else a[j] * b[k], axis=k), name="C")
    schedule = Schedule(_module(te.create_prim_func([a, b, c])))
    block = schedule.get_sblock("C")
    local = schedule.cache_write(block, 0, "local")
    p, j, step = schedule.get_loops(block)
    if cuda:
        # The sums of a thread are adjacent. Only then does the thread write back just its own sums, and keep them in
        # registers.
        thread, sums = schedule.split(j, [_CUDA_THREADS, _CUDA_SUMS])
        schedule.reorder(p, thread, step, sums)
        schedule.bind(p, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
        schedule.reverse_compute_at(local, thread)
        schedule.unroll(schedule.get_loops(local)[-1])
        schedule.unroll(sums)
        schedule.decompose_reduction(block, step)
    else:
        sums, lane = schedule.split(j, [_SUMS, lanes])
        schedule.reorder(p, step, sums, lane)
        schedule.parallel(p)
        schedule.unroll(sums)
        schedule.vectorize(lane)
        schedule.reverse_compute_at(local, p)
        schedule.decompose_reduction(block, step)
        schedule.vectorize(schedule.split(schedule.get_loops(local)[-1], [None, lanes])[1])
    work = 2.0 * rows * width * _STEPS
    slowest_secs = work / cores / SLOWEST_FLOPS
    # Only our passes lower the operator ``dot``.
    library = _compile(schedule, target, WITH_KERNEL_PASSES if dot else "default")
    return ProbeKernel(library, ((width,), (_STEPS,), (rows, width)), work, slowest_secs)


def triad(target: str, elements: int, lanes: int) -> ProbeKernel:
    """Return the kernel ``C[i] = A[i] + 3 * B[i]``; its ``work`` is in bytes, as STREAM counts them.

    ``elements``: a multiple of CHUNK.
    """
    cuda = parse_target(target).kind.name == "cuda"
    a = te.placeholder((elements,), name="A")
    b = te.placeholder((elements,), name="B")
    c = te.compute((elements,), lambda i: a[i] + b[i] * 3.0, name="C")
    schedule = Schedule(_module(te.create_prim_func([a, b, c])))
    _spread(schedule, "C", cuda, lanes)
    work = 12.0 * elements
    return ProbeKernel(_compile(schedule, target), ((elements,),) * 3, work, work / SLOWEST_BYTES)


def fill(target: str, elements: int, lanes: int) -> ProbeKernel:
    """Return the kernel ``A[i] = 1``, which makes the system allocate the pages of a fresh tensor before they are
    read."""
    cuda = parse_target(target).kind.name == "cuda"
    a = te.compute((elements,), lambda _i: te.const(1.0, "float32"), name="A")
    schedule = Schedule(_module(te.create_prim_func([a])))
    _spread(schedule, "A", cuda, lanes)
    work = 4.0 * elements
    return ProbeKernel(_compile(schedule, target), ((elements,),), work, work / SLOWEST_BYTES)


def _spread(schedule: Schedule, name: str, cuda: bool, lanes: int) -> None:
    """Run an element-wise block on all cores, vectorised."""
    (i,) = schedule.get_loops(schedule.get_sblock(name))
    if cuda:
        blocks, threads = schedule.split(i, [None, _CUDA_THREADS])
        schedule.bind(blocks, "blockIdx.x")
        schedule.bind(threads, "threadIdx.x")
    else:
        chunks, _, lane = schedule.split(i, [None, CHUNK // lanes, lanes])
        schedule.parallel(chunks)
        schedule.vectorize(lane)


def _module(function: tvm.tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _compile(schedule: Schedule, target: str, pipeline: str = "default") -> bytes:
    with compiling_for(target):
        return link(tvm.tirx.build(schedule.mod, target=parse_target(target), pipeline=pipeline), target)
