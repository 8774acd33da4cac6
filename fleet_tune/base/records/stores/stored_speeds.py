"""The speeds of devices that a record database keeps: stored seconds count at speed 1, people see those of a device."""

from __future__ import annotations

import contextlib
import math

from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.stores.database_reader import DatabaseReader

# Seconds of the probe of a device at speed 1, by its id, and the speed at which people see the seconds of a class, by
# its name. Another probe needs other keys.
PROBE = "3"
UNIT = f"probe {PROBE} unit: "
SHOWN = f"probe {PROBE} shown: "
CALLS = f"probe {PROBE} calls: "


class StoredSpeeds:
    """Speeds of the devices and device classes of a database."""

    def __init__(self, database: DatabaseReader) -> None:
        self._database = database

    def unit_of(self, name: str) -> float | None:
        """See :meth:`RecordStore.unit`; None where nothing was given."""
        rows = self._database.rows("SELECT value FROM meta WHERE key = ?", UNIT + name)
        return float(rows[0][0]) if rows else None

    def shown(self) -> dict[str, float]:
        """The speeds at which people see the seconds of each class, as multiples of that at which the store counts them
        (:meth:`~fleet_tune.base.records.stores.store.RecordStore.probed`)."""
        found: dict[str, float] = {}
        for name, value in self._values(SHOWN):
            with contextlib.suppress(ValueError):
                speed = float(value)
                if 0 < speed < math.inf:
                    found[name] = speed
        return found

    def timed_calls(self) -> dict[str, CallSecs]:
        """Extra time of a call in a network by class, in seconds at speed 1
        (:meth:`~fleet_tune.base.records.stores.store.RecordStore.calls_timed`)."""
        found = {name: CallSecs.decoded(value) for name, value in self._values(CALLS)}
        return {name: calls for name, calls in found.items() if calls is not None}

    def call_secs(self) -> dict[str, float]:
        """:meth:`timed_calls` in seconds as people see them."""
        speeds = self.shown()
        return {name: calls.secs / speeds.get(name, 1.0) for name, calls in self.timed_calls().items()}

    def _values(self, kind: str) -> list[tuple[str, str]]:
        """Return the names and values of the properties of a kind."""
        rows = self._database.rows("SELECT key, value FROM meta WHERE substr(key, 1, ?) = ?", len(kind), kind)
        return [(key.removeprefix(kind), value) for key, value in rows]
