"""Results by key in a file of JSON lines. Each result is written at once, so interrupted work can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any


class KeptLines:
    """The results in ``path``. The file and its folder are created when the first result is added.

    If the last line is incomplete because its writer was interrupted, the constructor removes it from the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        if not path.exists():
            return
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            path.write_bytes(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            self._found[entry["key"]] = entry["value"]

    @property
    def found(self) -> Mapping[str, dict[str, Any]]:
        """The results by key, in the order in which the keys were added."""
        return MappingProxyType(self._found)

    def add(self, key: str, value: dict[str, Any]) -> None:
        """Write a result to the disk. It replaces an earlier result with the same key."""
        self._found[key] = value
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, "value": value}) + "\n")
            file.flush()
            os.fsync(file.fileno())
