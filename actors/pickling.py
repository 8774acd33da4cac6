"""Methods of users on their way to the actors: their classes travel by value.

A worker on another host cannot import a user's module. Parts of fleet-tune and of installed packages travel by name.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from ray import cloudpickle

from policies.search.methods import Method

_OURS = frozenset({"fleet_tune", "actors", "policies", "devices", "builtins", "__main__"})


def send_by_value(method: Method) -> None:
    """Let the classes of a method's parts be pickled by value if they are from a module of the user's own."""
    for part in _parts(method):
        module = sys.modules.get(getattr(part, "__module__", None) or type(part).__module__)
        if module is not None and module.__name__.partition(".")[0] not in _OURS and not _installed(module.__file__):
            cloudpickle.register_pickle_by_value(module)


def _parts(value: object) -> Iterator[object]:
    """A part, and the parts that it is made of."""
    yield value
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _parts(getattr(value, field.name))


def _installed(file: str | None) -> bool:
    """Return true for a module of an installed package or of Python itself."""
    if file is None:
        return True
    folders = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(Path(file).is_relative_to(folder) for folder in folders)
