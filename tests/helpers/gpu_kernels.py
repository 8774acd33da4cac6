"""Compiled CUDA kernels whose behaviour is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from devices.builds.linking import link
from devices.cuda.compiler import compiling_for
from devices.protocol import Artifact, TensorSpec
from devices.targets import parse_target
from fleet_tune.base.domain import Candidate

_THREADS = 128
_STEPS = 1 << 20
_WIDE_ROWS = 1 << 17


def gpu_artifact(target: str, what: str = "ok", n: int = 1024, *, oracle: bool = False, number: int = 0) -> Artifact:
    """A kernel of the task "scale" over ``n`` floats, compiled for the canonical ``target``.

    ``what`` names its behaviour: "ok" (``B = 2 A + 1``), "wrong", "outside" (writes 4 GiB behind its output), "endless"
    (a sum of 2**40 terms), "wide" (asks for more blocks along y than any GPU has).
    """
    specs = (TensorSpec((n,), "float32"), TensorSpec((n,), "float32"))
    task_id = f"scale-{n}"
    return Artifact(
        task_id=task_id,
        candidate=None if oracle else Candidate(task_id, 0, what, (n, number)),
        library=_library(target, what, n),
        args=specs,
        original_args=specs,
        outputs=(1,),
        packed=(),
        trace="",
        build_secs=0.25,
    )


@cache
def _library(target: str, what: str, n: int) -> bytes:
    schedule = Schedule(tvm.IRModule({"main": _function(what, n)}))
    loops = schedule.get_loops(schedule.get_sblock("B"))
    if what == "wide":
        schedule.bind(loops[0], "blockIdx.y")
        loops = loops[1:]
    blocks, threads = schedule.split(loops[0], [None, _THREADS])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    with compiling_for(target):
        return link(tvm.tirx.build(schedule.mod, target=parse_target(target)), target)


def _function(what: str, n: int) -> tvm.tirx.PrimFunc:
    if what in ("outside", "wide"):
        return _written(what, n)
    a = te.placeholder((n,), name="A")
    k, m = te.reduce_axis((0, _STEPS), name="k"), te.reduce_axis((0, _STEPS), name="m")
    rules: dict[str, Callable[[te.Var], tvm.tirx.PrimExpr]] = {
        "ok": lambda i: a[i] * 2.0 + 1.0,
        "wrong": lambda i: a[i] * 2.0,
        "endless": lambda i: te.sum(te.sin(a[i] + (k + m).astype("float32")), axis=[k, m]),
    }
    body = te.compute((n,), rules[what], name="B")
    return te.create_prim_func([a, body]).with_attr("global_symbol", "main")


def _written(what: str, n: int) -> tvm.tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def outside(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v + 1073741824] = A[v] * T.float32(2) + T.float32(1)

    @T.prim_func(s_tir=True)
    def wide(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for j, i in T.grid(_WIDE_ROWS, n):
            with T.sblock("B"):
                u, v = T.axis.remap("SS", [j, i])
                if u == 0:
                    B[v] = A[v] * T.float32(2) + T.float32(1)

    function: tvm.tirx.PrimFunc = {"outside": outside, "wide": wide}[what]
    return function
