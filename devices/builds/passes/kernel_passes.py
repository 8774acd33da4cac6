"""The lowering pipeline of kernels: TVM's passes and our own, for kernels of every scheduler."""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from devices.builds.passes.byte_instructions import lower_byte_operators
from devices.builds.passes.constant_divisors import multiply_by_reciprocals
from devices.builds.passes.cuda_vectors import narrow_cuda_vectors
from devices.builds.passes.extremes import begin_at_infinity, propagate_nan, propagate_nan_on_device
from devices.builds.passes.half_instructions import lower_half_operators
from devices.builds.passes.joined_loads import join_byte_loads
from devices.builds.passes.lowering_stages import in_stages
from devices.builds.passes.panel_prefetch import prefetch_next_panels
from devices.builds.passes.serial_loops import serialize_parallel_loops
from devices.builds.passes.stack_buffers import mark_cpu_functions, place_on_stack
from devices.builds.passes.unrolled_selections import fold_selections
from devices.builds.passes.wide_vectors import split_wide_vectors
from devices.cuda.lowering import lowered_for_cuda
from devices.cuda.vector_stores import separate_vector_stores

WITH_KERNEL_PASSES = "fleet_tune.kernel_passes"
"""Name of the pipeline of TensorIR that applies the passes."""


@functools.cache
def use_kernel_passes() -> None:
    """Apply the passes to all kernels that this process builds."""
    register_tir_pipeline("s_tir", _pipeline)


def _pipeline() -> Any:
    lowering, finalize_host, finalize_device = default_s_tir_pipeline()
    lowering = in_stages(lowering, [("s_tir.LoopPartition", narrow_cuda_vectors), ("tirx.UnrollLoop", fold_selections)])
    lowering = tvm.transform.Sequential(
        [mark_cpu_functions, serialize_parallel_loops, split_wide_vectors, begin_at_infinity, lowering]
    )
    return (
        lowered_for_cuda(lowering),
        lambda: tvm.transform.Sequential(
            [
                join_byte_loads,
                lower_byte_operators,
                lower_half_operators,
                prefetch_next_panels,
                place_on_stack,
                propagate_nan,
                multiply_by_reciprocals,
                finalize_host(),
            ]
        ),
        lambda: tvm.transform.Sequential(
            [
                lower_byte_operators,
                multiply_by_reciprocals,
                finalize_device(),
                propagate_nan_on_device,
                separate_vector_stores,
            ]
        ),
    )


register_tir_pipeline(WITH_KERNEL_PASSES, _pipeline)
