"""TVM's default schedules, for kernels without a chosen schedule."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import dlight


def default_schedules() -> Any:
    """Return the pass that binds the unscheduled kernels of a module to a GPU's threads, without which they cannot
    run."""
    rules = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction, dlight.gpu.GeneralReduction)
    return dlight.ApplyDefaultSchedule(*(rule() for rule in rules), dlight.gpu.Fallback())
