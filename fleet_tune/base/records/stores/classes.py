"""Device classes of a record store: their targets, and the fingerprint of a device of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet_tune.base.errors import OutputFolderError

FINGERPRINTS = "fingerprints"
"""Key of the meta table for the fingerprints: a JSON list of :func:`dataset_codec.encode_value`."""
TARGETS = "targets"
"""Key of the meta table for the targets: a JSON object with the target of each class by its name."""


def with_classes(stored: Mapping[str, str], fingerprints: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Return the new entries of the meta table about classes. New classes are added to those in ``stored``; a known
    class gets its new fingerprint.

    ``fingerprints``: encoded fingerprints, one of each class. ``folder``: for the message. Raise
    :class:`OutputFolderError` if a class had another target.
    """
    targets = _loaded(stored, TARGETS, dict)
    known = {name: each for each in _loaded(stored, FINGERPRINTS, list) if (name := _name_of(each)) is not None}
    for each in fingerprints:
        name, target = each["device_class"]["name"], each["device_class"]["target"]
        if targets.get(name, target) != target:
            raise OutputFolderError(
                f"the output folder {folder} belongs to another run: class {name} has another target: "
                f"{_apart(targets[name], target)}",
                f"choose another folder with --out, or delete {folder}",
            )
        targets[name] = target
        known[name] = each
    return {TARGETS: json.dumps(targets, sort_keys=True), FINGERPRINTS: json.dumps(list(known.values()))}


def classes_in(meta: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the classes in the meta table of a store."""
    return tuple(_loaded(meta, TARGETS, dict))


def _apart(there: str, here: str) -> str:
    """Describe the difference of two targets, key by key if both are JSON objects."""
    try:
        both = json.loads(there), json.loads(here)
    except ValueError:
        both = None, None
    if not (isinstance(both[0], dict) and isinstance(both[1], dict)):
        return f"{there} there and {here} here"
    keys = sorted(key for key in {**both[0], **both[1]} if both[0].get(key) != both[1].get(key))
    return ", ".join(f"{key} is {_shown(both[0].get(key))} there and {_shown(both[1].get(key))} here" for key in keys)


def _shown(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)


def _loaded(stored: Mapping[str, str], key: str, kind: type[Any]) -> Any:
    """Return the stored value of a key; an empty one of this ``kind`` if there is none, or an early version wrote
    something else."""
    try:
        value = json.loads(stored[key])
    except (KeyError, ValueError, RecursionError):
        return kind()
    return value if isinstance(value, kind) else kind()


def _name_of(encoded: Any) -> str | None:
    try:
        return str(encoded["device_class"]["name"])
    except (KeyError, TypeError):
        return None
