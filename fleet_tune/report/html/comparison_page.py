"""One HTML file of two runs side by side; :mod:`fleet_tune.report.html.page` makes that of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet_tune.base.errors import RequestError
from fleet_tune.base.version import __version__
from fleet_tune.report.comparison import NAMES, TITLES, RunComparison, alone_lines, row_of, sums_text
from fleet_tune.report.html.charts import Point, step_chart
from fleet_tune.report.html.environment import templates_of
from fleet_tune.report.run import format_clock
from fleet_tune.report.run_history import RunHistory, read_history
from fleet_tune.report.words import format_secs


def write_comparison(comparison: RunComparison, out: Path) -> None:
    """Write the page. Raises :class:`RequestError` if ``out`` cannot be written."""
    text = render_comparison_page(comparison)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"{out} cannot be written: {error.strerror or error}", "name another file: --html"
        ) from error


def render_comparison_page(comparison: RunComparison) -> str:
    """Return the page."""
    histories = [read_history(folder) for folder in comparison.folders]
    names = [folder.resolve().name for folder in comparison.folders]
    classes = dict.fromkeys(name for history in histories for name, points in history.curves.items() if points)
    return (
        templates_of("fleet_tune.report.html")
        .get_template("comparison.html.j2")
        .render(
            names=names,
            version=__version__,
            folders=[(name, str(folder.resolve())) for name, folder in zip(NAMES, comparison.folders, strict=True)],
            sums=sums_text(comparison),
            alone=alone_lines(comparison),
            charts={name: _charts(name, histories) for name in classes},
            titles=TITLES,
            rows=[(task.name, *row_of(task)) for task in comparison.tasks],
        )
    )


def _charts(device_class: str, histories: list[RunHistory]) -> dict[str, Any]:
    """Return the curves of both runs in one picture, by time and by trials."""
    by_time: dict[str, list[Point]] = {}
    by_trials: dict[str, list[Point]] = {}
    for name, history in zip(NAMES, histories, strict=True):
        points = history.curves.get(device_class)
        if points:
            by_time[name] = [(point.secs, point.network_secs) for point in points]
            by_trials[name] = [(float(point.trials), point.network_secs) for point in points]
    title = f"Estimated latency on {device_class} of both runs"
    return {
        "time": step_chart(by_time, f"{title} by time", "time of tuning", format_clock, format_secs),
        "trials": step_chart(by_trials, f"{title} by trials", "trials", lambda value: f"{value:.0f}", format_secs),
    }
