"""Symbolic variables of a network's Relax module: the extents that are known when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx

from fleet_tune.base.shapes import Dimension


def with_variables(module: Any, variables: Mapping[str, str | int]) -> Any:
    """Return an IRModule whose ``main`` has other names, or numbers, for its symbolic variables: by their names."""
    bound = {name: tirx.Var(to, "int64") if isinstance(to, str) else to for name, to in variables.items() if name != to}
    return _with_main(module, module["main"].bind_symbolic_vars(bound)) if bound else module


def with_bounds(module: Any, dimensions: Sequence[Dimension]) -> Any:
    """Return an IRModule whose ``main`` says the bounds of its symbolic variables."""
    main = module["main"]
    for name, of in (("tir_var_lower_bound", "least"), ("tir_var_upper_bound", "most")):
        main = main.without_attr(name) if name in main.attrs else main
        if dimensions:
            main = main.with_attr(name, {each.name: getattr(each, of) for each in dimensions})
    return _with_main(module, main)


def named_shapes(module: Any) -> tuple[tuple[int | str, ...], ...]:
    """Return the shapes of the inputs of ``main``, with the name of the variable where an extent is one."""
    return tuple(
        tuple(int(extent) if isinstance(extent, int | tirx.IntImm) else str(extent.name) for extent in shape)
        for shape in (parameter.ty.shape.values for parameter in module["main"].params)
    )


def _with_main(module: Any, main: Any) -> Any:
    changed = tvm.IRModule(dict(module.functions.items()), module.attrs)
    changed.update_func(module.get_global_var("main"), main)
    return changed
