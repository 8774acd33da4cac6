"""Selections whose index is a number once loops are unrolled.

The transforms of Winograd's algorithm select a row of a matrix by the number of an iteration. TVM unrolls their loops
and then simplifies each copy with all the rows that it does not take, and LLVM compiles them: most of the time of such
a build. Here the rows that are not taken go first, between TVM's passes. What is left reads each element of the padded
image several times, in branches; it is read once. Builds of recorded candidates took 0.36 times as long, and the
kernels as long as before (docs/lab/kernels.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import EQ, Bind, Broadcast, BufferStore, IntImm, PrimFunc, Select, SeqStmt, Stmt, Var
from tvm_ffi import WalkResult, structural_hash, structural_map, structural_walk

_BRANCH = "prim.if_then_else"


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def fold_selections(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass that replaces each selection by what it selects, where that is known. Elements that a function with such
    selections reads in branches, again and again, are read once."""
    body = structural_map(function.body, (Select, _selected))
    if body.same_as(function.body):
        return function
    written: list[Any] = []
    structural_walk(body, [(BufferStore, lambda store: written.append(store.buffer))])
    return function.with_body(structural_map(body, (SeqStmt, partial(_read_once, written=written))))


def _selected(selection: Select) -> Any:
    condition = selection.condition
    if isinstance(condition, Broadcast):  # of a vectorised loop inside
        condition = condition.value
    if not (isinstance(condition, EQ) and isinstance(condition.a, IntImm) and isinstance(condition.b, IntImm)):
        return selection
    return selection.true_value if int(condition.a) == int(condition.b) else selection.false_value


def _read_once(run: SeqStmt, written: Sequence[Any]) -> Stmt:
    """Return a run of stores that reads what it reads in branches more than once before all of them; any other
    sequence as it is. ``written``: the buffers that the function writes, of which nothing is moved."""
    if not all(isinstance(each, BufferStore) for each in run):
        return run
    counts: Counter[int] = Counter()
    branches: dict[int, Any] = {}

    def note(call: Call) -> WalkResult:
        if not _is_branch(call):
            return WalkResult.ADVANCE
        key = structural_hash(call)
        counts[key] += 1
        branches.setdefault(key, call)
        return WalkResult.SKIP  # a branch inside is read only where this one's condition holds

    structural_walk(run, [(Call, note)], order="pre")
    variables: dict[int, Var] = {}
    for key, branch in branches.items():
        loads: list[TensorLoad] = []
        structural_walk(branch, [(TensorLoad, loads.append)])
        if counts[key] > 1 and not any(load.source.same_as(each) for load in loads for each in written):
            variables[key] = Var("element", branch.ty)

    def known(call: Call) -> Any:
        return variables.get(structural_hash(call), call) if _is_branch(call) else call

    reads = [Bind(variable, branches[key]) for key, variable in variables.items()]
    return SeqStmt([*reads, *structural_map(run, (Call, known), order="pre")]) if reads else run


def _is_branch(call: Call) -> bool:
    return getattr(call.op, "name", "") == _BRANCH
