"""Results by key in a file of JSON lines, each written as soon as it is there: work that is cut goes on from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any


class KeptLines:
    """The results in ``path``, which is made with its folder when the first is added. A last line that was cut short
    when its writer ended is dropped."""

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
        """The results by key, in the order in which they were added."""
        return MappingProxyType(self._found)

    def add(self, key: str, value: dict[str, Any]) -> None:
        """Write a result to the disk."""
        self._found[key] = value
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, "value": value}) + "\n")
            file.flush()
            os.fsync(file.fileno())
