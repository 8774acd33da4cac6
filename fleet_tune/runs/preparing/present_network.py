"""The compiled network that an output folder holds before a run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devices.networks.compiled.manifest import read_manifest
from fleet_tune.base.errors import OutputFolderError


def published_class(folder: Path) -> str | None:
    """Return the device class of the network in a folder. None if there is no network."""
    return None if (manifest := _manifest(folder)) is None else str(manifest["device_class"])


def refuse_other_network(out: Path, name: str) -> None:
    """Raise :class:`OutputFolderError` if ``out`` has a compiled network of another name, which would be
    overwritten."""
    manifest = _manifest(out)
    present = name if manifest is None else str(manifest.get("model", name))
    if present != name:
        raise OutputFolderError(
            f"{out} holds the compiled network {present}, not {name}", "choose another folder with --out, or delete it"
        )


def _manifest(folder: Path) -> Mapping[str, Any] | None:
    with contextlib.suppress(OutputFolderError):
        return read_manifest(folder)
    return None
