"""The search method of a run: a preset by its name, a method in a user's file, or a Method object."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path

from fleet_tune.base.config.tune_options import SearchMethod
from fleet_tune.base.errors import UserError
from policies.search.methods import Method, method_named
from policies.search.methods.checking import checked

_NEXT = "give --method FILE.py:NAME, where NAME is a policies.search.methods.Method in the file"


def method_of(given: str | SearchMethod) -> Method:
    """Return the search method that a user asked for. Raises UserError if there is none, or a part of it is wrong.

    Args:
        given: the name of a preset (:func:`policies.search.methods.method_named`), ``my_search.py:METHOD``, or the
            method itself.
    """
    if not isinstance(given, str):
        return checked(given, f"the method '{getattr(given, 'name', '')}'")
    if ".py" not in given:
        return method_named(given)
    file, _, name = given.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise UserError(f"'{given}' names no method in a file", _NEXT)
    path = Path(file).absolute()
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise UserError(f"cannot read the method's file {file}: {error.strerror or error}", _NEXT) from error
    return _in_file(path, name, changed)


@lru_cache(maxsize=8)
def _in_file(path: Path, name: str, changed_ns: int) -> Method:  # noqa: ARG001
    """Return the method ``name`` of a file. The file runs once, and again only after it has changed.

    While it runs, the module is in ``sys.modules``, where dataclasses look it up. After that it is removed there: so
    its classes are pickled by value for the actors, and the file need not exist on the other hosts.
    """
    spec = importlib.util.spec_from_file_location(f"_method_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no Python file", _NEXT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anything that the user's code raises
        raise UserError(
            f"{path} cannot be run: {type(error).__name__}: {error}", f"try it with 'python {path}'"
        ) from error
    finally:
        del sys.modules[spec.name]
    if not hasattr(module, name):
        found = [each for each, value in vars(module).items() if isinstance(value, Method)]
        problem = f"{path} has no '{name}'"
        raise UserError(problem, f"choose one of its methods: {', '.join(found)}" if found else _NEXT)
    return checked(getattr(module, name), f"{path.name}:{name}")
