"""Data files that a benchmark reads. Their digests are saved with its result, like those of its modules."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.processes import ROOT

_inputs: set[Path] = set()


def note_input(path: Path) -> Path:
    """Remember that this process reads a file, and return its path."""
    _inputs.add(path)
    return path


def inputs() -> frozenset[Path]:
    """Return the files that this process has noted as read."""
    return frozenset(_inputs)


def files_of_options(values: Iterable[Any]) -> set[Path]:
    """Return the files that the values of options name: paths, and the file in ``file.py:function``."""
    files: set[Path] = set()
    for value in values:
        if isinstance(value, list | tuple):
            files |= files_of_options(value)
        elif isinstance(value, Path):
            files.add(value)
        elif isinstance(value, str) and ".py:" in value:
            files.add(ROOT / value.partition(":")[0])
    return files
