"""``fleet-tune retune``: runs the service that keeps networks tuned, shows its state, and rolls versions back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet_tune.cli.options import WholeNumber, json_option
from fleet_tune.report.json_output import json_line

if TYPE_CHECKING:
    from fleet_tune.base.config.retune_file import RetuneConfig
    from fleet_tune.retuning.version_repository import VersionRepository

_RUN = "run"
_file_argument = click.argument("file", type=click.Path(path_type=Path))
_class_option = click.option("--class", "device_class", metavar="NAME", help="Only this device class.")


class _WithDefault(click.Group):
    """``retune FILE`` is ``retune run FILE``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_WithDefault, short_help="Keep networks tuned, for weeks.", subcommand_metavar="FILE | COMMAND FILE [ARGS]..."
)
def retune() -> None:
    """Keep the networks of FILE tuned for the devices of a fleet, until Ctrl-C or SIGTERM.

    FILE says which networks, how often they run, and what may be used of the devices: see examples/retune.toml.
    """


@retune.command(_RUN)
@_file_argument
@click.option("--once", is_flag=True, help="Do what is due now, and end instead of waiting.")
@json_option
def run(file: Path, once: bool, as_json: bool) -> int:
    """Keep networks tuned; 'fleet-tune retune FILE' is the same."""
    from fleet_tune.base.config.retune_file import load_retune
    from fleet_tune.retuning.running import run_service

    config = load_retune(file)
    signal_number = run_service(config, once)
    if once or as_json:
        _show(config, as_json)
    return 128 + signal_number if signal_number else 0


@retune.command(short_help="Print the state of the service.")
@_file_argument
@json_option
def status(file: Path, as_json: bool) -> None:
    """Print what is kept tuned, what the next hour of a device would buy, and what happened last."""
    from fleet_tune.base.config.retune_file import load_retune

    _show(load_retune(file), as_json)


def _show(config: RetuneConfig, as_json: bool) -> None:
    import time

    from fleet_tune.report.retuning import render_status, status_json
    from fleet_tune.report.run import make_console
    from fleet_tune.retuning.children import moment_at
    from fleet_tune.retuning.running import is_running, read_only

    retuner, now, running = read_only(config), moment_at(time.time()), is_running(config)
    make_console(stderr=as_json).print(render_status(retuner, now, running))
    if as_json:
        click.echo(status_json(retuner, now, running))


@retune.command()
@_file_argument
@click.argument("network", required=False)
@json_option
def versions(file: Path, network: str | None, as_json: bool) -> None:
    """Print the versions that are kept, of NETWORK or of all."""
    from fleet_tune.base.config.retune_file import load_retune
    from fleet_tune.report.retuning import render_versions, versions_json
    from fleet_tune.report.run import make_console
    from fleet_tune.retuning.service import repository_of

    repository = repository_of(load_retune(file))
    places = _places(repository, network, None)
    found = [(*place, repository.versions(*place), repository.current_number(*place)) for place in places]
    console = make_console(stderr=as_json)
    for each in found:
        console.print(render_versions(*each))
    if not found:
        console.print("no version was published yet")
    if as_json:
        click.echo(versions_json(found))


@retune.command()
@_file_argument
@click.argument("network")
@_class_option
@click.option(
    "--to",
    type=WholeNumber(1),
    metavar="VERSION",
    help="Version to go back to. Default: the one before the current one.",
)
@json_option
def rollback(file: Path, network: str, device_class: str | None, to: int | None, as_json: bool) -> None:
    """Make an older version of NETWORK the current one. What is newer is not published again; the hook is run."""
    from fleet_tune.base.config.retune_file import load_retune
    from fleet_tune.retuning.running import roll_back
    from fleet_tune.retuning.service import repository_of

    config = load_retune(file)
    places = _places(repository_of(config), network, device_class)
    before, after, problem = roll_back(config, *_only(places, network), to)
    if as_json:
        click.echo(
            json_line({"network": network, "current": after.number, "before": before.number, "hook_problem": problem})
        )
    else:
        click.echo(f"{network}: version {after.number} is the current one now, instead of {before.number}")
    if problem:
        click.echo(f"warning: the hook failed: {problem}", err=True)


def _places(repository: VersionRepository, network: str | None, device_class: str | None) -> list[tuple[str, str]]:
    """Return the networks and classes that have versions, of the given names only. Raises
    :class:`fleet_tune.base.errors.RetuneError` if the given network has none."""
    from fleet_tune.base.errors import RetuneError

    places = repository.places()
    found = [each for each in places if network in (None, each[0]) and device_class in (None, each[1])]
    if network is not None and not found:
        known = ", ".join(f"{name} on {of_class}" for name, of_class in places) or "there is none yet"
        where = f"{network} on {device_class}" if device_class else network
        raise RetuneError(f"{where} has no version", f"versions are of: {known}")
    return found


def _only(places: list[tuple[str, str]], network: str) -> tuple[str, str]:
    from fleet_tune.base.errors import RetuneError

    if len(places) > 1:
        classes = ", ".join(name for _, name in places)
        raise RetuneError(f"{network} has versions for several classes", f"name one with --class: {classes}")
    return places[0]
