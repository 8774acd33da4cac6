"""Parallel loops for kernels that are written as loops because their addresses or extents depend on data.

Such kernels are not scheduled; they run as written: in parallel on a CPU, with one thread for each iteration on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import tirx as T


def on_gpu() -> bool:
    """Return true if the kernels are for a GPU."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and "gpu" in target.keys


@contextlib.contextmanager
def in_parallel(turns: int) -> Iterator[Any]:
    """Write a loop whose iterations are independent of each other. Yields the number of the iteration."""
    if not on_gpu():
        with T.parallel(0, turns) as turn:
            yield turn
        return
    threads = min(int(tvm.target.Target.current().attrs["max_num_threads"]), 256)
    block, thread = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
    groups = tirx.const(-(-turns // threads), "int32")
    with T.frame_scope([T.attr(block, "thread_extent", groups), T.attr(thread, "thread_extent", threads)]):
        turn = block * threads + thread
        with T.If(turn < turns), T.Then():
            yield turn
