"""A network's kernels as one CUDA graph: the host launches them by one call, not one by one.

A launch takes the host about as long as a small kernel takes the GPU. TVM captures the kernels at the first call and
replays them afterwards; kernels that read the network's inputs or write its outputs stay outside, since inputs and
outputs have new addresses in each call.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from devices.timing.in_network import MAIN, MAIN_BY_KERNEL

_USE = "relax.backend.use_cuda_graph"


def use_cuda_graph() -> tvm.transform.Pass:
    """Return the pass that makes ``main`` replay a CUDA graph, and adds ``main_by_kernel``: ``main`` without the graph.

    It takes a module whose memory is planned (``StaticPlanBlockMemory``) and whose ``main`` has the attribute
    ``num_input``, which tells inputs from weights: weights must be the same tensors in every call of a virtual machine.
    """

    def rewrite(module: Any, _context: Any) -> Any:
        main = module[MAIN]
        with tvm.transform.PassContext(config={_USE: True}):
            result = relax.transform.RewriteCUDAGraph()(module)
        copied = relax.utils.copy_with_new_vars(main).with_attr("global_symbol", MAIN_BY_KERNEL)
        result.update_func(tvm.ir.GlobalVar(MAIN_BY_KERNEL), copied)
        return result

    return tvm.transform.module_pass(rewrite, opt_level=0, name="UseCudaGraph")
