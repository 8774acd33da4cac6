"""torch.export on a module, and the place in the user's code where it fails. Importing this module loads torch."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from devices.error_text import introduced, line_with
from fleet_tune.base.errors import NetworkError

_NOT_THEIRS = sys.stdlib_module_names | {
    "torch",
    "numpy",
    "sympy",
    "devices",
    "fleet_tune",
    "actors",
    "typing_extensions",
}
"""Packages that the author or user of a network cannot change."""
_LONGEST_LINE = 100

_ADVICE = (
    ("GuardOnDataDependentSymNode", "a number, a shape or the course of it depends on data: choose with torch.where "
     "or torch.cond, keep numbers as tensors (without item() and int()), or make them inputs or constants"),
    ("Constraints violated", "forward() fixes a dynamic dimension: give example inputs whose extent there is neither 0 "
     "nor 1, let nothing but shapes of tensors depend on it, and declare a sum of others as torch.export.Dim.DYNAMIC"),
    ("numpy()", "compute with torch there, not with numpy"),
    ("requires_grad", "leave gradients out of forward()"),
    ("require grad", "leave gradients out of forward()"),
    ("fake tensor", "a tensor that depends on the inputs became a constant: make it of the inputs by torch's "
     "operators (detach() instead of data, clone() instead of torch.tensor()), or make it an input"),
)  # fmt: skip
"""A part of an error's text or type name, and the advice for the error."""

_OTHERWISE = "check the example inputs, and rewrite what depends on data (see the torch.export documentation)"


class _DetachedData(TorchFunctionMode):
    """Reads ``tensor.data`` as ``tensor.detach()``. torch.export would take it for a constant, and fail."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        return func(*args, **(kwargs or {}))


def exported(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], where: str, dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """Return the exported program of ``module``. ``dynamic_shapes``: in the form of torch.export.export. Raises
    :class:`NetworkError`, with the line of the user's code."""
    try:
        with _DetachedData():
            return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        place = _place(error)
        told = line_with(error, ("- Not all values of", "- You marked")).replace(": - ", ": ") or introduced(error)
        raise NetworkError(
            f"torch.export cannot export {where}{f', at {place}' if place else ''}: {told}", _advice(error)
        ) from error


def _advice(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    given = (advice for mark, advice in _ADVICE if mark in text)
    return next(
        given, "check the example inputs, and rewrite what depends on data (see the torch.export documentation)"
    )


def _place(error: Exception) -> str:
    """Return the innermost line of the user's code that ``error`` came through, as ``net.py:12 (y = x.numpy())``."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if _is_theirs(trace.tb_frame):
            name = trace.tb_frame.f_code.co_filename
            line = linecache.getline(name, trace.tb_lineno).strip()[:_LONGEST_LINE]
            found = f"{Path(name).name}:{trace.tb_lineno}" + (f" ({line})" if line else "")
        trace = trace.tb_next
    return found


def _is_theirs(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _NOT_THEIRS and Path(frame.f_code.co_filename).is_file()
