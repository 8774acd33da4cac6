"""Reading the folder of a compiled network: its manifest, and the files that the manifest describes.

Every file is checked against the hash in the manifest before it is used. Any fault of a folder raises
:class:`OutputFolderError`, which says how to correct it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devices.builds.executables import Array
from devices.networks.compiled.tensor_file import file_digest
from devices.networks.compiled.tensor_file import read as read_tensors
from fleet_tune.base.config.values import shown
from fleet_tune.base.errors import OutputFolderError, UserError
from fleet_tune.base.shapes.extent_sums import ExtentSum
from fleet_tune.base.shapes.shapes import parse_shapes

SCHEMA, OVERWRITING_SCHEMA = 1, 2
"""Schemas of a manifest. The second is for a network that overwrites arguments (:data:`STATIC_CACHES`): a reader that
only knows the first would let it overwrite the caller's memory."""
LIBRARY, PARAMETERS, MANIFEST = "network.so", "params.safetensors", "manifest.json"
LIBRARIES = "libraries"
"""Field of the manifest: name, package and licence of each library whose kernels the network calls."""
CACHES = "caches"
"""The growing caches of the network (:class:`devices.networks.caches.cache_buffers.GrowingCache`)."""
STATIC_CACHES = "static_caches"
"""Its static caches (:class:`devices.networks.caches.donation.StaticCache`)."""
STAGE = ".staged"
"""Folder within an output folder for networks that users must not load yet."""
PUBLISHING = "publishing"
"""File in :data:`STAGE` while a network is moved from there: the name of the network's folder."""
COMPILE_AGAIN = "compile it again with 'fleet-tune compile'"
"""The next step for a folder that is damaged, or that another version wrote."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in ``folder``. Raises :class:`OutputFolderError` if it is missing or damaged."""
    if not folder.is_dir():
        raise OutputFolderError(f"no such folder: {folder}", "give a folder that 'fleet-tune tune' wrote")
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        schema = manifest["schema"]
    except FileNotFoundError:
        raise OutputFolderError(
            f"{folder} holds no compiled network (no manifest.json)", "give a folder that 'fleet-tune tune' finished"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(folder, error) from error
    if schema not in (SCHEMA, OVERWRITING_SCHEMA):
        raise OutputFolderError(
            f"{folder} has the manifest schema {shown(schema)}, this version reads {SCHEMA} and {OVERWRITING_SCHEMA}",
            COMPILE_AGAIN,
        )
    missing = {"target", "device_class", "files", "parameters", "inputs"} - manifest.keys()
    if missing:
        raise _damaged(folder, f"no {', '.join(sorted(missing))}")
    wrong = [name for name, is_valid in _IS_VALID.items() if name in manifest and not is_valid(manifest[name])]
    if wrong:
        raise _damaged(folder, ", ".join(wrong))
    caches = [each["input"] for name in (CACHES, STATIC_CACHES) for each in manifest.get(name, ())]
    if any(place >= len(manifest["inputs"]) for place in caches):
        raise _damaged(folder, "a cache is none of the inputs")
    if any(each["output"] >= len(manifest.get("outputs", ())) for each in manifest.get(STATIC_CACHES, ())):
        raise _damaged(folder, "a cache is none of the outputs")
    unbounded = _named_extents(manifest) - _dynamic_names(manifest)
    if unbounded:
        raise _damaged(
            folder, f"an input has the dynamic dimension {shown(min(unbounded))}, and shapes has no bounds of it"
        )
    return dict(manifest)


def checked_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> Path:
    """Return the path of a file of ``folder``. Raises :class:`OutputFolderError` if its hash differs from the
    manifest's."""
    path = folder / name
    try:
        digest = file_digest(path)
    except OSError as error:
        raise OutputFolderError(f"{path} cannot be read ({error.strerror})", COMPILE_AGAIN) from error
    if digest != manifest["files"].get(name):
        raise OutputFolderError(f"{path} is damaged: it is not the file that the manifest describes", COMPILE_AGAIN)
    return path


def read_parameters(path: Path, manifest: Mapping[str, Any]) -> list[Array]:
    """Return the network's parameters, in the order of the arguments of ``main``."""
    tensors = read_tensors(path)
    return [tensors[key] for key in manifest["parameters"]]


def is_size(value: Any) -> bool:
    """Return true if a value of a manifest can be the size of something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _damaged(folder: Path, reason: object) -> OutputFolderError:
    return OutputFolderError(f"{folder}/manifest.json is damaged ({reason})", COMPILE_AGAIN)


def _is_input(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("name", "dtype"))
        and isinstance(value.get("shape"), list)
        and all(is_size(extent) or _is_sum(extent) for extent in value["shape"])
    )


def _are_caches(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and each.keys() == {"input", "output", "axis", "most", "added"}
        and all(is_size(each[name]) for name in ("input", "output", "axis", "most"))
        and (is_size(each["added"]) or isinstance(each["added"], str))
        for each in value
    )


def _are_static_caches(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and each.keys() == {"input", "output"} and all(map(is_size, each.values()))
        for each in value
    )


def _is_sum(extent: Any) -> bool:
    try:
        return isinstance(extent, str) and bool(ExtentSum.parse(extent).terms)
    except ValueError:
        return False


def _named_extents(manifest: Mapping[str, Any]) -> set[str]:
    texts = {extent for each in manifest["inputs"] for extent in each["shape"] if isinstance(extent, str)}
    return {name for text in texts for name in ExtentSum.parse(text).names}


def _dynamic_names(manifest: Mapping[str, Any]) -> set[str]:
    return {each.name for each in parse_shapes(manifest["shapes"]).dynamic} if "shapes" in manifest else set()


def _are_bounds(value: Any) -> bool:
    try:
        return bool(parse_shapes(value).dimensions)
    except (UserError, AttributeError, TypeError):
        return False


def _are_shapes(value: Any) -> bool:
    return _are_bounds(value) and bool(parse_shapes(value).dynamic)


#: Checks of the fields of a manifest that are read here.
_IS_VALID: dict[str, Callable[[Any], bool]] = {
    "target": lambda value: isinstance(value, dict) and isinstance(value.get("kind"), str),
    "device_class": lambda value: isinstance(value, str),
    "files": lambda value: isinstance(value, dict),
    "parameters": lambda value: isinstance(value, list) and all(isinstance(key, str) for key in value),
    "inputs": lambda value: isinstance(value, list) and all(_is_input(each) for each in value),
    "shapes": _are_shapes,
    CACHES: _are_caches,
    STATIC_CACHES: _are_static_caches,
    "bounds": _are_bounds,
    "versions": lambda value: isinstance(value, dict),
    "threads": lambda value: value is None or (is_size(value) and value <= 4096),
}
