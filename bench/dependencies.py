"""Files that a benchmark's figures depend on, and digests that tell whether they have changed since.

The modules are found in the source text, by its imports, so no framework is loaded. The processes that a benchmark
starts count too: the benchmark names them by strings such as ``"bench.drafts.draft_process"``. The digest of a Python
file is that of its syntax tree without docstrings, so changes of comments, docstrings and formatting do not count. The
digest of any other file (datasets, models) is that of its bytes.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bench.processes import ROOT

PACKAGES = ("fleet_tune", "actors", "policies", "devices", "bench", "examples")
"""Top-level packages whose modules count. For installed packages, a result has their versions instead."""

HARNESS = frozenset(
    f"bench/{name}.py"
    for name in (
        "__init__",
        "__main__",
        "benchmark",
        "dependencies",
        "inputs",
        "latency/shape_picture",
        "latency/shape_table",
        "machine",
        "options",
        "page",
        "plots",
        "processes",
        "result",
        "saved_result",
        "tables",
        "tuning/curve_pictures",
    )
)
"""Files that start a benchmark or print its figures but compute none of them. They do not count."""

PRESENTATION = "table"
"""Name of the function of a benchmark's module that only formats figures: it is not part of the digest."""


def dependencies(module: str, files: Iterable[Path] = (), root: Path = ROOT) -> dict[str, str]:
    """Return digests by path relative to ``root``: of the modules that ``module`` needs, of those of ``files`` that are
    in the repository, and of the modules that Python files among these need."""
    paths = set(module_files(module, root).values())
    for path in (each.resolve() for each in files):
        if path.is_relative_to(root) and path.is_file():
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            paths |= {path, *(module_files(name, root).values() if path.suffix == ".py" else ())}
    return {_relative(path, root): digest(path) for path in sorted(paths)}


def changed(saved: Mapping[str, str], root: Path = ROOT) -> tuple[str, ...]:
    """Return the files of ``saved`` (digests by path) that are gone or have another digest now, sorted."""
    return tuple(name for name, known in sorted(saved.items()) if not _is_same(root / name, known))


def _is_same(path: Path, known: str) -> bool:
    try:
        return digest(path) == known
    except (OSError, SyntaxError):
        return False


def code_digest(module: str) -> str:
    """Return one digest of all modules that ``module`` needs. Data files do not count."""
    return _hash(repr(sorted(dependencies(module).items())).encode())


@cache
def digest(path: Path) -> str:
    """Return the digest of a file as it was when this process first asked for it. Raises OSError or SyntaxError."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return _hash(content)
    return _hash(_normal_form(ast.parse(content), presentation=path.is_relative_to(ROOT / "bench")).encode())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _normal_form(node: Any, *, presentation: bool = False) -> str:
    """Return the syntax tree as text that is the same in every version of Python: without docstrings, positions and
    empty fields.

    ``presentation``: leave out the top-level function :data:`PRESENTATION`.
    """
    if isinstance(node, list):
        kept = [each for each in node if not _is_docstring(each)]
        if presentation:
            kept = [each for each in kept if not (isinstance(each, ast.FunctionDef) and each.name == PRESENTATION)]
        return "[" + ",".join(map(_normal_form, kept)) + "]"
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
        inner = ",".join(f"{name}={_normal_form(value, presentation=presentation)}" for name, value in fields)
        return f"{type(node).__name__}({inner})"
    return repr(node)


def _is_docstring(node: Any) -> bool:
    """True for a string that is a statement of its own: a docstring, or the text under a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def module_files(module: str, root: Path = ROOT) -> dict[str, Path]:
    """Return the source files by module name: of ``module`` and, transitively, of all modules of ours that it imports
    or starts, without :data:`HARNESS`."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _source(name, root)
        if name in found or path is None or _relative(path, root) in HARNESS:
            continue
        found[name] = path
        waiting += _packages(name)
        waiting += _imported(name, path, root)
    return found


def imported_modules(module: str, root: Path = ROOT) -> set[str]:
    """Return the modules of ours that ``module`` itself imports, without their parent packages."""
    path = _source(module, root)
    if path is None:
        return set()
    return {name for name in _imported(module, path, root) if _source(name, root) is not None}


@cache
def _source(module: str, root: Path) -> Path | None:
    """The file of a module or a package; None if ``module`` is not one of ours."""
    parts = module.split(".")
    if parts[0] not in PACKAGES or not all(part.isidentifier() for part in parts):
        return None
    base = root.joinpath(*parts)
    candidates = (base / "__init__.py", base.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def _packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


@cache
def _imported(module: str, path: Path, root: Path) -> frozenset[str]:
    """Dotted names that the source of a module may import or start; not all of them are modules."""
    names: set[str] = set()
    # Functions of a package's __init__ are left out: a lazy name loads nothing until it is used, see _lazy.
    _collect(
        ast.parse(path.read_bytes()), names, functions=path.name != "__init__.py", strings=module.startswith("bench")
    )
    if "fleet_tune" in names and module.startswith("bench"):  # ``python -m fleet_tune``
        names.add("fleet_tune.__main__")
    return frozenset(names | {lazy for name in names for lazy in _lazy(name, root)})


def _collect(node: ast.AST, names: set[str], *, functions: bool, strings: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not functions:
            continue
        if isinstance(child, ast.Import):
            names.update(alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None and not child.level:
            names.add(child.module)
            names.update(f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name):
            names.add(f"{child.value.id}.{child.attr}")
        elif strings and isinstance(child, ast.Constant) and isinstance(child.value, str):
            names.add(child.value)
        _collect(child, names, functions=functions, strings=strings)


def _lazy(name: str, root: Path) -> set[str]:
    """Imports of the ``__getattr__`` of a package through which ``name`` (``fleet_tune.tune``) is loaded."""
    package, _, attribute = name.rpartition(".")
    path = _source(package, root) if package else None
    if path is None or path.name != "__init__.py" or _source(name, root) is not None:
        return set()
    tree = ast.parse(path.read_bytes())
    bound = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__" and attribute not in bound:
            _collect(node, names, functions=True, strings=False)
    return names


def _relative(path: Path, root: Path) -> str:
    return path.resolve().relative_to(root.resolve()).as_posix()
