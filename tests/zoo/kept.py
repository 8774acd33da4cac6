"""Results of a table, kept in a file as they come, so that a table that was interrupted goes on where it stopped."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_SOURCES = ("fleet_tune/base", "policies", "devices", "tests/zoo", "tests/helpers")
_PACKAGES = ("apache-tvm", "torch", "onnx", "onnxruntime", "numpy")


class Kept:
    """Results by key in a file of JSON lines, whose first line says what they are results of.

    Those of other sources, other versions of the frameworks or other options (``options``) do not count: the file is
    begun anew. ``finished`` removes it, so that the next table is a new one. Without a path nothing is kept.
    """

    def __init__(self, path: Path | None, options: str = "") -> None:
        self._path = path
        self.results: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        head = json.dumps({"of": _sources(), "options": options})
        lines = path.read_text().splitlines() if path.is_file() else []
        if lines and lines[0] == head:
            for line in lines[1:]:
                try:
                    key, result = json.loads(line)
                except ValueError:  # the last one of a table that was killed
                    continue
                self.results[key] = result
        path.parent.mkdir(parents=True, exist_ok=True)
        rest = [json.dumps(pair) for pair in self.results.items()]
        path.write_text("".join(f"{line}\n" for line in (head, *rest)))

    def keep(self, key: str, result: Mapping[str, Any]) -> None:
        self.results[key] = dict(result)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([key, result]) + "\n")

    def finished(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def left(groups: Sequence[Sequence[Any]], kept: Kept, key: Any) -> list[list[Any]]:
    """The questions of ``groups`` that have no result yet, groups without any left out."""
    rest = [[question for question in group if key(question) not in kept.results] for group in groups]
    return [group for group in rest if group]


@functools.cache
def _sources() -> str:
    """Digest of what results depend on: our sources, and the versions of what they stand on."""
    digest = hashlib.sha256()
    for file in sorted(file for folder in _SOURCES for file in (_ROOT / folder).rglob("*.py")):
        digest.update(str(file.relative_to(_ROOT)).encode())
        digest.update(file.read_bytes())
    digest.update((_ROOT / "tests" / "zoo" / "requirements.txt").read_bytes())
    for package in _PACKAGES:
        try:
            digest.update(f"{package} {metadata.version(package)}".encode())
        except metadata.PackageNotFoundError:
            continue
    return digest.hexdigest()
