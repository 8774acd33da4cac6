"""Networks as the user gives them: read, checked, and translated into a Relax module with fixed shapes.

Three forms are read: ``file.py:function`` (the function returns a torch module and its example inputs), an ``.onnx``
file, and a ``.pt2`` file saved by :func:`torch.export.save`. Importing this module loads neither torch, onnx nor TVM.

Every mistake in the input is a :class:`~fleet_tune.base.errors.NetworkError`; a network that was read but cannot be
compiled is an :class:`~fleet_tune.base.errors.UnsupportedNetworkError` that names the operator, or the input and
dimension.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from devices.networks.input_file import read_inputs
from devices.networks.network import Network
from devices.networks.onnx.frontend import from_onnx_file
from devices.networks.torch.frontend import from_pt2, from_torch
from devices.networks.user_file import call_function, checked_example, locate

if TYPE_CHECKING:
    import torch

__all__ = ["Network", "load_network", "locate"]


def load_network(
    spec: str | Path | tuple[torch.nn.Module, tuple[torch.Tensor, ...]],
    inputs: Path | None = None,
    trusted: bool = False,
) -> Network:
    """Read and translate a network.

    Args:
        spec: one of the three forms of this module's docstring, or a pair of a torch module and its example inputs.
        inputs: an ``.npz`` file with the inputs on which the network is compared with its framework, and timed. None
            for the network's own examples; where it has none they are made up (see
            :mod:`devices.networks.input_ranges`).
        trusted: run code that is in a ``.pt2`` file; else a file that cannot be read without that is refused. A ``.py``
            file is code, and runs.

    Raises :class:`NetworkError` when it or its inputs cannot be read, :class:`UnsupportedNetworkError` when it cannot
    be compiled.
    """
    network = _read(spec, trusted)
    if inputs is not None:
        return network.given(read_inputs(inputs, network), str(inputs))
    if network.inputs_from:
        return network
    from devices.networks.input_ranges import with_made_up_inputs

    return with_made_up_inputs(network)


def _read(spec: str | Path | tuple[torch.nn.Module, tuple[torch.Tensor, ...]], trusted: bool) -> Network:
    if isinstance(spec, tuple):
        module, inputs = checked_example(spec, "the network given")
        return from_torch(type(module).__name__, module, inputs, "the network given")
    file, function = locate(spec)
    if function:
        module, inputs = checked_example(call_function(file, function), str(spec))
        return from_torch(function, module, inputs, str(spec))
    return replace(from_onnx_file(file), inputs_from="") if file.suffix == ".onnx" else from_pt2(file, trusted)
