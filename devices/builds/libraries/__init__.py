"""Libraries whose kernels a candidate may call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from devices.builds.libraries import onednn
from devices.sketches.rules.library import uses_library

FILES = (onednn.SHARED_LIBRARY, onednn.LICENCES)
"""Names of all library files that may be published with a network."""


def libraries_of(target: str) -> tuple[onednn.OneDnn, ...]:
    """Return the libraries that kernels for a canonical target may call. Raises
    :class:`~devices.builds.libraries.onednn.LibraryMissingError` if one of them is not installed."""
    return (onednn.installed(),) if onednn.ONEDNN in json.loads(target).get("libs", []) else ()


def load(files: Mapping[str, Path]) -> None:
    """Load the library among the files of a network (name to path), if there is one. Raises
    :class:`~devices.builds.libraries.onednn.LibraryMissingError`."""
    if onednn.SHARED_LIBRARY in files:
        onednn.load(files[onednn.SHARED_LIBRARY])


def load_installed(name: str) -> str:
    """Load an installed library into this process, for kernels that are loaded later. Return an error text with the
    next step, or an empty text on success."""
    try:
        if name != onednn.ONEDNN:
            raise onednn.LibraryMissingError(f"unknown library {name!r}", "install the same version of fleet-tune")
        onednn.load_installed()
    except onednn.LibraryMissingError as error:
        return str(error)
    return ""


def called_by(target: str, traces: Iterable[str | None]) -> tuple[onednn.OneDnn, ...]:
    """Return the libraries of a target (see :func:`libraries_of`) if any of the traces calls a library, else none."""
    return libraries_of(target) if any(uses_library(trace) for trace in traces if trace) else ()
