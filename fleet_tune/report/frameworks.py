"""Times of a network in frameworks, for people and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet_tune.report.json_output import json_line
from fleet_tune.report.words import NONE, format_secs
from fleet_tune.runs.framework_times import ExtentTimes, FrameworkTime, FrameworkTimes

TITLES = ("", "median", "10% to 90%", "fleet-tune is", "relative error")


def rows(found: FrameworkTimes) -> list[tuple[str, ...]]:
    """Return a row of texts for each framework, in the columns :data:`TITLES`."""
    return [_row(each, found.ratios.get(each.name)) for each in found.times]


def extent_titles(found: FrameworkTimes) -> tuple[str, ...]:
    """Return the columns of :func:`extent_rows`. Empty for a network of fixed shapes."""
    return (", ".join(_extents(found.extent)), *(each.name for each in found.times)) if found.others else ()


def extent_rows(found: FrameworkTimes) -> list[tuple[str, ...]]:
    """Return a row of texts for each extent at which the network was timed, ascending: the median in each
    framework."""
    everywhere = [ExtentTimes(found.extent, found.times), *found.others] if found.others else []
    by_extent = sorted(everywhere, key=lambda each: tuple(_extents(each.extent).values()))
    return [
        (", ".join(map(str, _extents(each.extent).values())), *(_median(time, each.ratios) for time in each.times))
        for each in by_extent
    ]


def extent_series(found: FrameworkTimes) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return extents and median seconds, ascending, by dynamic dimension and framework, with all other dimensions at
    their typical extents. Empty for a network of fixed shapes."""
    everywhere = [ExtentTimes(found.extent, found.times), *found.others] if found.others else []
    typical = _extents(found.extent) if everywhere else {}
    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, extent in typical.items():
        series[name] = {each.name: [] for each in found.times}
        for at in everywhere:
            extents = _extents(at.extent)
            if {**extents, name: extent} == typical:
                for each in at.times:
                    if each.secs is not None:
                        series[name][each.name].append((extents[name], each.secs))
        series[name] = {framework: sorted(points) for framework, points in series[name].items()}
    return series


def _extents(text: str) -> dict[str, int]:
    """Parse the text of :func:`fleet_tune.base.shapes.dimensions.in_words`."""
    return {name: int(extent) for name, extent in (each.split(" = ") for each in text.split(", "))}


def _median(each: FrameworkTime, ratios: Mapping[str, float]) -> str:
    if each.secs is None:
        return NONE
    ratio = ratios.get(each.name)
    return format_secs(each.secs) if ratio is None else f"{format_secs(each.secs)} ({ratio:.2f}×)"


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
    at = f" with {found.extent}" if found.extent else ""
    told = Text(f"{found.network}{at} on {found.cpu}, {found.threads} threads", "dim")
    if not found.others:
        return Group(table, told)
    by_extent = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in extent_titles(found):
        by_extent.add_column(title, justify="right")
    for row in extent_rows(found):
        by_extent.add_row(*row)
    return Group(table, told, by_extent, *(Text(line, "yellow") for line in problem_lines(found)))


def problem_lines(found: FrameworkTimes) -> list[str]:
    """Return a line with the reason for each extent at which a framework fails, if it runs at the typical one."""
    return [
        f"{time.name} does not run with {each.extent}: {time.problem}"
        for each in found.others
        for time, typical in zip(each.times, found.times, strict=True)
        if time.secs is None and typical.secs is not None
    ]


def times_json(found: FrameworkTimes) -> str:
    """Return the times as one line of JSON."""
    return json_line({**dataclasses.asdict(found), "ratios": found.ratios})
