"""``fleet-tune report`` and ``compare``: what a run did, and how two runs differ."""

from __future__ import annotations

from pathlib import Path

import click

from fleet_tune.cli.options import json_option


@click.command(short_help="Write an HTML report of a run.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file. Default: report.html in FOLDER.")
def report(folder: Path, out: Path | None) -> None:
    """Write what the run with the output folder FOLDER did to one HTML file: latency, curves, tasks, failures and
    schedules. The run may be under way."""
    from fleet_tune.report.html.page import REPORT_FILE, write_report

    file = folder / REPORT_FILE if out is None else out
    write_report(folder, file)
    click.echo(file.absolute())


@click.command(short_help="Compare two runs, task by task.")
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--rows", type=click.IntRange(1, 1_000_000), default=40, show_default=True, help="Rows to show of the tasks."
)
@json_option
def compare(first: Path, second: Path, rows: int, as_json: bool) -> None:
    """Print the best of each task in the runs with the output folders A and B, those that differ most first."""
    from fleet_tune.report.comparison import compare_runs, comparison_json, render_comparison
    from fleet_tune.report.run import make_console

    comparison = compare_runs(first, second)
    make_console(stderr=as_json).print(render_comparison(comparison, rows))
    if as_json:
        click.echo(comparison_json(comparison))
