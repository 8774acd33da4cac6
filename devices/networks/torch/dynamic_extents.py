"""torch's dynamic extents in Relax: expressions of the program's symbols, and slices. (TVM's importer gives slices
extents with minima that it cannot resolve.)

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from tvm import relax, tirx

from devices.networks.graph.ir.dynamic_extents import numbers
from fleet_tune.base.errors import UnsupportedNetworkError

Convert = Callable[[fx.Node], Any]


class SymbolVariables:
    """The Relax variables of a program's symbols."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}

    def learn(self, value: Any, parameter: Any) -> None:
        """Map the symbols of torch's fake tensor to the variables of a Relax parameter of the same shape."""
        for extent, ours in zip(value.shape, parameter.ty.shape.values, strict=True):
            if not isinstance(extent, int) and extent.node.expr.is_Symbol:
                self._variables.setdefault(str(extent.node.expr), ours)

    def expression(self, extent: int | torch.SymInt) -> Any:
        """Return torch's extent in Relax. None if it is not a polynomial of known symbols."""
        return extent if isinstance(extent, int) else self._of(extent.node.expr)

    def expressions(self, extents: Sequence[int | torch.SymInt]) -> list[Any] | None:
        """Return a shape of torch in Relax. None if an extent has no expression."""
        found = [self.expression(extent) for extent in extents]
        return None if any(each is None for each in found) else found

    def _of(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._variables.get(str(expression))
        parts = [self._of(each) for each in expression.args]
        if any(part is None for part in parts) or not (expression.is_Add or expression.is_Mul or expression.is_Pow):
            return None
        if expression.is_Pow and not (isinstance(parts[1], int) and parts[1] > 0):
            return None
        result, *others = [parts[0]] * parts[1] if expression.is_Pow else parts
        for other in others:
            result = result + other if expression.is_Add else result * other
        return result


def translations(importer: Any, known: Iterable[str]) -> dict[str, Callable[[Convert], Convert]]:
    """Return wrappers for the translations of some operators, by the operators' names, for TVM's ``importer`` of
    torch's programs. ``known``: names of all operators that have a translation."""

    def sliced(convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            arguments: Any = node.args
            given: Any = (*arguments, *(0, None, None, 1)[len(arguments) - 1 :])
            data, axis, start, end, step = given
            before, after = data.meta["val"].shape, node.meta["val"].shape
            extents = importer.symbols.expressions((before[axis], after[axis]))
            fixed = not any(isinstance(each, fx.Node) for each in (start, end))
            if step != 1 or extents is None or (fixed and all(isinstance(extent, int) for extent in extents)):
                return convert(node)
            whole, kept = extents
            first = _first(importer, start, end, before[axis], whole, kept)
            if first is None:
                return convert(node)
            bounds = [[_as_expression(each)] for each in (first, first + kept, 1)]
            place = axis % len(before)
            result = relax.op.strided_slice(importer.env[data], [place], *bounds, assume_inbound=True)
            return importer.block_builder.emit(result)

        return converted

    def resized(convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            data: Any = node.args[0]
            numbers("interpolate", (*data.meta["val"].shape[2:], *node.meta["val"].shape[2:]))
            return convert(node)

        return converted

    resizing = (name for name in known if str(name).startswith("upsample_"))
    return {"slice.Tensor": sliced, **dict.fromkeys(resizing, resized)}


def _first(importer: Any, start: Any, end: Any, length: int | torch.SymInt, whole: Any, kept: Any) -> Any:
    """Return the position at which a slice of ``kept`` elements begins. None if TVM's translation is used, which is
    correct for any number as ``start``. ``whole`` is the expression of ``length``.

    Raises UnsupportedNetworkError for a symbolic start that may have either sign, or lie outside of the axis.
    """
    value = start.meta["val"] if isinstance(start, fx.Node) else start or 0
    begin = importer.env[start] if isinstance(start, fx.Node) else value
    if _is_known(value >= 0) and _is_known(value <= length):
        return begin
    if isinstance(value, int):
        end = end.meta["val"] if isinstance(end, fx.Node) else end
        to_the_end = value < 0 and (end is None or (isinstance(end, int) and end >= 1 << 31))
        return whole - kept if to_the_end else None
    if _is_known(value < 0) and _is_known(value + length >= 0):
        return begin + whole
    raise UnsupportedNetworkError(
        f"a slice begins at {value} of an axis of {length}, which is not within it for every extent",
        "give the dimension closer bounds (torch.export.Dim has min and max), or one extent: --shapes NAME=EXTENT",
    )


def _is_known(condition: bool | torch.SymBool) -> bool:
    """Return true if a condition holds for all extents that torch has proven the program for."""
    return bool(statically_known_true(condition))


def scalar(importer: Any, extent: Any, dtype: str) -> Any:
    """Return an extent as a tensor of no dimensions."""
    if isinstance(extent, int):
        return relax.const(extent, dtype)
    row = importer.block_builder.emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent])))
    value = importer.block_builder.emit(relax.op.reshape(row, []))
    return value if dtype == "int64" else importer.block_builder.emit(relax.op.astype(value, dtype))


def _as_expression(extent: Any) -> Any:
    return tirx.IntImm("int64", extent) if isinstance(extent, int) else extent
