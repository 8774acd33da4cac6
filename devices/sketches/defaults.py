"""TVM's default schedules, for kernels without a chosen schedule."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import dlight


def default_schedules() -> Any:
    """Return the pass that binds the loops of unscheduled kernels to a GPU's threads. Without it they cannot run."""
    rules = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction, dlight.gpu.GeneralReduction)
    return dlight.ApplyDefaultSchedule(*(rule() for rule in rules), dlight.gpu.Fallback())
