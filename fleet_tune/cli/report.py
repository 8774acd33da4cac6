"""``fleet-tune report``: what a run did, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click


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
