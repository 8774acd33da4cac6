"""The number of boards that a tracker has, for entries of the fleet file with ``count = "all"``."""

from __future__ import annotations

from devices.rpc.tracker import TrackerError, listed
from fleet_tune.base.config.fleet_file import FleetConfig, TrackerConnection, with_listed

_ANSWER_SECS = 5.0


def with_boards(fleet: FleetConfig) -> FleetConfig:
    """Add the boards that trackers list for entries that want all boards of a key. No device is removed. An entry stays
    as it is if its tracker cannot be asked."""
    counts = {}
    for entry in fleet.all_of_a_key:
        connection = entry.connection
        assert isinstance(connection, TrackerConnection)
        try:
            counts[entry.name] = listed(connection.host, connection.port, connection.key, _ANSWER_SECS)
        except TrackerError:  # connecting to a board of this tracker reports the problem
            continue
    return with_listed(fleet, counts)
