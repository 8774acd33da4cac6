"""What of a record store cannot be read, in words: the rest is used."""

from __future__ import annotations

from pathlib import Path

from fleet_tune.base.records.stores.reader import RecordReader

_NAMED = 3


def set_aside(records: Path) -> str:
    """How many records of a store are damaged, and which, with the reasons; empty where none is."""
    with RecordReader(records) as reader:
        unreadable = reader.unreadable()
    if not unreadable:
        return ""
    named = "; ".join(unreadable[:_NAMED]) + ("; ..." if len(unreadable) > _NAMED else "")
    return f"{len(unreadable)} of {records}: {named}"
