"""What is done to kernels for CPUs beside TVM's own passes, whoever schedules them."""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from devices.builds.one_core import serial_on_one_core
from devices.builds.stack import noted, on_the_stack


@functools.cache
def use_kernel_passes() -> None:
    """Have it done to all kernels that this process builds."""
    register_tir_pipeline("s_tir", _pipeline)


def _pipeline() -> Any:
    lowering, finalize_host, finalize_device = default_s_tir_pipeline()
    return (
        tvm.transform.Sequential([noted, serial_on_one_core, lowering]),
        lambda: tvm.transform.Sequential([on_the_stack, finalize_host()]),
        finalize_device,
    )
