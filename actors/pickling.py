"""Search methods written by users, on their way to the actors: their classes are pickled by value.

A worker on another host cannot import a user's module. Parts of fleet-tune and of installed packages are pickled by
name.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType

from ray import cloudpickle

from policies.search.methods import Method

_OURS = frozenset({"fleet_tune", "actors", "policies", "devices", "builtins", "__main__"})


def send_by_value(method: Method) -> None:
    """Have the classes of a method's parts pickled by value if they come from a module of the user."""
    for part in _parts(method):
        module = sys.modules.get(getattr(part, "__module__", None) or type(part).__module__)
        if module is not None and module.__name__.partition(".")[0] not in _OURS and not _installed(module.__file__):
            cloudpickle.register_pickle_by_value(module)


def _parts(value: object) -> Iterator[object]:
    """A part, and the parts that it is made of: its attributes, and the items of its tuples, lists and mappings."""
    seen: set[int] = set()
    left = [value]
    while left:
        part = left.pop()
        if id(part) in seen or isinstance(part, str | bytes | int | float | None):
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, Mapping):
            left += part.values()
        elif isinstance(part, tuple | list | set | frozenset):
            left += part
        elif not isinstance(part, type | ModuleType | FunctionType):
            left += [getattr(part, name) for name in _attributes(part)]


def _attributes(part: object) -> list[str]:
    """The names of an object's attributes, in slots or not."""
    slots = [name for cls in type(part).__mro__ for name in getattr(cls, "__slots__", ())]
    return [name for name in (*getattr(part, "__dict__", ()), *slots) if hasattr(part, name)]


def _installed(file: str | None) -> bool:
    """Return true for a module of an installed package or of Python itself."""
    if file is None:
        return True
    folders = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(Path(file).is_relative_to(folder) for folder in folders)
