"""Access to devices outside of a tuning: from this process, or on the machine of a cluster that drives the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from devices.device_factory import open_device
from devices.protocol import Device
from fleet_tune.base.config.fleet_file import DeviceConfig


def opened(config: DeviceConfig, realtime: bool = True) -> contextlib.AbstractContextManager[Device]:
    """Open a device; see :func:`devices.device_factory.open_device`. Raises DeviceUnreachableError if this process is
    not connected to a cluster with the machine that drives the device."""
    if config.via is None:
        return open_device(config, realtime)
    from actors.remote_devices import opened_elsewhere  # late: it loads Ray, which most commands do not need

    return opened_elsewhere(config, realtime)


@contextlib.contextmanager
def reached(devices: Iterable[DeviceConfig], address: str | None) -> Iterator[None]:
    """Stay connected to the cluster at ``address`` in this block, if a machine of it drives one of the devices. Raises
    ClusterError."""
    if address is None or all(device.via is None for device in devices):
        yield
        return
    from actors.clusters.cluster import connected

    with connected(address):
        yield
