"""``fleet-tune watch``, ``dashboard``, ``report``, ``compare`` and ``frameworks``: what a run does and did, how two
runs differ, and how its network compares with frameworks."""

from __future__ import annotations

from pathlib import Path

import click

from fleet_tune.cli.options import Number, WholeNumber, json_option, network_name, run_options
from fleet_tune.report.json_output import json_line


@click.command(short_help="Write an HTML report of a run.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file. Default: report.html in FOLDER.")
@json_option
def report(folder: Path, out: Path | None, as_json: bool) -> None:
    """Write what the run with the output folder FOLDER did to one HTML file: latency, curves, tasks, failures and
    schedules. The run may be under way."""
    from fleet_tune.report.html.page import REPORT_FILE, write_report

    file = folder / REPORT_FILE if out is None else out
    write_report(folder, file)
    click.echo(json_line({"file": str(file.absolute())}) if as_json else file.absolute())


@click.command(short_help="Watch a run from another terminal.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--every", type=Number(0.1, 3600), default=2.0, show_default=True, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Show the run as it is now, and end.")
@click.option("--address", help="Address of a Ray cluster: FOLDER is one of its head node.")
@json_option
def watch(folder: Path, every: float, once: bool, address: str | None, as_json: bool) -> None:
    """Show what the run with the output folder FOLDER is doing: its latency so far, its tasks, devices and failures.

    Ends when the run has ended, or at once if it ended before. Ctrl-C ends the view and leaves the run alone. The run
    is seen to be under way on its own machine, or with the cluster's --address.
    """
    from itertools import islice

    from fleet_tune.base.config import values
    from fleet_tune.report.run import make_console
    from fleet_tune.report.watching import looks, run_json, show, watcher_of

    with watcher_of(folder, values.cluster_address(address)) as look:
        runs = looks(look, every)
        last = show(make_console(stderr=as_json), islice(runs, 1) if once else runs)
    if as_json and last is not None:
        click.echo(run_json(last))


@click.command(short_help="Show runs, a store or retune in a browser.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--port", type=WholeNumber(0, 65535), default=8765, show_default=True, help="0: any that is free.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address of this machine. Whoever reaches it can read all.",
)
def dashboard(path: Path, port: int, host: str) -> int:
    """Serve read-only pages until Ctrl-C. They show what is new within a second.

    PATH is the output folder of a run, a folder with such folders in it, a record store, or the file of 'fleet-tune
    retune'.
    """
    import asyncio

    from fleet_tune.report.dashboard.server import serve_until_signal, site_of

    shown = f"[{host}]" if ":" in host else host
    return asyncio.run(serve_until_signal(site_of(path), host, port, lambda at: click.echo(f"http://{shown}:{at}/")))


@click.command(short_help="Compare two runs, task by task.")
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--rows", type=WholeNumber(1, 1_000_000), default=40, show_default=True, help="Rows to show of the tasks."
)
@click.option("--html", type=click.Path(path_type=Path), help="Write one HTML file too, with the curves of both.")
@json_option
def compare(first: Path, second: Path, rows: int, html: Path | None, as_json: bool) -> None:
    """Print the best of each task in the runs with the output folders A and B, those that differ most first."""
    from fleet_tune.report.comparison import compare_runs, comparison_json, render_comparison
    from fleet_tune.report.run import make_console

    comparison = compare_runs(first, second)
    make_console(stderr=as_json).print(render_comparison(comparison, rows))
    if html is not None:
        from fleet_tune.report.html.comparison_page import write_comparison

        write_comparison(comparison, html)
        click.echo(html.absolute(), err=as_json)
    if as_json:
        click.echo(comparison_json(comparison))


@click.command(short_help="Time a tuned network beside other frameworks.")
@click.argument("network")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--rounds", type=WholeNumber(1, 1000), default=8, show_default=True, help="Turns of half a second each.")
@run_options("inputs", "shapes", "shapes_weights", "trust_model")
@json_option
def frameworks(
    network: str,
    folder: Path,
    rounds: int,
    inputs: Path | None,
    shapes: str | None,
    shapes_weights: str | None,
    trust_model: bool,
    as_json: bool,
) -> None:
    """Time NETWORK as it was compiled into FOLDER in turn with PyTorch, torch.compile, ONNX Runtime and OpenVINO, as
    far as they are installed and can run it.

    NETWORK is what was tuned; bounds of dynamic dimensions are those of FOLDER, if --shapes is not given. The times are
    kept in FOLDER, where 'fleet-tune report' finds them.
    """
    from fleet_tune.base.activity import ACTIVITY
    from fleet_tune.base.config.shape_options import shapes_given
    from fleet_tune.report.frameworks import render_times, times_json
    from fleet_tune.report.progress import steps_shown
    from fleet_tune.report.run import make_console
    from fleet_tune.runs.framework_times import time_frameworks

    asked = shapes_given(shapes, shapes_weights)
    with steps_shown(make_console(stderr=True), network_name(network), "timing"), ACTIVITY.step("starting") as say:
        found = time_frameworks(
            network, folder, rounds=rounds, inputs=inputs, trusted=trust_model, shapes=asked, say=say
        )
    make_console(stderr=as_json).print(render_times(found))
    if as_json:
        click.echo(times_json(found))
