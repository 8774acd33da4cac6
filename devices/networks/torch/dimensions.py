"""Dynamic dimensions of torch's exported programs, and the names that the user gave them (torch.export.Dim).

Importing this module loads torch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from devices.networks.dynamic_dimensions import DynamicDimension
from fleet_tune.base.errors import UnsupportedNetworkError


def program_inputs(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return fake tensors of the user's inputs by name."""
    names = program.graph_signature.user_inputs
    return {
        node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names
    }


def dynamic_dimensions(
    program: torch.export.ExportedProgram, names: Mapping[str, str], where: str
) -> dict[str, DynamicDimension]:
    """Return the dynamic dimensions of the inputs of ``program`` by torch's symbol, with the bounds that the program
    has.

    Args:
        program: the program.
        names: names of symbols; others keep the symbol's name.
        where: the network, for messages.

    Raises :class:`UnsupportedNetworkError` for an extent that is not a symbol but computed from some.
    """
    found: dict[str, DynamicDimension] = {}
    for name, value in program_inputs(program).items():
        for axis, extent in enumerate(getattr(value, "shape", ())):
            if isinstance(extent, int):
                continue
            symbol = extent.node.expr
            if not symbol.is_Symbol:
                raise UnsupportedNetworkError(
                    f"{where}: the dimension {axis} of the input {name!r} is computed from others: {symbol}",
                    "export it with dimensions that are fixed or torch.export.Dim, none of them derived",
                )
            limits = program.range_constraints.get(symbol)
            least, most = (1, None) if limits is None else (_whole(limits.lower), _whole(limits.upper))
            called = names.get(str(symbol), str(symbol))
            found.setdefault(str(symbol), DynamicDimension(called, name, axis, max(least or 1, 1), most))
    return found


def dimension_names(
    program: torch.export.ExportedProgram, module: torch.nn.Module, dynamic_shapes: Any
) -> dict[str, str]:
    """Return the names of torch's symbols in a program that was exported from ``module`` with these shapes."""
    names: dict[str, str] = {}
    inputs = list(program_inputs(program).values())
    for value, axes in zip(inputs, _per_input(module, dynamic_shapes), strict=False):
        for axis, dimension in _named(axes):
            symbol = getattr(getattr(value.shape[axis], "node", None), "expr", None)
            if getattr(symbol, "is_Symbol", False):
                names.setdefault(str(symbol), dimension)
    return names


def _per_input(module: torch.nn.Module, dynamic_shapes: Any) -> list[Any]:
    """Return the dynamic axes of each input, in order. torch has checked their form: by the names of the parameters of
    ``forward``, or in order; ``*parameter`` has one element, a sequence."""
    parameters = inspect.signature(module.forward).parameters
    if not isinstance(dynamic_shapes, Mapping):
        dynamic_shapes = dict(zip(parameters, dynamic_shapes or (), strict=False))
    found: list[Any] = []
    for name, parameter in parameters.items():
        axes = dynamic_shapes.get(name)
        found += (axes or ()) if parameter.kind is inspect.Parameter.VAR_POSITIONAL else [axes]
    return found


def _named(axes: Any) -> Iterator[tuple[int, str]]:
    pairs = axes.items() if isinstance(axes, Mapping) else enumerate(axes or ())
    for axis, dimension in pairs:
        name = getattr(dimension, "__name__", None)
        if isinstance(name, str):
            yield axis, name


def _whole(limit: Any) -> int | None:
    return None if math.isinf(float(limit)) else int(limit)
