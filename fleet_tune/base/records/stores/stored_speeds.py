"""The speeds of devices that a record database keeps. Stored seconds are those at speed 1; people see seconds at the
speed of a device."""

from __future__ import annotations

import contextlib
import math

from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.stores.database_reader import DatabaseReader

# Beginnings of keys of the meta table. UNIT, with the id of a device: seconds of its probe at speed 1. SHOWN, with the
# name of a class: the speed at which people see its seconds. CALLS, with the name of a class: extra time of a call.
# Another probe needs other keys.
PROBE = "3"
UNIT = f"probe {PROBE} unit: "
SHOWN = f"probe {PROBE} shown: "
CALLS = f"probe {PROBE} calls: "


class StoredSpeeds:
    """Speeds of the devices and device classes of a database."""

    def __init__(self, database: DatabaseReader) -> None:
        self._database = database

    def unit_of(self, name: str) -> float | None:
        """Return the unit of ``name`` (see :meth:`RecordStore.unit`); ``None`` if none was given."""
        rows = self._database.rows("SELECT value FROM meta WHERE key = ?", UNIT + name)
        return float(rows[0][0]) if rows else None

    def shown(self) -> dict[str, float]:
        """Return the speed at which people see the seconds of each class, as a multiple of the speed at which the store
        counts them (:meth:`~fleet_tune.base.records.stores.store.RecordStore.probed`)."""
        found: dict[str, float] = {}
        for name, value in self._values(SHOWN):
            with contextlib.suppress(ValueError):
                speed = float(value)
                if 0 < speed < math.inf:
                    found[name] = speed
        return found

    def timed_calls(self) -> dict[str, CallSecs]:
        """Return the extra time of a call in a network by class, in seconds at speed 1
        (:meth:`~fleet_tune.base.records.stores.store.RecordStore.calls_timed`)."""
        found = {name: CallSecs.decoded(value) for name, value in self._values(CALLS)}
        return {name: calls for name, calls in found.items() if calls is not None}

    def call_secs(self) -> dict[str, float]:
        """Return :meth:`timed_calls` in seconds as people see them."""
        speeds = self.shown()
        return {name: calls.secs / speeds.get(name, 1.0) for name, calls in self.timed_calls().items()}

    def _values(self, kind: str) -> list[tuple[str, str]]:
        """Return the names and values of the properties of a kind."""
        rows = self._database.rows("SELECT key, value FROM meta WHERE substr(key, 1, ?) = ?", len(kind), kind)
        return [(key.removeprefix(kind), value) for key, value in rows]
