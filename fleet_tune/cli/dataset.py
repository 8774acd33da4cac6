"""``fleet-tune dataset``: collect, pack, show and refresh datasets of measured candidates."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet_tune.cli.options import NETWORK_HELP, json_option, narration_options, network_name, run_options

if TYPE_CHECKING:
    from fleet_tune.report.narration import Narration

_file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group(short_help="Datasets of measured candidates.")
def dataset() -> None:
    """Measured random candidates, for offline evaluation and as recorded devices."""


@dataset.command(
    short_help="Measure random candidates of every task.",
    help="Measure random candidates of every task of NETWORK into a dataset; the same command again resumes."
    f"{NETWORK_HELP}",
)
@click.argument("network")
@click.option("--per-task", "task_trials", type=int, required=True, help="Trials of every task, failures included.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the records and of dataset.ftd; one made by 'tune' is taken further.",
)
@run_options(
    *("seed", "time_budget_secs", "fleet", "address", "shapes", "shapes_weights"),
    *("precision", "max_error", "trust_model"),
    seed="Seed of the candidates.",
    time_budget_secs="Measuring time at most, as 90s, 5m or 1h30m.",
)
@narration_options
@json_option
def collect(
    network: str,
    task_trials: int,
    out: Path,
    seed: int,
    time_budget_secs: float | None,
    fleet: Path | None,
    address: str | None,
    shapes: str | None,
    shapes_weights: str | None,
    precision: str | None,
    max_error: float | None,
    trust_model: bool,
    narration: Narration,
    as_json: bool,
) -> int:
    from fleet_tune import api
    from fleet_tune.base.config.request import run_request

    # Errors in the options are reported before heavy modules are loaded.
    request = run_request(
        network,
        out=out,
        method="random",
        task_trials=task_trials,
        time_budget_secs=time_budget_secs,
        fleet=fleet,
        address=address,
        seed=seed,
        collects=True,
        shapes=shapes,
        shapes_weights=shapes_weights,
        trust_model=trust_model,
        precision=precision,
        max_error=max_error,
    )

    from fleet_tune.report.dataset import collected_json, render_collected
    from fleet_tune.report.progress import ProgressView
    from fleet_tune.report.run import make_console

    with ProgressView(make_console(stderr=True), network_name(network), narration) as view:
        result = api.run_collection(request, view.update)
    make_console(stderr=as_json).print(render_collected(result))
    if as_json:
        click.echo(collected_json(result))
    return 128 + (result.signal_number or signal.SIGINT) if result.interrupted else 0


@dataset.command(short_help="Make a dataset of the records in a folder.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file to write.")
@run_options("fleet")
@json_option
def pack(folder: Path, out: Path, fleet: Path | None, as_json: bool) -> None:
    """Make a dataset of the records in FOLDER, which 'collect' or 'tune' wrote."""
    from fleet_tune.base.config.fleet_file import default_fleet, load_fleet
    from fleet_tune.base.records.datasets.dataset import save
    from fleet_tune.training import collection

    packed, left_out = collection.pack(folder, default_fleet() if fleet is None else load_fleet(fleet))
    save(packed, out)
    _tell_left_out(left_out)
    _show(out, as_json)


@dataset.command()
@_file_argument
@json_option
def show(file: Path, as_json: bool) -> None:
    """Print what a dataset holds."""
    _show(file, as_json)


@dataset.command(short_help="Describe the sketches of a dataset anew.")
@_file_argument
@click.option("--out", type=click.Path(path_type=Path), help="The file to write. Default: FILE itself.")
@json_option
def refresh(file: Path, out: Path | None, as_json: bool) -> None:
    """Describe the sketches of a dataset anew, with this version's rules; the measurements stay."""
    from fleet_tune.base.records.datasets.dataset import load, save
    from fleet_tune.training import collection

    renewed, left_out = collection.refresh(load(file))
    save(renewed, out or file)
    _tell_left_out(left_out)
    _show(out or file, as_json)


def _tell_left_out(count: int) -> None:
    if count:
        click.echo(f"skipped: {count} of a sketch that this version does not make", err=True)


def _show(path: Path, as_json: bool) -> None:
    from fleet_tune.base.records.datasets.dataset import load
    from fleet_tune.report.dataset import dataset_json, render_dataset
    from fleet_tune.report.run import make_console

    loaded = load(path)
    make_console(stderr=as_json).print(render_dataset(loaded, path))
    if as_json:
        click.echo(dataset_json(loaded, path))
