"""The built artifacts of a run: object references by what they are of. The bytes stay in Ray's object store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Artifacts:
    """By candidate id, and by task id for its oracle. What is forgotten leaves the object store."""

    def __init__(self) -> None:
        self._references: dict[str, Any] = {}

    def put(self, name: str, reference: Any) -> None:
        self._references[name] = reference

    def __getitem__(self, name: str) -> Any:
        return self._references[name]

    def find(self, name: str) -> Any | None:
        """The reference, None where there is none."""
        return self._references.get(name)

    def forget(self, names: Iterable[str]) -> None:
        """These are not wanted any more; one that is not there is none."""
        for name in names:
            self._references.pop(name, None)
