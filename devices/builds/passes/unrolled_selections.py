"""Folding of selections whose index is constant after unrolling.

The transforms of Winograd's algorithm select a row of a matrix by the number of an iteration. TVM unrolls these loops,
simplifies each copy together with all rows that it does not select, and LLVM compiles the result, which takes most of
the time of such a build. This pass removes the rows that are not selected, between TVM's passes. The remaining code
reads each element of the padded image several times, in branches; the pass makes it read each element once. Builds of
recorded candidates took 0.36 times as long, and the kernels were as fast as before (docs/lab/kernels.md).
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
    """Pass that replaces each selection with a constant index by the selected value. In a function with such
    selections, elements that are read in branches several times are then read once."""
    body = structural_map(function.body, (Select, _selected))
    if body.same_as(function.body):
        return function
    written: list[Any] = []
    structural_walk(body, [(BufferStore, lambda store: written.append(store.buffer))])
    return function.with_body(structural_map(body, (SeqStmt, partial(_read_once, written=written))))


def _selected(selection: Select) -> Any:
    condition = selection.condition
    if isinstance(condition, Broadcast):  # in a vectorised loop
        condition = condition.value
    if not (isinstance(condition, EQ) and isinstance(condition.a, IntImm) and isinstance(condition.b, IntImm)):
        return selection
    return selection.true_value if int(condition.a) == int(condition.b) else selection.false_value


def _read_once(run: SeqStmt, written: Sequence[Any]) -> Stmt:
    """Return a sequence of stores in which elements that are read in branches more than once are read once, before all
    stores. Any other sequence stays unchanged. ``written``: buffers that the function writes; reads of them are not
    moved."""
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
        return WalkResult.SKIP  # an inner branch is evaluated only if the condition of this one holds

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
