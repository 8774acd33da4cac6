"""The devices of a fleet as tables for a person and as JSON for a program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from devices.host.vitals import CLOCK, TEMPERATURE
from fleet_tune.base.device_state import DeviceEvent
from fleet_tune.base.domain import Fingerprint
from fleet_tune.report.json_output import json_line
from fleet_tune.report.run import cut
from fleet_tune.report.words import NONE, format_secs
from fleet_tune.runs.fleet.device_check import DeviceCheck, FleetListing, ListedDevice

_GOOD = ("good", "active", "online")


def render_checks(checks: Sequence[DeviceCheck]) -> RenderableType:
    """Render a row for each device."""
    table = _table("device", "connect", "state", "round trip", "probe", "GFLOP/s", "GB/s", "threads", "°C", "GHz", "is")
    for check in checks:
        fingerprint = check.fingerprint
        table.add_row(
            cut(check.device_id),
            cut(check.connect),
            _coloured(check.state),
            format_secs(check.ping_secs),
            format_secs(check.probe_secs),
            NONE if fingerprint is None else f"{fingerprint.abstraction.peak_flops / 1e9:.0f}",
            NONE if fingerprint is None else f"{fingerprint.abstraction.bandwidth_bytes / 1e9:.1f}",
            NONE if fingerprint is None else str(fingerprint.threads),
            f"{check.vitals[TEMPERATURE]:.0f}" if TEMPERATURE in check.vitals else NONE,
            f"{check.vitals[CLOCK] / 1e9:.2f}" if CLOCK in check.vitals else NONE,
            check.detail
            if fingerprint is None
            else ", ".join((f"{fingerprint.cpu_model} ({fingerprint.device_class.name}", *_about(fingerprint))) + ")",
        )
    return table


def _about(fingerprint: Fingerprint) -> list[str]:
    """Return the power mode of a device, if it has one, and its TVM version."""
    return [each for each in (fingerprint.power, f"TVM {fingerprint.tvm_version}") if each]


def checks_json(checks: Sequence[DeviceCheck]) -> str:
    """Return the checks as one line of JSON."""
    return json_line({"devices": [dataclasses.asdict(check) for check in checks]})


def render_listing(listing: FleetListing) -> RenderableType:
    """Render the state of each device, and the last changes with their reasons."""
    fields = _table("device", "connect", "connectivity", "health", "admin", "lease", "as of", "why")
    for device in listing.devices:
        fields.add_row(
            cut(device.device_id),
            cut(device.connect),
            *(_coloured(word) for word in _fields(device)),
            _lease(device),
            NONE if device.event is None else _when(device.event.unix_secs),
            _why(device),
        )
    if listing.records is None:
        return Group(fields, Text("no run has used this fleet file yet", "dim"))
    events = _table("time", "device", "event", "state", "reason")
    for event in listing.events:
        events.add_row(
            _when(event.unix_secs), cut(event.device_id), event.kind, _coloured(event.state.word), event.reason
        )
    return Group(fields, Text(f"last changes, from {listing.records}", "bold"), events)


def listing_json(listing: FleetListing) -> str:
    """Return the listing as one line of JSON."""
    devices = []
    for device in listing.devices:
        connectivity, health, admin = _fields(device)
        lease = device.state.lease
        devices.append(
            {
                "device": device.device_id,
                "connect": device.connect,
                "connectivity": connectivity,
                "health": health,
                "admin": admin,
                "lease": {"owner": lease.owner, "deadline_unix_secs": lease.deadline_unix_secs, "epoch": lease.epoch},
                "as_of_unix_secs": None if device.event is None else device.event.unix_secs,
                "why": _why(device),
            }
        )
    return json_line(
        {
            "devices": devices,
            "events": [_event(event) for event in listing.events],
            "records": None if listing.records is None else str(listing.records),
        }
    )


def _event(event: DeviceEvent) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "device": event.device_id,
        "run_id": event.run_id,
        "event": event.kind,
        "state": event.state.word,
        "reason": event.reason,
        "unix_secs": event.unix_secs,
    }


def _fields(device: ListedDevice) -> tuple[str, str, str]:
    """Return connectivity, health and admin state in words; unknown if no run has seen the device."""
    if device.event is None:
        return "unknown", "unknown", device.admin.value
    return device.state.connectivity.value, device.state.health.value, device.admin.value


def _lease(device: ListedDevice) -> str:
    lease = device.state.lease
    if not lease.epoch:
        return NONE
    if not lease.held:
        return f"free (epoch {lease.epoch})"
    return f"run {lease.owner} until {_when(lease.deadline_unix_secs)} (epoch {lease.epoch})"


def _why(device: ListedDevice) -> str:
    """Return the reason of the last order or of the last change, whichever is later."""
    order, event = device.order, device.event
    if order is not None and (event is None or order.unix_secs > event.unix_secs):
        return f"ordered: {order.admin}{f' ({order.reason})' if order.reason else ''}"
    return "" if event is None else event.reason


def _when(unix_secs: float) -> str:
    """Return local time, with the date if that is not today."""
    then, today = time.localtime(unix_secs), time.localtime()
    same_day = then[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", then)


def _coloured(word: str) -> Text:
    return Text(word, "green" if word in _GOOD else "yellow")


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
