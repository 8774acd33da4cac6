"""``.pt2`` files: read without running any code in them, or read by torch alone if the user trusts them.

``torch.export.load`` runs code in a file in several ways: tensors and other objects may be pickles, the file may
include a compiled library, expressions of dimensions are evaluated (SymPy's ``sympify`` is Python's ``eval``), guards
are executed, the graph may call any function of ``torch`` or ``operator``, and names are written into the source of the
Python function that the graph becomes. A network with fixed shapes needs none of this, so only files without it are
read here.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from devices.error_text import brief
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_FORCED = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0"}
_CONFIG = re.compile(r"data/(weights|constants)/[^/]*_config\.json")
# Other parts of a network's file: tensors as bytes, example inputs (tensors, read with torch's weights_only), markers.
_PLAIN = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|data/sample_inputs/[^/]*\.pt|models/[^/]*\.json"
    r"|archive_(format|version)|\.data/(version|serialization_id)|byteorder|extra/.*"
)
# Names of tensors, nodes and modules (whose second call is "relu@1"), which become Python names.
_NAME = re.compile(r"(?!.*__\w+__)[\w.]*", re.ASCII)
# Names of modules and of their contents may have a hyphen; torch then quotes the name.
_HELD = re.compile(r"(?!.*__\w+__)[\w.-]*", re.ASCII)
_CALL = re.compile(r"(?!.*__\w+__)[\w.-]*(@\d+)?", re.ASCII)
_VERSION = re.compile(r"[\w.+]*", re.ASCII)
_TEXT = re.compile(r"[\w .,:;>()/+*-]*", re.ASCII)  # arguments: "bilinear", "bij,bjk->bik"
# Numbers and symbolic dimensions, such as "Symbol('s7', integer=True)".
_DIMENSION = re.compile(
    r"(?:Pow\(Symbol\('[a-z]\w{0,11}'(?:, (?:positive|integer|nonnegative)=True)*\), Integer\([2-4]\)\)"  # not 9**9**9
    r"|(?:Symbol|Integer|Mul|Add|Max|Min|FloorDiv|PythonMod|Mod)\(|'[a-z]\w{0,11}'|(?:positive|integer|nonnegative)=True"
    r"|-?\d{1,18}|[suz]\w{0,8}\d|, |\))+",
    re.ASCII,
)
# A dimension, or a sum of dimensions: torch evaluates these texts.
_SUM = re.compile(r"(?:\d{1,9}\*)?[a-z]\w{0,11}(?: \+ (?:\d{1,9}|(?:\d{1,9}\*)?[a-z]\w{0,11}))*", re.ASCII)
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims|quantized_decomposed|quantized|torchvision|higher_order)\.(?!from_file)[a-zA-Z_]\w*(\.\w+)?"
    r"|torch\.ops\.transformers\.grouped_mm_fallback\.default"
    r"|torch\._?sym_\w+|math\.[a-z]\w*"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|getitem|eq|ne|lt|le|gt|ge|and_|or_|not_|xor|invert)",
    re.ASCII,
)
_OF_PACKAGE = re.compile(r"torch\.ops\.(torchvision|transformers)\.(\w+)", re.ASCII)
_DEFINED_BY = {"torchvision": "torchvision.ops", "transformers": "transformers.integrations.moe"}
"""Modules that register a package's operators when they are imported."""
_NO_NUMBER = re.compile(r"-?Infinity|NaN")  # floats that JSON does not have
_TEXTS = {
    "target": _OPERATOR,
    "as_operator": _OPERATOR,
    "expr_str": _DIMENSION,
    "as_string": _TEXT,
    "as_strings": _TEXT,
    "range": _SUM,
    "as_float": _NO_NUMBER,
    "as_floats": _NO_NUMBER,
    "fqn": _CALL,
    "parameter_name": _HELD,
    "buffer_name": _HELD,
    "tensor_constant_name": _HELD,
    "torch_version": _VERSION,
}
_KEYS = re.compile(r'[\w ",.\[\]-]*', re.ASCII)  # keys of a dictionary of inputs, as JSON
# Containers that inputs and outputs may be nested in. Others would be made by functions that the file names.
_CONTAINER = re.compile(
    r"builtins\.(tuple|list|dict)|collections\.OrderedDict|transformers(\.\w+)*\.modeling_\w*outputs\.\w+", re.ASCII
)


class _NotPlainError(Exception):
    """The file contains something that a network does not need."""


