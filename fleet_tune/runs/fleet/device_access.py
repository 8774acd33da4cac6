"""Access to devices outside of a tuning: from here, or on the machine of a cluster that drives them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from devices.device_factory import open_device
from devices.protocol import Device
from fleet_tune.base.config.fleet_file import DeviceConfig


def opened(config: DeviceConfig, realtime: bool = True) -> contextlib.AbstractContextManager[Device]:
    """See :func:`devices.device_factory.open_device`. Raises DeviceUnreachableError where the machine that drives it is
    no part of the cluster that this process is connected to, or it is connected to none."""
    if config.via is None:
        return open_device(config, realtime)
    from actors.remote_devices import opened_elsewhere  # here: it loads Ray, which most commands do not need

    return opened_elsewhere(config, realtime)


@contextlib.contextmanager
def reached(devices: Iterable[DeviceConfig], address: str | None) -> Iterator[None]:
    """Connected to the cluster at ``address``, where one of the devices is driven from a machine of it. Raises
    ClusterError."""
    if address is None or all(device.via is None for device in devices):
        yield
        return
    from actors.clusters.cluster import connected

    with connected(address):
        yield
