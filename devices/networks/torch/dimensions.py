"""Dynamic dimensions of torch's exported programs, and the names that the user gave them (torch.export.Dim).

Importing this module loads torch.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from devices.networks.dynamic.dimensions import DynamicDimension
from fleet_tune.base.errors import UnsupportedNetworkError
from fleet_tune.base.shapes.extent_sums import ExtentSum


def program_inputs(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return fake tensors of the user's inputs by name."""
    names = program.graph_signature.user_inputs
    return {
        node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names
    }


def dynamic_dimensions(
    program: torch.export.ExportedProgram, names: Mapping[str, str], where: str
) -> dict[str, DynamicDimension]:
    """Return the dynamic dimensions of the inputs of ``program`` by torch's symbol, with the program's bounds.

    Args:
        program: the program.
        names: names of symbols; others keep the symbol's name.
        where: the network, for messages.

    Raises :class:`UnsupportedNetworkError` for an extent that is neither a symbol nor a sum of symbols that are extents
    of inputs.
    """
    found: dict[str, DynamicDimension] = {}
    sums: list[tuple[str, int, Any]] = []
    for name, value in program_inputs(program).items():
        for axis, extent in enumerate(getattr(value, "shape", ())):
            if isinstance(extent, int):
                continue
            symbol = extent.node.expr
            if not symbol.is_Symbol:
                sums.append((name, axis, extent))
                continue
            limits = program.range_constraints.get(symbol)
            least, most = (0, None) if limits is None else (_whole(limits.lower), _whole(limits.upper))
            called = names.get(str(symbol), str(symbol))
            found.setdefault(str(symbol), DynamicDimension(called, name, axis, max(least or 0, 0), most))
    for name, axis, extent in sums:
        total = sum_of(extent)
        if total is None or not all(each in found for each in total.names):
            raise UnsupportedNetworkError(
                f"{where}: the dimension {axis} of the input {name!r} is computed from others: {extent}",
                "export it with dimensions that are fixed, torch.export.Dim, or sums of those of other inputs",
            )
    return found


def sum_of(extent: int | torch.SymInt) -> ExtentSum | None:
    """Return torch's extent as a sum of its symbols, by their names. None if it is not a sum of symbols with factors of
    0 or more."""
    return ExtentSum((), extent) if isinstance(extent, int) else _sum_of(extent.node.expr)


def _sum_of(expression: Any) -> ExtentSum | None:
    if expression.is_Symbol:
        return ExtentSum(((str(expression), 1),))
    if expression.is_Integer:
        return ExtentSum((), int(expression)) if int(expression) >= 0 else None
    if expression.is_Mul and len(expression.args) == 2 and expression.args[0].is_Integer:
        factor, of = int(expression.args[0]), _sum_of(expression.args[1])
        return None if of is None or factor < 0 else of * factor
    parts = [_sum_of(each) for each in expression.args] if expression.is_Add else [None]
    known = [each for each in parts if each is not None]
    return functools.reduce(operator.add, known) if len(known) == len(parts) else None


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
    """Return the dynamic axes of each input, in order. torch has checked their form: they are given by the names of the
    parameters of ``forward``, or in order. A ``*parameter`` has one element, a sequence."""
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
