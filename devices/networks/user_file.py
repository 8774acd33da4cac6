"""The user's file: its path and function, and the module and inputs that the function returns."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.error_text import brief
from fleet_tune.base.errors import NetworkError

if TYPE_CHECKING:
    import torch

FORMS = "give file.py:function, an .onnx file or a .pt2 file saved by torch.export"


def locate(spec: str | Path) -> tuple[Path, str]:
    """Return the file and the function (empty for ``.onnx`` and ``.pt2``) that ``spec`` names; nothing is read yet.

    Raises :class:`NetworkError` if there is no such file, or its form is not supported.
    """
    text = str(spec)
    path, _, function = text.rpartition(":") if _names_function(text) else (text, "", "")
    file = Path(path)
    if not function and file.suffix == ".py":
        raise NetworkError(f"{file} is a Python file, but no function is named", f"write {file}:FUNCTION")
    if not os.path.isfile(file):  # false also for names that no file can have
        raise NetworkError(f"no such file: {file}", FORMS)
    if not function and file.suffix not in (".onnx", ".pt2"):
        raise NetworkError(f"{file} is not a supported network file", FORMS)
    return file, function


def _names_function(text: str) -> bool:
    return re.search(r"\.py:[^/\\:]*$", text) is not None


_OURS = ("actors", "devices", "fleet_tune", "policies")
_neighbours: dict[str, Path] = {}
"""Modules that network files have imported from their own folder, with this folder."""


def call_function(file: Path, function: str) -> object:
    """Run ``function`` of the Python ``file``, which may import modules from its own folder and from the current
    folder. Modules that another network file has imported from another folder are forgotten first, as their names may
    be the same."""
    folder = file.resolve().parent
    for name in [name for name, of in _neighbours.items() if of != folder]:
        del _neighbours[name]
        sys.modules.pop(name, None)
    before = set(sys.modules)
    try:
        return _called(file, function)
    finally:
        for name in sys.modules.keys() - before:
            source = getattr(sys.modules[name], "__file__", None)
            if name.partition(".")[0] not in _OURS and source is not None and _is_beside(Path(source), folder):
                _neighbours[name] = folder


def _is_beside(source: Path, folder: Path) -> bool:
    return source.is_relative_to(folder) and "site-packages" not in source.parts


def _called(file: Path, function: str) -> object:
    spec = importlib.util.spec_from_file_location(f"_fleet_tune_network_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise NetworkError(f"{file} is not a Python file", FORMS)
    python_module = importlib.util.module_from_spec(spec)
    # Registered as by a plain import: dataclasses and torch look classes up by their module's name.
    sys.modules[spec.name] = python_module
    with _search_path(str(file.resolve().parent), str(Path.cwd())):
        try:
            spec.loader.exec_module(python_module)
        except (Exception, SystemExit) as error:
            raise NetworkError(f"{file} cannot be imported: {brief(error)}", _mend(error)) from error
        make = getattr(python_module, function, None)
        if not callable(make):
            offered = sorted(
                name
                for name, value in vars(python_module).items()
                if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == spec.name
            )
            hint = f"it has {', '.join(offered)}" if offered else "define it"
            raise NetworkError(f"{file} has no function {function!r}", hint)
        try:
            return make()
        except (Exception, SystemExit) as error:
            next_step = _mend(error, "call")
            raise NetworkError(f"{file}:{function} raised {brief(error)}", next_step) from error


def _mend(error: BaseException, do: str = "run") -> str:
    """Return the next step for an error of the user's file. It names the interpreter, which may not be in PATH."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        return f"install the package of the module {module} for {sys.executable}, which runs the file"
    return f"{do} it with {sys.executable} and fix it"


@contextlib.contextmanager
def _search_path(*folders: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:0] = [folder for folder in folders if folder not in before]
    try:
        yield
    finally:
        sys.path[:] = before


def checked_example(value: object, where: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Any]:
    """Check and return the result of the user's function: the module, the example inputs, and torch.export's
    ``dynamic_shapes`` (None if no dimension is dynamic). Raises :class:`NetworkError` for anything else."""
    import torch

    wanted = (
        "return (torch module, tuple of example input tensors); a third element may be torch.export's dynamic_shapes"
    )
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        raise NetworkError(f"{where} returned {_kind(value)}, not a module and its example inputs", wanted)
    module, inputs, dynamic_shapes = value if len(value) == 3 else (*value, None)
    if not isinstance(module, torch.nn.Module):
        raise NetworkError(f"{where} returned {_kind(module)} where a torch.nn.Module is expected", wanted)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list) or not inputs:
        raise NetworkError(f"{where} returned {_kind(inputs)} where a tuple of input tensors is expected", wanted)
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise NetworkError(f"{where}: example input {index} is {_kind(tensor)}, not a tensor", wanted)
    return module, tuple(inputs), dynamic_shapes


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
