"""Reading of a network for other frameworks: nothing is translated."""

from __future__ import annotations

from collections.abc import Sequence

from devices.networks.frameworks.runners import NetworkSource
from devices.networks.network import Array
from devices.networks.torch.arrays import tensor_of
from devices.networks.torch.program_file import load_program
from devices.networks.user_file import call_function, checked_example, locate


def read_source(
    spec: str, inputs: Sequence[Array], trusted: bool, shapes: tuple[tuple[int | str, ...], ...] = ()
) -> NetworkSource:
    """Read a network.

    Args:
        spec: a form of :mod:`devices.networks.frontend`.
        inputs: its inputs.
        trusted: run code that a ``.pt2`` file contains.
        shapes: shapes of its inputs, with names for dynamic extents. Empty for fixed shapes.

    Raises :class:`NetworkError`.
    """
    file, function = locate(spec)
    tensors = tuple(tensor_of(array) for array in inputs)
    if file.suffix == ".onnx":
        return NetworkSource(None, file.absolute(), tensors, shapes)
    if function:
        module = checked_example(call_function(file, function), spec)[0].eval()
        return NetworkSource(module, None, tensors, shapes)
    from devices.networks.torch.operators import quantization  # noqa: F401 - registers the operators that the file may have

    return NetworkSource(load_program(file, trusted).module(), None, tensors, shapes)
