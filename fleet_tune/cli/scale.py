"""``fleet-tune scale``: how a run scales with its devices, simulated ones or those of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet_tune.base.errors import RequestError
from fleet_tune.cli.options import check_picture, json_option, run_options

if TYPE_CHECKING:
    from actors.fleet_usage import FleetUsage

_EITHER = "give NETWORK and --fleet for a real fleet, or none of the two for simulated devices"
_STATED = {"candidate_secs": 0.5, "build_secs": 0.6, "faults": 0.02}
"""Defaults of simulated devices."""


@click.command(short_help="Measure how a run scales with its devices.")
@click.argument("network", required=False)
@click.option("--devices", required=True, metavar="COUNTS", help="Counts of devices, one after the other, as 1,2,4,8.")
@click.option("--candidate", "candidate_secs", type=float, help="Simulated: seconds a candidate. [default: 0.5]")
@click.option("--build", "build_secs", type=float, help="Simulated: seconds a build. [default: 0.6]")
@click.option("--faults", type=float, help="Simulated: share of candidates that crash. [default: 0.02]")
@click.option(
    "--fleet",
    type=click.Path(path_type=Path),
    help="Fleet file (TOML): NETWORK is tuned on parts of it. Default: simulated devices.",
)
@run_options("inputs", "shapes", "shapes_weights", "trust_model")
@click.option("--seconds", "secs", type=float, default=20.0, show_default=True, help="Time for each count.")
@run_options("address")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Save the tables and bars as a picture.")
@json_option
def scale(
    network: str | None,
    devices: str,
    fleet: Path | None,
    inputs: Path | None,
    shapes: str | None,
    shapes_weights: str | None,
    trust_model: bool,
    secs: float,
    address: str | None,
    svg: Path | None,
    as_json: bool,
    **simulated: float | None,
) -> None:
    """Let a run tune on more and more devices, one count of --devices after the other.

    Prints trials a second, how busy the devices of each class are, what bounds them, and what processor time and memory
    the processes take. Without NETWORK the scheduler, searchers and recorder are real, and devices of three classes and
    builders take stated times asleep. With NETWORK and --fleet everything is real, and each count is a part of the
    fleet, of each kind of device in turn; what is measured is kept nowhere.
    """
    check_picture(svg)
    run: Callable[[Callable[[int], None]], list[FleetUsage]]
    if network is None and fleet is None:
        if trust_model or any(value is not None for value in (inputs, shapes, shapes_weights)):
            raise RequestError(
                "simulated devices tune no network: --inputs, --shapes and --trust-model are of one", _EITHER
            )
        from fleet_tune.scaling.simulated_fleet import run_scaling, scale_request

        given = {name: value for name, value in simulated.items() if value is not None}
        run = partial(run_scaling, scale_request(devices, **{**_STATED, **given}, secs=secs, address=address))
    else:
        if network is None or fleet is None:
            lacking = "NETWORK" if network is None else "--fleet"
            raise RequestError(f"a fleet is measured while it tunes a network, and {lacking} is not given", _EITHER)
        if any(value is not None for value in simulated.values()):
            raise RequestError(
                "--candidate, --build and --faults are of simulated devices, and these are real", _EITHER
            )
        from fleet_tune.scaling.real_fleet import fleet_scale_request, run_fleet_scaling

        request = fleet_scale_request(
            network,
            devices,
            fleet=fleet,
            secs=secs,
            address=address,
            inputs=inputs,
            shapes=shapes,
            shapes_weights=shapes_weights,
            trust_model=trust_model,
        )
        run = partial(run_fleet_scaling, request)
    from fleet_tune.report.run import make_console, plural, save_svg
    from fleet_tune.report.scaling import render_scaling, scaling_json

    errors = make_console(stderr=True)
    uses = run(lambda count: errors.print(f"{plural(count, 'device')} ..."))
    rendered = render_scaling(uses)
    make_console(stderr=as_json).print(rendered)
    if svg is not None:
        save_svg(rendered, svg, "fleet-tune scale")
    if as_json:
        click.echo(scaling_json(uses))
