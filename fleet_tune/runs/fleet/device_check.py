"""The devices of a fleet file for ``fleet-tune device``: checked now, or listed with the state of the last run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devices.device_factory import fleet_file_errors
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig
from fleet_tune.base.device_state import Admin, DeviceEvent, DeviceState
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import DeviceUnreachableError, FleetFileError, ProbeError
from fleet_tune.base.records.orders import FleetOrders, Order, orders_path
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.runs.fleet.device_access import opened, reached

_CONNECT_SECS = 5.0
"""Longest wait of a check for a server."""


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """One device, checked just now. A value that could not be found out is None."""

    device_id: str
    connect: str
    state: str
    """``good``, ``lost`` (does not answer), or ``failed`` (answers, but its probe does not run)."""
    detail: str = ""
    """The reason if the state is not ``good``."""
    ping_secs: float | None = None
    """Seconds of a round trip."""
    probe_secs: float | None = None
    """Seconds of one run of the probe."""
    fingerprint: Fingerprint | None = None
    vitals: Mapping[str, float] = field(default_factory=dict)
    """Temperature and clock, as far as the device offers them (:meth:`devices.protocol.Device.vitals`)."""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One device with its state at the end of the last run."""

    device_id: str
    connect: str
    admin: Admin
    """The administrative state that users have ordered."""
    order: Order | None
    """The last order that a user has given; None for none."""
    event: DeviceEvent | None
    """The last change of the device. None if no run has stored one."""

    @property
    def state(self) -> DeviceState:
        return DeviceState() if self.event is None else self.event.state


@dataclass(frozen=True, slots=True)
class FleetListing:
    """The devices of a fleet, and their last changes."""

    devices: tuple[ListedDevice, ...]
    events: tuple[DeviceEvent, ...]
    records: Path | None
    """The database of the events. None if no run has used the fleet."""


def check_devices(fleet: FleetConfig, names: Sequence[str] = (), address: str | None = None) -> Iterator[DeviceCheck]:
    """Connect to devices, run the probe of each and take its fingerprint.

    Args:
        fleet: the fleet.
        names: the devices to check; empty for all.
        address: the cluster whose machines drive the devices with ``via``.

    Raises :class:`FleetFileError` for a name that is not in the fleet, and for a wrong target or dataset, and
    ClusterError.
    """
    known_devices(fleet, names)
    devices = [config for config in fleet.devices if not names or config.name in names]
    with reached(devices, address):
        for number, config in enumerate(devices, 1):
            with ACTIVITY.step(f"checking device {config.name} ({number} of {len(devices)})"):
                checked = _checked(fleet, config)
            yield checked


def _checked(fleet: FleetConfig, config: DeviceConfig) -> DeviceCheck:
    ping_secs = None
    # A short wait, because a user waits for the answer: a server that restarts or is in use can be checked again later.
    patience_secs = min(_CONNECT_SECS, config.timeouts.connect_secs)
    config = config.model_copy(update={"connect_secs": patience_secs})
    try:
        # An error in the fleet file is raised. A device that does not answer is a result.
        with fleet_file_errors(fleet, config.name, unreachable=False), opened(config) as device:
            ping_secs = device.ping()
            probe_secs = device.probe_secs()
            fingerprint, vitals = device.fingerprint(), device.vitals()
            return DeviceCheck(config.name, config.connect, "good", "", ping_secs, probe_secs, fingerprint, vitals)
    except DeviceUnreachableError as error:
        return DeviceCheck(config.name, config.connect, "lost", error.detail, ping_secs)
    except ProbeError as error:
        return DeviceCheck(config.name, config.connect, "failed", error.detail, ping_secs)


def list_devices(fleet: FleetConfig, records: Path | None, events: int) -> FleetListing:
    """List the devices of a fleet file with the orders of users and the state that the last run stored.

    Args:
        fleet: the fleet.
        records: the database to read. None for the database of the last run that used the fleet file.
        events: the number of last changes to list.

    Raises :class:`RecordStoreError`, :class:`FleetOrdersError`, FleetFileError.
    """
    orders = fleet_orders(fleet)
    given = orders.latest()
    records = records or orders.last_records()
    last_events: dict[str, DeviceEvent] = {}  # by device
    last: list[DeviceEvent] = []
    if records is not None:
        with RecordReader(records) as reader:
            last_events, last = reader.devices.states(), reader.devices.events(events)
    devices = []
    for config in fleet.devices:
        event, order = last_events.get(config.name), given.get(config.name)
        admin = order.admin if order is not None else Admin.ACTIVE
        leased = event is not None and event.state.lease.held
        if admin is Admin.DRAINING and not leased:
            admin = Admin.MAINTENANCE  # no run uses it any more
        devices.append(ListedDevice(config.name, config.connect, admin, order, event))
    names = {config.name for config in fleet.devices}
    return FleetListing(tuple(devices), tuple(event for event in last if event.device_id in names), records)


def give_order(fleet: FleetConfig, names: Sequence[str], admin: Admin, reason: str) -> dict[str, bool]:
    """Give an order for devices. Return by device id whether it changes anything.

    Raises FleetFileError for a name that is not in the fleet, and :class:`FleetOrdersError`.
    """
    known_devices(fleet, names)
    orders = fleet_orders(fleet)
    given = orders.latest()
    changes = {}
    for name in dict.fromkeys(names):
        now = given[name].admin if name in given else Admin.ACTIVE
        drained = admin is Admin.DRAINING and now in (Admin.MAINTENANCE, Admin.RETIRED)
        # Resuming always counts as a change: it also ends a quarantine, which this command does not see.
        changes[name] = admin is Admin.ACTIVE or not (now is admin or drained)
        if changes[name]:
            orders.give(name, admin, reason)
    return changes


def fleet_orders(fleet: FleetConfig) -> FleetOrders:
    """Return the orders of a fleet. Raises FleetFileError if the fleet was not read from a file."""
    if fleet.source is None:
        raise FleetFileError("the default fleet has no file to keep orders beside", "write a fleet file")
    return FleetOrders(orders_path(fleet.source.path))


def known_devices(fleet: FleetConfig, names: Sequence[str]) -> None:
    """Raise FleetFileError for a name that is not in the fleet."""
    names_of_fleet = [config.name for config in fleet.devices]
    for name in names:
        if name not in names_of_fleet:
            where = "the default fleet" if fleet.source is None else str(fleet.source.path)
            raise FleetFileError(f"{where} has no device {name!r}", f"name one of these: {', '.join(names_of_fleet)}")
