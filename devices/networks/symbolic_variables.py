"""Symbolic variables of a network's Relax module: the extents that are known when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx

from fleet_tune.base.shapes.dimensions import Dimension
from fleet_tune.base.shapes.extent_sums import ExtentSum


def sum_of(extent: Any) -> ExtentSum | None:
    """Return an extent as a sum of variables, by their names. None if it is not a sum of variables with factors of 0 or
    more."""
    if isinstance(extent, int | tirx.IntImm):
        return ExtentSum((), int(extent)) if int(extent) >= 0 else None
    if isinstance(extent, tirx.Var):
        return ExtentSum(((str(extent.name), 1),))
    if not isinstance(extent, tirx.Add | tirx.Mul):
        return None
    first, second = sum_of(extent.a), sum_of(extent.b)
    if first is None or second is None:
        return None
    if isinstance(extent, tirx.Add):
        return first + second
    if second.terms:
        first, second = second, first
    return None if second.terms else first * second.number


def extent_text(extent: Any) -> int | str:
    """Return an extent as a number or as text. If it is a sum of variables, this is the text of the
    :class:`ExtentSum`."""
    found = sum_of(extent)
    if found is None:
        return str(extent)
    return str(found) if found.terms else found.number


def with_variables(module: Any, variables: Mapping[str, str | int]) -> Any:
    """Return an IRModule whose ``main`` has the names or numbers in ``variables`` for its symbolic variables, by their
    old names."""
    bound = {name: tirx.Var(to, "int64") if isinstance(to, str) else to for name, to in variables.items() if name != to}
    return _with_main(module, module["main"].bind_symbolic_vars(bound)) if bound else module


def with_bounds(module: Any, dimensions: Sequence[Dimension]) -> Any:
    """Return an IRModule whose ``main`` declares the bounds of its symbolic variables."""
    main = module["main"]
    for name, of in (("tir_var_lower_bound", "least"), ("tir_var_upper_bound", "most")):
        main = main.without_attr(name) if name in main.attrs else main
        if dimensions:
            main = main.with_attr(name, {each.name: getattr(each, of) for each in dimensions})
    return _with_main(module, main)


def named_shapes(module: Any) -> tuple[tuple[int | str, ...], ...]:
    """Return the shapes of the inputs of ``main``. An extent is a number, the name of a variable, or the text of a
    sum."""
    return tuple(
        tuple(extent_text(extent) for extent in shape)
        for shape in (parameter.ty.shape.values for parameter in module["main"].params)
    )


def _with_main(module: Any, main: Any) -> Any:
    changed = tvm.IRModule(dict(module.functions.items()), module.attrs)
    changed.update_func(module.get_global_var("main"), main)
    return changed
