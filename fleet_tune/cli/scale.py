"""``fleet-tune scale``: how a run scales with its devices."""

from __future__ import annotations

from pathlib import Path

import click

from fleet_tune.cli.options import check_picture, json_option


@click.command(short_help="Measure how a run scales with its devices.")
@click.option("--devices", required=True, metavar="COUNTS", help="Counts of simulated devices, as 1,2,4,8.")
@click.option("--candidate", "candidate_secs", type=float, default=0.5, show_default=True, help="Seconds a candidate.")
@click.option("--build", "build_secs", type=float, default=0.6, show_default=True, help="Seconds a build.")
@click.option("--faults", type=float, default=0.02, show_default=True, help="Share of candidates that crash.")
@click.option("--seconds", "secs", type=float, default=20.0, show_default=True, help="Time for each count.")
@click.option("--address", help="Address of a Ray cluster. Default: an embedded one.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Save the tables and bars as a picture.")
@json_option
def scale(
    devices: str,
    candidate_secs: float,
    build_secs: float,
    faults: float,
    secs: float,
    address: str | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Let the real scheduler, searchers and recorder tune on simulated devices, one count of --devices after the other.

    Prints trials a second, how busy the devices of three classes are, what bounds them, and what processor time and
    memory the processes take. Devices and builders take the stated times asleep.
    """
    from fleet_tune.runs.scaling import run_scaling, scale_request

    request = scale_request(
        devices, candidate_secs=candidate_secs, build_secs=build_secs, faults=faults, secs=secs, address=address
    )
    check_picture(svg)
    from fleet_tune.report.run import make_console, plural, save_svg
    from fleet_tune.report.scaling import render_scaling, scaling_json

    errors = make_console(stderr=True)
    uses = run_scaling(request, lambda count: errors.print(f"{plural(count, 'device')} ..."))
    rendered = render_scaling(uses)
    make_console(stderr=as_json).print(rendered)
    if svg is not None:
        save_svg(rendered, svg, "fleet-tune scale")
    if as_json:
        click.echo(scaling_json(uses))
