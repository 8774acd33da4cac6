"""Damaged records of a store, which are skipped."""

from __future__ import annotations

from pathlib import Path

from fleet_tune.base.records.stores.reader import RecordReader

_NAMED = 3


def set_aside(records: Path) -> str:
    """Return a line with the number of damaged records of a store and the first reasons. Empty if none is damaged."""
    with RecordReader(records) as reader:
        unreadable = reader.unreadable()
    if not unreadable:
        return ""
    named = "; ".join(unreadable[:_NAMED]) + ("; ..." if len(unreadable) > _NAMED else "")
    return f"{len(unreadable)} of {records}: {named}"
