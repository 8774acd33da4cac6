"""Compiled kernels whose behaviour is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from devices.protocol import Artifact, TensorSpec
from fleet_tune.base.domain import Candidate

MakeArtifact = Callable[..., Artifact]


@cache
def native_target() -> str:
    """The canonical target of two threads of this machine."""
    from devices.targets import resolve_target

    return resolve_target("native", threads=2)


def make_artifact(
    what: str = "ok", n: int = 1024, oracle: bool = False, task_id: str = "scale", number: int = 0, flop: float = 0.0
) -> Artifact:
    """A kernel of the task "scale" over ``n`` floats, compiled.

    ``what`` names its behaviour: "ok" (``B = 2 A + 1``), "wrong", "nan", "partial" (half of the output is unwritten),
    "nan-partial" (of NaN), "packed" (as ok, on an argument that is packed in reverse), "crash" (segmentation fault),
    "abort", "hang" (after making a folder "started" where it runs), "slow" (as ok, but takes three seconds the first
    time in a session, after making that folder), "unlinked" (calls a function that is nowhere), "roots" (square roots),
    "allocate" (memory without end), "outside" (writes far out of bounds), "overwrite" (right, and zeroes its input, out
    of bounds of what it may write), "halt" (stops its own process), "parallel" (as ok, with TVM's threads).
    """
    specs = (TensorSpec((n,), "float32"), TensorSpec((n,), "float32"))
    return Artifact(
        task_id=task_id,
        candidate=None if oracle else Candidate(task_id, 0, what, (n, number)),
        library=_library(what, n),
        args=specs,
        original_args=specs,
        outputs=(1,),
        packed=(0,) if what == "packed" else (),
        trace="",
        build_secs=0.25,
        flop=flop,
    )


def program(what: str, n: int = 1024) -> str:
    """The program of such a kernel, as a workload has it."""
    import tvm

    return str(tvm.ir.save_json(tvm.IRModule(_functions(what, n))))


@cache
def _library(what: str, n: int) -> bytes:
    import tvm

    from devices.builds.linking import link
    from devices.targets import parse_target

    module = tvm.IRModule(_functions(what, n))
    if what == "parallel":
        schedule = tvm.s_tir.Schedule(module)
        schedule.parallel(schedule.get_loops(schedule.get_sblock("B"))[0])
        module = schedule.mod
    return link(tvm.tirx.build(module, target=parse_target(native_target())), native_target())


def _functions(what: str, n: int) -> dict[str, object]:
    import tvm
    from tvm import te

    a = te.placeholder((n,), name="A")

    def function(name: str, rule: Callable[[object], object], output: str = "B") -> object:
        body = te.compute((n,), rule, name=output)
        return te.create_prim_func([a, body]).with_attr("global_symbol", name)

    def call(name: str, *args: int) -> Callable[[object], object]:
        """``B[i] = A[i] + name(*args)``: a function of libc, called for every element."""
        return lambda i: a[i] + tvm.tirx.call_extern("int32", name, *args).astype("float32")

    def hang(i: object) -> object:
        started = tvm.tirx.call_extern("int32", "mkdir", "started", 0o700)
        return a[i] + tvm.tirx.call_extern("int32", "sleep", started + 3600).astype("float32")

    def slow(i: object) -> object:
        first = tvm.tirx.call_extern("int32", "mkdir", "started", 0o700) + 1
        return a[i] * 2.0 + 1.0 + tvm.tirx.call_extern("int32", "sleep", first * 3).astype("float32")

    def allocate(i: object) -> object:
        size = tvm.tirx.const(1 << 26, "int64")
        block = tvm.tirx.call_extern("int64", "malloc", size)
        return a[i] + tvm.tirx.call_extern("int64", "memset", block, 1, size).astype("float32")

    rules: dict[str, Callable[[object], object]] = {
        "ok": lambda i: a[i] * 2.0 + 1.0,
        "parallel": lambda i: a[i] * 2.0 + 1.0,
        "wrong": lambda i: a[i] * 2.0,
        "nan": lambda i: te.log(a[i] * 0.0 - 1.0),
        "packed": lambda i: a[n - 1 - i] * 2.0 + 1.0,
        "crash": call("raise", 11),
        "abort": call("raise", 6),
        "hang": hang,
        "slow": slow,
        "unlinked": call("no_such_function_anywhere"),
        "allocate": allocate,
        "halt": call("raise", 19),
        "roots": lambda i: te.sqrt(a[i]),
    }
    if what in ("partial", "nan-partial", "outside", "overwrite"):
        return {"main": _written(what, n)}
    functions = {"main": function("main", rules[what])}
    if what == "packed":
        functions["pack_0"] = function("pack_0", lambda i: a[n - 1 - i], "P")
    return functions


def _written(what: str, n: int) -> object:
    """Kernels that write what they should not, or not all that they should."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def half(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for i in range(n // 2):
            with T.sblock("B"):
                v = T.axis.spatial(n // 2, i)
                B[v] = A[v] * T.float32(2) + T.float32(1)

    @T.prim_func(s_tir=True)
    def outside(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v + 1073741824] = A[v] * T.float32(2) + T.float32(1)

    @T.prim_func(s_tir=True)
    def overwrite(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for i in range(n):
            with T.sblock("B"):
                v = T.axis.spatial(n, i)
                B[v] = A[v] * T.float32(2) + T.float32(1)
                A[v] = T.float32(0)

    @T.prim_func(s_tir=True)
    def half_of_nan(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")) -> None:
        T.func_attr({"global_symbol": "main"})
        for i in range(n // 2):
            with T.sblock("B"):
                v = T.axis.spatial(n // 2, i)
                B[v] = T.log(A[v] * T.float32(0) - T.float32(1))

    return {"partial": half, "nan-partial": half_of_nan, "outside": outside, "overwrite": overwrite}[what]
