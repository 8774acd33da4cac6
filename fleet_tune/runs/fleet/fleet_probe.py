"""Fingerprints of the devices of a fleet, taken without a cluster."""

from __future__ import annotations

from devices.device_factory import fleet_file_errors
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import DeviceUnreachableError
from fleet_tune.runs.fleet.device_access import opened


def probe_fleet(fleet: FleetConfig) -> dict[str, Fingerprint]:
    """Return the fingerprint of each device by its name. Devices that do not answer are missing. Raises FleetFileError
    if no device answers, or if an entry of the fleet file is wrong."""
    fingerprints: dict[str, Fingerprint] = {}
    absent: dict[str, DeviceUnreachableError] = {}
    for config in fleet.devices:
        name = config.name
        try:
            with fleet_file_errors(fleet, name, unreachable=False), opened(config) as device:
                fingerprints[name] = device.fingerprint()
        except DeviceUnreachableError as error:
            absent[name] = error
    if not fingerprints:
        name = next(iter(absent))
        with fleet_file_errors(fleet, name):
            raise absent[name]
    return fingerprints
