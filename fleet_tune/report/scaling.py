"""Reports on scaling: tables and bars for people, JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from actors.fleet_usage import SIMULATED, FleetUsage
from fleet_tune.report.json_output import json_line
from fleet_tune.report.words import NONE

_BAR_WIDTH = 40
_MIB = 2**20


def render_scaling(uses: Sequence[FleetUsage]) -> RenderableType:
    """Render the work of the devices, a bar for their use, and the resources of the processes."""
    return Group(
        _devices(uses),
        Text(),
        _bars(uses),
        Text(),
        _helpers(uses),
        Text(),
        _roles(uses, "CPU ms a record", lambda use, role: f"{use.roles[role].cpu_secs_a_record * 1e3:.2f}"),
        Text(),
        _roles(uses, "memory, MiB", lambda use, role: f"{use.roles[role].memory_bytes / _MIB:.0f}"),
    )


def scaling_json(uses: Sequence[FleetUsage]) -> str:
    """Return the figures as one line of JSON."""
    rows: list[dict[str, Any]] = [
        {**dataclasses.asdict(use), "cpu_secs_a_record": use.cpu_secs_a_record} for use in uses
    ]
    return json_line({"rows": rows})


def _devices(uses: Sequence[FleetUsage]) -> Table:
    classes = list(dict.fromkeys(name for use in uses for name in use.busy_by_class))
    table = _table("devices", "trials/s", "of demand", "busy", *classes, "limited by")
    for use in uses:
        table.add_row(
            f"{use.devices:,}",
            f"{use.trials_a_second:,.1f}",
            NONE if use.demand is None else f"{use.trials_a_second / use.demand:.0%}",
            f"{use.busy:.1%}",
            *(f"{use.busy_by_class[name]:.1%}" if name in use.busy_by_class else NONE for name in classes),
            ", ".join(sorted({bound for bound in use.bound.values() if bound})) or NONE,
        )
    return table


def _helpers(uses: Sequence[FleetUsage]) -> Table:
    """Return the numbers of builders and searchers as a table of its own, which fits a terminal."""
    table = _table("devices", "builders", "searchers")
    for use in uses:
        table.add_row(f"{use.devices:,}", f"{use.builders:,}", f"{use.searchers:,}")
    return table


def _bars(uses: Sequence[FleetUsage]) -> Table:
    """Return bars for the use of the devices, and of each class of them."""
    grid = Table.grid(padding=(0, 1))
    for use in uses:
        for name, share in (("all", use.busy), *use.busy_by_class.items()):
            head = f"{use.devices:,} device{'s' * (use.devices != 1)}" if name == "all" else ""
            colour = "cyan" if name == "all" else "bright_black"
            bar = Bar(1.0, 0.0, min(1.0, share), width=_BAR_WIDTH, color=colour)
            grid.add_row(Text(head, justify="right"), Text(name), bar, Text(f"{share:.1%}", justify="right"))
    return grid


def _roles(uses: Sequence[FleetUsage], what: str, shown: Any) -> Table:
    roles = sorted({role for use in uses for role in use.roles}, key=lambda role: (role in SIMULATED, role))
    table = _table("devices", *roles)
    table.title, table.title_justify = what, "left"
    for use in uses:
        table.add_row(f"{use.devices:,}", *(shown(use, role) if role in use.roles else NONE for role in roles))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(columns):
        # Whole words, also on a narrow terminal.
        table.add_column(name, justify="left" if not at else "right", min_width=max(map(len, name.split())))
    return table
