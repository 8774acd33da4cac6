"""``fleet-tune device list|check|drain|resume|retire``: shows and checks devices, and gives orders for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleet_tune.cli.options import WholeNumber, json_option

if TYPE_CHECKING:
    from fleet_tune.base.config.fleet_file import FleetConfig
    from fleet_tune.base.device_state import Admin

_F = TypeVar("_F", bound=Callable[..., Any])
_fleet_argument = click.argument("fleet", type=click.Path(path_type=Path))


def _order(command: _F) -> _F:
    """Add the arguments of an order: a fleet file, devices, a reason."""
    command = click.option("--reason", default="", metavar="TEXT", help="Reason, for others to read.")(command)
    command = click.argument("names", nargs=-1, required=True, metavar="DEVICE...")(command)
    return _fleet_argument(command)


@click.command("list", short_help="Print the state of every device.")
@_fleet_argument
@click.option("--out", type=click.Path(path_type=Path), help="Output folder of a run. Default: that of the last run.")
@click.option("--events", type=WholeNumber(0, 1_000_000), default=15, show_default=True, help="Last changes to show.")
@json_option
def list_command(fleet: Path, out: Path | None, events: int, as_json: bool) -> None:
    """Print the state of every device of FLEET, as the last run that used it knows it, and the last changes with their
    reasons."""
    from fleet_tune.report.devices import listing_json, render_listing
    from fleet_tune.report.run import make_console
    from fleet_tune.runs.fleet.device_check import list_devices

    listing = list_devices(_devices_of(fleet), None if out is None else out / "records.db", events)
    make_console(stderr=as_json).print(render_listing(listing))
    if as_json:
        click.echo(listing_json(listing))


@click.command(short_help="Connect to devices and run the probe.")
@_fleet_argument
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
@click.option("--address", help="Address of the Ray cluster whose machines drive devices with via.")
@json_option
def check(fleet: Path, names: tuple[str, ...], address: str | None, as_json: bool) -> None:
    """Connect to the devices of FLEET, run the probe on each, and print what they are.

    Ends with code 2 where one does not pass. A device that a run is using is busy: check it when the run has ended.
    """
    from fleet_tune.base.errors import DevicesLostError
    from fleet_tune.report.devices import checks_json, render_checks
    from fleet_tune.report.progress import steps_shown
    from fleet_tune.report.run import make_console, plural
    from fleet_tune.runs.fleet.device_check import check_devices, known_devices

    config = _devices_of(fleet)
    known_devices(config, names)
    with steps_shown(make_console(stderr=True), "devices", "checking"):
        checks = list(check_devices(config, names, address))
    make_console(stderr=as_json).print(render_checks(checks))
    if as_json:
        click.echo(checks_json(checks))
    failed = [each for each in checks if each.state != "good"]
    if failed:
        raise DevicesLostError(
            f"{len(failed)} of {plural(len(checks), 'device')} did not pass: "
            + "; ".join(f"{each.device_id} is {each.state} ({each.detail})" for each in failed),
            "start 'fleet-tune device serve' on it, check the address, or retire it",
        )


@click.command()
@_order
def drain(fleet: Path, names: tuple[str, ...], reason: str) -> None:
    """Give the devices no more work. What they are measuring is finished; then they are in maintenance."""
    from fleet_tune.base.device_state import Admin

    _give(fleet, names, Admin.DRAINING, reason, "drained: it gets no new work from any run until it is resumed")


@click.command(short_help="Use devices again.")
@_order
def resume(fleet: Path, names: tuple[str, ...], reason: str) -> None:
    """Use the devices again, after their probe has run; also ends a quarantine at once."""
    from fleet_tune.base.device_state import Admin

    _give(fleet, names, Admin.ACTIVE, reason, "in use again, once its probe has run")


@click.command(short_help="Take devices out of use for good.")
@_order
def retire(fleet: Path, names: tuple[str, ...], reason: str) -> None:
    """Take the devices out of use for good; 'resume' would bring them back."""
    from fleet_tune.base.device_state import Admin

    _give(fleet, names, Admin.RETIRED, reason, "retired: it gets no new work from any run")


def _give(fleet: Path, names: tuple[str, ...], admin: Admin, reason: str, told: str) -> None:
    from fleet_tune.runs.fleet.device_check import give_order

    for name, changed in give_order(_devices_of(fleet), names, admin, reason).items():
        click.echo(f"{name}: {told}" if changed else f"{name}: nothing to do, it is out of use already")


def _devices_of(file: Path) -> FleetConfig:
    """Return the fleet of a file, with all boards that the trackers list now."""
    from fleet_tune.base.config.fleet_file import load_fleet
    from fleet_tune.runs.fleet.tracker_boards import with_boards

    return with_boards(load_fleet(file))


ADMIN_COMMANDS = (list_command, check, drain, resume, retire)
"""Commands of the group ``fleet-tune device``."""
