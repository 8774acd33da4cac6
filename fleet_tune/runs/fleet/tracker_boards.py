"""The number of boards that a tracker has, for entries of the fleet file with ``count = "all"``."""

from __future__ import annotations

from devices.rpc.tracker import TrackerError, listed
from fleet_tune.base.config.fleet_file import FleetConfig, TrackerConnection, with_listed

_ANSWER_SECS = 5.0


def with_boards(fleet: FleetConfig) -> FleetConfig:
    """Add the boards that trackers list under the keys all of whose boards are wanted. No device is removed, and the
    fleet stays as it is where a tracker cannot be asked."""
    counts = {}
    for entry in fleet.all_of_a_key:
        connection = entry.connection
        assert isinstance(connection, TrackerConnection)
        try:
            counts[entry.name] = listed(connection.host, connection.port, connection.key, _ANSWER_SECS)
        except TrackerError:  # whoever connects to a board of it tells what is wrong
            continue
    return with_listed(fleet, counts)
