"""Calls and constants of Relax."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from devices.networks.graph.ir.tensors import Array, shape_of


def is_call(expression: Any, name: str) -> bool:
    """Return true if ``expression`` is a call of the operator ``name``."""
    return operator_name(expression) == name


def operator_name(expression: Any) -> str:
    """Return the name of the operator that ``expression`` calls; empty for anything else."""
    return str(expression.op.name) if isinstance(expression, Call) and isinstance(expression.op, tvm.ir.Op) else ""


def shown_product(call: Call) -> str:
    """Return a product in words: its operator, and the extents of its result without a batch of one."""
    operator = operator_name(call).removeprefix("relax.").removeprefix("nn.")
    extents = [str(each) for each in shape_of(call) or ()]
    return f"{operator} {'x'.join(extents[1:] if extents[:1] == ['1'] and len(extents) > 1 else extents)}"


def constant(array: Array) -> Any:
    """Return ``array`` as a constant of Relax."""
    return relax.const(np.asarray(array, order="C"), str(array.dtype))
