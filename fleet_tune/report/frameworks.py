"""Times of a network in frameworks, for people and as JSON."""

from __future__ import annotations

import dataclasses

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet_tune.report.json_output import json_line
from fleet_tune.report.words import NONE, format_secs
from fleet_tune.runs.framework_times import FrameworkTime, FrameworkTimes

TITLES = ("", "median", "10% to 90%", "fleet-tune is", "relative error")


def rows(found: FrameworkTimes) -> list[tuple[str, ...]]:
    """Return a row of texts for each framework, in the columns :data:`TITLES`."""
    return [_row(each, found.ratios.get(each.name)) for each in found.times]


def _row(each: FrameworkTime, ratio: float | None) -> tuple[str, ...]:
    if each.secs is None:
        return (each.name, NONE, NONE, NONE, f"does not run: {each.problem}")
    spread = f"{format_secs(each.low_secs)} to {format_secs(each.high_secs)}"
    faster = "" if ratio is None else f"{ratio:.2f}× as fast"
    error = NONE if each.relative_error is None else f"{each.relative_error:.2g}"
    return (each.name, format_secs(each.secs), spread, faster, error)


def render_times(found: FrameworkTimes) -> RenderableType:
    """Render the times as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column(TITLES[0], no_wrap=True)
    for title in TITLES[1:]:
        table.add_column(title, justify="right")
    for row in rows(found):
        table.add_row(*row)
    return Group(table, Text(f"{found.network} on {found.cpu}, {found.threads} threads", "dim"))


def times_json(found: FrameworkTimes) -> str:
    """Return the times as one line of JSON."""
    return json_line({**dataclasses.asdict(found), "ratios": found.ratios})
