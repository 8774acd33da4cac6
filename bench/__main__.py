"""Command line of the benchmarks: ``python -m bench NAME [options] --json``.

The last line of output is one JSON object: ``bench``, ``ours``, ``peer``, ``ratio`` (above 1 is better for us),
``unit``, ``details``. Without ``--json`` the result is printed as text.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping

import click

from bench.benchmark import Benchmark, discover, json_option, save_option
from bench.gpu import first
from bench.gpu import page as gpu_page
from bench.machine import bench_env, cores
from bench.models import fit_analyzer
from bench.page import SUMMARY_PAGE, TABLES_PAGE, draw_pictures, stale_text, write_pages
from bench.processes import ROOT, run_json
from bench.result import BenchError
from bench.saved_result import read_results
from fleet_tune.base.records.files.atomic_file import write_atomically

_TIMEOUT_SECS = 7200.0


def command_line(benchmarks: Mapping[str, Benchmark]) -> click.Group:
    """Return a command for each benchmark, the commands ``all`` and ``docs``, and those of ``fit_analyzer`` and
    ``gpu.first``."""
    group = click.Group(
        help="Benchmarks of fleet-tune against MetaSchedule, PyTorch and ONNX Runtime, taken in the same run."
    )
    for benchmark in benchmarks.values():
        group.add_command(benchmark.command())
    group.add_command(_all_command(benchmarks))
    group.add_command(_docs_command(benchmarks))
    group.add_command(fit_analyzer.command())
    group.add_command(first.command())
    return group


def _all_command(benchmarks: Mapping[str, Benchmark]) -> click.Command:
    def call(short: bool, only: tuple[str, ...], save: bool, as_json: bool) -> None:
        for name in only or benchmarks:
            # Each benchmark saves its own result, so that a later failure loses nothing.
            flags = ["--json", "--save"] if save else ["--json"]
            args = ["-m", "bench", name, *(benchmarks[name].short if short else ()), *flags]
            click.echo(shlex.join(["python", *args]), err=True)
            result = run_json(args, env=bench_env(cores()), timeout_secs=_TIMEOUT_SECS)
            click.echo(json.dumps(result if as_json else {**result, "details": "..."}))

    options = [
        click.Option(["--short"], is_flag=True, help="The short form of each benchmark."),
        click.Option(["--only"], multiple=True, type=click.Choice(list(benchmarks)), help="Of all, these."),
        save_option(),
        json_option(),
    ]
    text = "Run every benchmark, each in a process of its own, one after the other."
    return click.Command("all", params=list(options), callback=call, help=text)


def _docs_command(benchmarks: Mapping[str, Benchmark]) -> click.Command:
    def call() -> None:
        results = read_results()
        try:
            draw_pictures(results, benchmarks)
        except BenchError as error:  # the pages need no matplotlib
            click.echo(f"pictures stay as they are: {error}", err=True)
        write_pages(results, benchmarks)
        write_atomically(gpu_page.PAGE, gpu_page.page().encode())
        click.echo(f"written: {SUMMARY_PAGE}, {TABLES_PAGE}, {gpu_page.PAGE}")
        click.echo(stale_text(results))

    text = "Write the pages of figures from the results, and list the results whose code has changed since."
    return click.Command("docs", callback=call, help=text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    try:
        command_line(discover())(obj=tuple(sys.argv[1:]))
    except BenchError as error:
        raise SystemExit(f"bench: {error}") from error
