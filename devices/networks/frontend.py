"""Networks as the user gives them: read, checked, and translated into a Relax module.

Three forms are read: ``file.py:function`` (the function returns a torch module, its example inputs and, for dynamic
dimensions, ``dynamic_shapes`` as torch.export takes it), an ``.onnx`` file, and a ``.pt2`` file saved by
:func:`torch.export.save`. Importing this module loads neither torch, onnx nor TVM.

Every mistake in the input is a :class:`~fleet_tune.base.errors.NetworkError`; a network that was read but cannot be
compiled is an :class:`~fleet_tune.base.errors.UnsupportedNetworkError` that names the operator, or the input and
dimension.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devices.networks.input_file import read_inputs
from devices.networks.network import Network
from devices.networks.onnx.frontend import from_onnx_file
from devices.networks.torch.frontend import from_pt2, from_torch
from devices.networks.user_file import call_function, checked_example, locate
from fleet_tune.base.shapes.shapes import Shapes

__all__ = ["Network", "load_network", "locate"]


def load_network(
    spec: str | Path | tuple[Any, ...],
    inputs: Path | None = None,
    trusted: bool = False,
    shapes: Shapes | None = None,
) -> Network:
    """Read and translate a network.

    Args:
        spec: one of the three forms of this module's docstring, or a torch module and its example inputs, as the
            function returns them.
        inputs: an ``.npz`` file with the inputs on which the network is compared with its framework, and timed. None:
            the network's own examples. If it has none, inputs are made up (see :mod:`devices.networks.input_ranges`).
        trusted: run code that a ``.pt2`` file contains. Otherwise a file that cannot be read without running code is
            refused. A ``.py`` file always runs.
        shapes: bounds of its dynamic dimensions, and how often each extent occurs. A network whose dimensions have
            bounds of their own (``torch.export.Dim``) needs none.

    Raises :class:`NetworkError` when it or its inputs cannot be read, or a dynamic dimension has no bounds,
    :class:`UnsupportedNetworkError` when it cannot be compiled.
    """
    network = _read(spec, trusted, shapes)
    if inputs is not None:
        return network.with_own(read_inputs(inputs, network), str(inputs))
    if network.shapes is not None:
        return network.at(network.shapes.typical)
    if network.inputs_from:
        return network
    return network.with_made_up_inputs()


def _read(spec: str | Path | tuple[Any, ...], trusted: bool, shapes: Shapes | None) -> Network:
    if isinstance(spec, tuple):
        module, inputs, dynamic = checked_example(spec, "the network given")
        return from_torch(type(module).__name__, module, inputs, "the network given", dynamic, shapes)
    file, function = locate(spec)
    if function:
        module, inputs, dynamic = checked_example(call_function(file, function), str(spec))
        return from_torch(function, module, inputs, str(spec), dynamic, shapes)
    return from_onnx_file(file, shapes) if file.suffix == ".onnx" else from_pt2(file, trusted, shapes)
