"""Reports on the service that keeps networks tuned, for people and for programs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet_tune.report.json_output import json_line
from fleet_tune.report.words import NONE, format_secs, named
from fleet_tune.retuning.version_repository import PublishedVersion
from policies.retuning import allowance
from policies.retuning.retuner import Retuner
from policies.retuning.rules import Moment
from policies.retuning.state import ActionInProgress, AskDevices, Deployment, ServiceEvent, TuneDeployment, Wait

_EVENTS = 10
_HOUR = 3600.0


def render_status(retuner: Retuner, moment: Moment, running: bool) -> RenderableType:
    """Render the deployments with the worth of the next hour of a device, the devices, the last events, and the present
    action or the reason for waiting."""
    now = moment.unix_secs
    deployments = _table("network", "class", "version", "latency", "spent", "next device hour buys", "state")
    for each in retuner.view.active():
        deployments.add_row(
            each.network,
            each.device_class,
            NONE if each.version is None else str(each.version),
            format_secs(each.secs),
            f"{each.effort_secs / _HOUR:.2g} h",
            _buys(retuner, each, now),
            _state(retuner, each, now),
        )
    devices = _table("device", "class", "state", "class used in 24 h")
    for device in retuner.state.devices:
        devices.add_row(
            device.name, device.device_class or NONE, device.problem or "good", _used(retuner, device.device_class, now)
        )
    waits_for = _waits_for(retuner, moment)
    doing = _doing(retuner.state.doing) or (f" and waits: {waits_for}" if waits_for else " and begins something")
    told = f"the service runs{doing}" if running else "the service does not run"
    share = f"it may use {100 * retuner.rules.share:.3g}% of the time of each class's devices"
    return Group(Text(f"{told}; {share}", "bold"), deployments, devices, *_events(retuner.state.events[-_EVENTS:]))


def status_json(retuner: Retuner, moment: Moment, running: bool) -> str:
    """Return the status as one line of JSON."""
    now = moment.unix_secs
    deployments = []
    for each in retuner.view.active():
        value = None if each.secs is None else retuner.valuation.next_hour(each, now)
        deployments.append(
            {
                "network": each.network,
                "device_class": each.device_class,
                "version": each.version,
                "secs": each.secs,
                "effort_secs": each.effort_secs,
                "pending": [dataclasses.asdict(pending) for pending in each.pending],
                "problem": each.problem or None,
                "failures": each.failures,
                "next_hour": None
                if value is None
                else {
                    "saved_secs": value.saved_secs,
                    "saved_secs_a_day": value.saved_secs_a_day,
                    "payback_days": value.payback_days if math.isfinite(value.payback_days) else None,
                },
                "worth": None if value is None else retuner.valuation.is_worth(each, now),
            }
        )
    body = {
        "running": running,
        "doing": dataclasses.asdict(retuner.state.doing) if running and retuner.state.doing is not None else None,
        "waits_for": _waits_for(retuner, moment) if running and retuner.state.doing is None else None,
        "share": retuner.rules.share,
        "deployments": deployments,
        "devices": [dataclasses.asdict(device) for device in retuner.state.devices],
        "file_problems": retuner.state.file_problems,
        "published": retuner.state.published,
        "hook_failures": retuner.state.hook_failures,
        "events": [dataclasses.asdict(event) for event in retuner.state.events],
    }
    return json_line(body)


def render_versions(
    network: str, device_class: str, versions: Sequence[PublishedVersion], current: int | None
) -> RenderableType:
    """Render the versions of a network and class, newest first."""
    table = _table(
        "version", "", "published", "latency", "worst ratio to the last", "why", title=f"{network} on {device_class}"
    )
    for version in reversed(versions):
        provenance = version.provenance
        worst = provenance.get("worst")
        mark = "current" if version.number == current else "rolled back" if version.withdrawn else ""
        table.add_row(
            str(version.number),
            mark,
            _when(provenance.get("published_unix_secs")),
            format_secs(version.secs),
            NONE if not worst else f"{worst['ratio']:.3f} on {worst['device']}",
            str(provenance.get("why", NONE)),
        )
    return table


def versions_json(found: Sequence[tuple[str, str, Sequence[PublishedVersion], int | None]]) -> str:
    """Return the versions as one line of JSON."""
    body = [
        {
            "network": network,
            "device_class": device_class,
            "current": current,
            "versions": [
                {
                    "version": version.number,
                    "folder": str(version.folder),
                    "withdrawn": version.withdrawn,
                    **version.provenance,
                }
                for version in versions
            ],
        }
        for network, device_class, versions, current in found
    ]
    return json_line({"deployments": body})


def _doing(doing: ActionInProgress | None) -> str:
    if doing is None:
        return ""
    action, since = doing.action, time.strftime("%H:%M:%S", time.localtime(doing.began))
    if isinstance(action, AskDevices):
        return f", asks {named(action.devices)} since {since}"
    verb = "tunes" if isinstance(action, TuneDeployment) else "times"
    why = f" ({action.why})" if isinstance(action, TuneDeployment) else ""
    return f", {verb} {action.network} on {action.device_class} since {since}{why}"


def _waits_for(retuner: Retuner, moment: Moment) -> str | None:
    """Return why the service waits; None if there is something to do."""
    # The service looks at its files again and again. As if it had just done so: is there anything else to do?
    retuner.state.looked_at = moment.unix_secs
    action = retuner.next(moment)
    return action.why if isinstance(action, Wait) else None


def _buys(retuner: Retuner, each: Deployment, now: float) -> str:
    if each.secs is None:
        return NONE
    value = retuner.valuation.next_hour(each, now)
    return f"{value.saved_secs * 1e3:.3g} ms a call, {value.saved_secs_a_day:.3g} s a day"


def _state(retuner: Retuner, each: Deployment, now: float) -> Text:
    if each.network in retuner.state.file_problems:
        return Text(retuner.state.file_problems[each.network], "red")
    if each.problem:
        return Text(f"failed {each.failures}x: {each.problem}", "red")
    if each.pending:
        return Text(", ".join(f"{pending.trigger}" for pending in each.pending), "yellow")
    if each.suspicion is not None:
        return Text(f"{each.suspicion.finding} on {each.suspicion.device}, not confirmed yet", "yellow")
    if each.secs is None:
        return Text("it was never timed", "yellow")
    return Text("tuning pays") if retuner.valuation.is_worth(each, now) else Text("tuning does not pay", "green")


def _used(retuner: Retuner, device_class: str, now: float) -> str:
    count = sum(1 for device in retuner.state.devices if device.device_class == device_class)
    if not device_class or not count:
        return NONE
    return f"{allowance.used_secs(retuner.state.used, device_class, now) / (allowance.WINDOW_SECS * count):.1%}"


def _events(events: Sequence[ServiceEvent]) -> list[RenderableType]:
    if not events:
        return []
    table = _table("time", "what", "network", "class", "")
    for event in events:
        table.add_row(_when(event.at), event.kind, event.network or NONE, event.device_class or NONE, event.text)
    return [Text("last events", "bold"), table]


def _when(unix_secs: Any) -> str:
    if not isinstance(unix_secs, int | float):
        return NONE
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_secs))


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
