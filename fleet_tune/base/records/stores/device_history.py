"""Changes of the devices as a record database keeps them, and the last state of each."""

from __future__ import annotations

from collections.abc import Iterable

from fleet_tune.base.device_state import LEASE_KINDS, DeviceEvent
from fleet_tune.base.errors import UnreadableRecordError
from fleet_tune.base.records.stores.codec import decode_state
from fleet_tune.base.records.stores.database_reader import DatabaseReader

_EVENTS = "SELECT device, run_id, kind, reason, state, unix_secs, seq FROM device_events"
_LAST_STATES = "SELECT device, run_id, kind, reason, state, unix_secs, 0 FROM device_states"
_HIGHEST_SEQ = (1 << 63) - 1


class DeviceHistory:
    """Changes of the devices that are stored in a database. Changes that cannot be decoded are skipped."""

    def __init__(self, database: DatabaseReader) -> None:
        self._database = database

    def events(self, limit: int) -> list[DeviceEvent]:
        """Return the last ``limit`` changes of devices other than leases, the oldest first."""
        if not self._database.has_table("device_events"):
            return []
        rows = self._database.rows(
            f"{_EVENTS} WHERE kind NOT IN (?, ?) ORDER BY seq DESC LIMIT ?",
            *LEASE_KINDS,  # stores of older versions have them
            limit,
        )
        return _readable(reversed(rows))

    def states(self) -> dict[str, DeviceEvent]:
        """Return the last change of every device, by device id, leases included: its state is the current state of the
        device. If that change is damaged, return the last stored event of the device that can be decoded."""
        if not self._database.has_table("device_events"):
            return {}
        states: dict[str, DeviceEvent] = {}
        if self._database.has_table("device_states"):
            states = {event.device_id: event for event in _readable(self._database.rows(_LAST_STATES))}
        query = f"{_EVENTS} WHERE device = ? AND seq < ? ORDER BY seq DESC LIMIT 1"
        for (device,) in self._database.rows("SELECT DISTINCT device FROM device_events"):
            before = _HIGHEST_SEQ
            while device not in states and (rows := self._database.rows(query, device, before)):
                states |= {event.device_id: event for event in _readable(rows)}
                before = rows[0][-1]
        return dict(sorted(states.items()))

    def unreadable(self) -> list[str]:
        """Return the reason for each skipped change."""
        reasons: list[str] = []
        if self._database.has_table("device_events"):
            _readable(self._database.rows(f"{_EVENTS} ORDER BY seq"), reasons)
        if self._database.has_table("device_states"):
            _readable(self._database.rows(_LAST_STATES), reasons)
        return reasons


def _readable(
    rows: Iterable[tuple[str, str, str, str, bytes, float, int]], reasons: list[str] | None = None
) -> list[DeviceEvent]:
    """Return the device events whose state can be decoded.

    ``reasons`` gets the reason for each of the others. ``seq`` is 0 for an entry that is only the last state of its
    device.
    """
    events = []
    for device, run_id, kind, reason, state, unix_secs, seq in rows:
        try:
            events.append(DeviceEvent(device, run_id, kind, reason, decode_state(state), unix_secs, seq))
        except UnreadableRecordError as error:
            if reasons is not None:
                what = f"change {seq}" if seq else "the state"
                reasons.append(f"{what} of device {device}: {error.problem}")
    return events
