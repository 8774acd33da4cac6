"""Networks of dynamic shapes as they were imported, against their framework."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tvm
from tvm import relax

from devices.networks.network import Network


def agree_at(network: Network, extents: Iterable[int], tolerance: float = 1e-4) -> None:
    """Assert that the Relax module, built once by TVM alone, gives the framework's outputs for these extents."""
    assert "tensor_to_shape" not in network.relax_module.script(show_meta=False)  # all shapes follow from the inputs'
    machine = relax.VirtualMachine(relax.build(network.relax_module, "llvm"), tvm.cpu())
    for extent in extents:
        at = network.at(extent)
        result = machine["main"](*map(tvm.runtime.tensor, at.example_inputs))
        outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        for ours, theirs in zip(outputs, at.framework_outputs(), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=tolerance, atol=tolerance)
