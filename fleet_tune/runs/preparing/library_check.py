"""The libraries that a fleet's kernels may call."""

from __future__ import annotations

from devices.builds.libraries import onednn
from fleet_tune.base.config.fleet_file import FleetConfig


def check_library(fleet: FleetConfig) -> None:
    """Raise :class:`~devices.builds.libraries.onednn.LibraryMissingError` where a library is asked for that is not
    installed here. Other hosts that build say so themselves."""
    if any(device.library for device in fleet.devices):
        onednn.installed()
