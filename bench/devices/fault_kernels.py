"""Kernels with the faults that a candidate may have: they crash, hang, allocate without end, or write out of bounds.

All claim to compute ``B = 2 A + 1`` over ``SIZE`` floats. The kernel "slow" sleeps for two seconds the first time that
it runs in a working directory.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.script import tirx as T

from devices.builds.linking import link
from devices.protocol import Artifact, TensorSpec
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate

SIZE = 1024
TASK = "scale"
_BLOCK = 1 << 26


def artifact(what: str, target: str | None = None, oracle: bool = False) -> Artifact:
    """Return the kernel ``what``: "ok", "nan", "crash", "hang", "slow", "allocate" or "outside".

    ``target``: the target that it is built for; this machine if None. ``oracle``: as the oracle of the task, without a
    candidate.
    """
    target = target or resolve_target("native")
    function = _function(what).with_attr("global_symbol", "main")
    library = link(tvm.tirx.build(tvm.IRModule({"main": function}), target=parse_target(target)), target)
    specs = (TensorSpec((SIZE,), "float32"), TensorSpec((SIZE,), "float32"))
    candidate = None if oracle else Candidate(TASK, 0, what, (SIZE,))
    return Artifact(TASK, candidate, library, specs, specs, (1,), (), "", 0.1)


def _function(what: str) -> Any:
    if what == "outside":
        return _outside()
    a = te.placeholder((SIZE,), name="A")
    call = tvm.tirx.call_extern

    def allocate(i: Any) -> Any:
        block = call("int64", "malloc", tvm.tirx.const(_BLOCK, "int64"))
        return a[i] + call("int64", "memset", block, 1, tvm.tirx.const(_BLOCK, "int64")).astype("float32")

    def slow(i: Any) -> Any:
        first = call("int32", "mkdir", "started", 0o700) + 1
        return a[i] * 2.0 + 1.0 + call("int32", "sleep", first * 2).astype("float32")

    rules = {
        "ok": lambda i: a[i] * 2.0 + 1.0,
        "nan": lambda i: te.log(a[i] * 0.0 - 1.0),
        "crash": lambda i: a[i] + call("int32", "raise", 11).astype("float32"),
        "hang": lambda i: a[i] + call("int32", "sleep", 3600).astype("float32"),
        "slow": slow,
        "allocate": allocate,
    }
    return te.create_prim_func([a, te.compute((SIZE,), rules[what], name="B")])


def _outside() -> Any:
    """Return a kernel that writes 4 GiB behind its output."""

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(A: T.Buffer((1024,), "float32"), B: T.Buffer((1024,), "float32")) -> None:  # type: ignore[valid-type]
        for i in range(1024):
            with T.sblock("B"):
                v = T.axis.spatial(1024, i)
                B[v + 1073741824] = A[v] * T.float32(2) + T.float32(1)

    return main
