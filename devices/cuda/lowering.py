"""Lowering of the CUDA kernels of a module, each with the options that it needs."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.tirx import PrimFunc

# Without this option TVM lets a float32 buffer in shared memory take the place of a float16 buffer, and then rejects
# it: kernels on tensor cores that multiply in one type and sum in another would not build.
_MERGED = "tirx.merge_static_smem"
_UNPLACED = "buffer_byte_offsets"
"""Part of TVM's error message if the shared buffer of a reduction over threads is missing among the merged buffers."""


def lowered_for_cuda(lowering: tvm.transform.Pass) -> tvm.transform.Pass:
    """Return a pass that applies ``lowering`` to each CUDA kernel by itself, with merged shared memory. If TVM fails
    with that, as it does for the reductions over threads of a softmax, the kernel is lowered without it. The option
    would hold for a whole module."""

    def lower(module: Any, context: Any) -> Any:
        kernels = {variable: each for variable, each in module.functions.items() if _is_for_cuda(each)}
        others = {variable: each for variable, each in module.functions.items() if variable not in kernels}
        parts = [lowering(tvm.IRModule(others, module.attrs))] if others or not kernels else []
        for variable, kernel in kernels.items():
            parts.append(_lowered(lowering, tvm.IRModule({variable: kernel}, module.attrs), context))
        functions = {variable: each for part in parts for variable, each in part.functions.items()}
        return tvm.IRModule(functions, parts[0].attrs)

    return tvm.transform.module_pass(lower, opt_level=0, name="LowerForCuda")


def _lowered(lowering: tvm.transform.Pass, kernel: Any, context: Any) -> Any:
    try:
        with tvm.transform.PassContext(config={**dict(context.config), _MERGED: True}):
            return lowering(kernel)
    except Exception as error:
        if _UNPLACED not in str(error):
            raise
        return lowering(kernel)


def _is_for_cuda(function: Any) -> bool:
    target = function.attrs.get("target") if isinstance(function, PrimFunc) and function.attrs else None
    return target is not None and str(target.kind.name) == "cuda"
