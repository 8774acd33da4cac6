"""Tasks with real programs."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import te, topi

from fleet_tune.base.domain import DeviceClass, Task, Workload


def make_function(tensors: Sequence[te.Tensor], constants: tuple[int, ...] = ()) -> tvm.tirx.PrimFunc:
    """The function of these arguments, as networks are lowered to; ``constants``: which may be laid out anew."""
    function = te.create_prim_func(list(tensors)).with_attr({"global_symbol": "main", "tirx.noalias": True})
    return function.with_attr("layout_free_buffers", list(constants)) if constants else function


def program_task(
    tensors: Sequence[te.Tensor],
    target: str,
    *,
    name: str = "test",
    device_class: str = "here",
    flop: float = 1.0,
    constants: tuple[int, ...] = (),
) -> Task:
    """The task of the program that works out the last of ``tensors`` of the others. ``target``: canonical text."""
    text = tvm.ir.save_json(tvm.IRModule({"main": make_function(tensors, constants)}))
    return Task(Workload(f"hash-{name}", name, flop, text), DeviceClass(device_class, target))


def matmul(rows: int, inner: int, columns: int) -> tuple[te.Tensor, ...]:
    """Arguments of a matrix product in float32."""
    a, b = te.placeholder((rows, inner), name="a"), te.placeholder((inner, columns), name="b")
    return a, b, topi.matmul(a, b)