def load_program(file: Path, trusted: bool) -> ExportedProgram:
    """Return the program in the file. ``trusted``: run code that the file contains.

    Raises :class:`NetworkError` if the file is no archive of torch.export or cannot be read without running code in it,
    and torch's errors for other faults.
    """
    import torch

    if trusted:
        program = torch.export.load(str(file))
        _drop_ranges_of_sums(program)
        return program
    from torch.export.pt2_archive._package import load_pt2

    try:
        for package, operator in sorted(_check(file)):
            _register(package, operator, file)
        # If this refused a file, torch.export.load would try to read it again in an older form.
        with mock.patch.dict(os.environ, _FORCED):
            program = load_pt2(str(file)).exported_programs["model"]
    except _NotPlainError as error:
        raise _untrusted(file, str(error)) from error
    except NetworkError:
        raise
    except Exception as error:
        if re.search("weights.?only|weightsunpickler", str(error), re.IGNORECASE):
            raise _untrusted(file, "a pickle of other things than tensors") from error
        raise
    # Guards are code too. They check shapes, which fleet-tune checks itself.
    program._guards_code = []
    _drop_ranges_of_sums(program)
    return program


def _drop_ranges_of_sums(program: ExportedProgram) -> None:
    """Drop the bounds of extents that are not symbols. torch keeps these bounds when it reads a file, and its
    decompositions then fail on them."""
    from torch._export.utils import _get_shape_env_from_gm

    environment = _get_shape_env_from_gm(program.graph_module)
    for symbol in list(environment.var_to_range if environment is not None else ()):
        if not symbol.is_Symbol:
            del environment.var_to_range[symbol]


def _untrusted(file: Path, what: str) -> NetworkError:
    return NetworkError(
        f"{file} was not read, because reading it may run code in it: it has {what}",
        "if you trust the file, give --trust-model; otherwise export it again with torch.export, with fixed shapes",
    )


def _register(package: str, operator: str, file: Path) -> None:
    """Import the module that registers the operator, unless it is registered."""
    import torch

    if hasattr(getattr(torch.ops, package), operator):
        return
    try:
        importlib.import_module(_DEFINED_BY[package])
    except Exception as error:  # a package for another build of torch raises RuntimeError
        raise UnsupportedNetworkError(
            f"{file} has the operator {package}.{operator}, and {package} cannot be imported: {brief(error)}",
            f"install the {package} that belongs to this torch",
        ) from error


def _check(file: Path) -> set[tuple[str, str]]:
    """Check that a file can be read without running code. Return the operators of other packages in it, by package and
    name. Raises _NotPlainError if it fails the check, and other errors for a file of another form."""
    found: set[tuple[str, str]] = set()
    from torch.export.pt2_archive._package import PT2ArchiveReader

    try:
        reader = PT2ArchiveReader(str(file))
    except RuntimeError as error:
        raise NetworkError(f"{file} is not a network saved by torch.export: {brief(error)}", "give another") from error
    with reader:
        names = reader.get_file_names()
        if "archive_format" not in names:
            raise _NotPlainError("the form of an older torch")
        for name in names:
            if _CONFIG.fullmatch(name):
                _check_config(json.loads(reader.read_string(name)))
            elif not _PLAIN.fullmatch(name):
                raise _NotPlainError(f"the part {name}")
            elif name.startswith("models/"):
                text = reader.read_string(name)
                _check_value(json.loads(text), "")
                found.update(_OF_PACKAGE.findall(text if isinstance(text, str) else text.decode()))
    return found


def _check_config(config: Any) -> None:
    for name, payload in config["config"].items():
        if payload["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"], re.ASCII):
            raise _NotPlainError(f"the pickle {name}")
        _check_value(payload, "")


def _check_value(value: Any, key: str) -> None:
    """Check a part of a program and, recursively, its parts. ``key``: its name in the enclosing part."""
    if isinstance(value, str):
        _check_text(value, key)
    elif isinstance(value, list):
        for each in value:
            _check_value(each, key)
    elif isinstance(value, dict):
        for name, each in value.items():
            _check_text(name, "range" if key == "range_constraints" else "")
            if not _is_unused(name, each):
                _check_value(each, name)


def _is_unused(name: str, value: Any) -> bool:
    """Return true for guards, which are not used (see above), and for metadata of a node that only consists of
    texts."""
    texts = value.values() if name == "metadata" and isinstance(value, dict) else value
    return (
        name in ("guards_code", "metadata")
        and isinstance(value, dict if name == "metadata" else list)
        and all(isinstance(each, str) for each in texts)
    )


def _check_text(text: str, key: str) -> None:
    if key in ("in_spec", "out_spec"):
        allowed = not text or _is_plain_nesting(json.loads(text))
    else:
        allowed = _TEXTS.get(key, _NAME).fullmatch(text) is not None
    if not allowed:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise _NotPlainError(f"{key or 'the name'} {shown!r}")


def _is_plain_nesting(spec: Any) -> bool:
    """Return true if inputs or outputs are nested only in allowed containers."""
    if isinstance(spec, list):
        return all(_is_plain_nesting(each) for each in spec)
    if not isinstance(spec, dict):
        return isinstance(spec, int)
    context = spec.get("context")
    return (
        set(spec) <= {"type", "context", "children_spec"}
        and _CONTAINER.fullmatch(spec.get("type") or "builtins.tuple") is not None
        and (context is None or (isinstance(context, str) and _KEYS.fullmatch(context) is not None))
        and _is_plain_nesting(spec.get("children_spec", []))
    )
