"""``fleet-tune doctor``: finds problems of this machine and of the devices that hinder runs."""

from __future__ import annotations

from pathlib import Path

import click

from fleet_tune.cli.options import json_option


@click.command(short_help="Check this machine and a fleet.")
@click.option("--fleet", type=click.Path(path_type=Path), help="Fleet file (TOML): its devices are checked too.")
@click.option("--address", help="Address of the Ray cluster whose machines drive devices with via.")
@json_option
def doctor(fleet: Path | None, address: str | None, as_json: bool) -> None:
    """Check versions, processor, clock, other work, limits, disk, store and devices, and say what to do.

    Ends with code 2 where runs would fail. It takes some seconds.
    """
    from fleet_tune.base.config.fleet_file import load_fleet
    from fleet_tune.base.diagnosis import Severity
    from fleet_tune.base.errors import CheckupError
    from fleet_tune.report.checkup import diagnoses_json, render_diagnosis, summary
    from fleet_tune.report.run import make_console
    from fleet_tune.runs.checkup import checkup

    console, diagnoses = make_console(stderr=as_json), []
    for diagnosis in checkup(None if fleet is None else load_fleet(fleet), address):
        console.print(render_diagnosis(diagnosis))
        diagnoses.append(diagnosis)
    console.print(summary(diagnoses))
    if as_json:
        click.echo(diagnoses_json(diagnoses))
    problems = [each for each in diagnoses if each.severity is Severity.PROBLEM]
    if problems:
        raise CheckupError(
            "; ".join(f"{each.subject}: {each.found}" for each in problems), "do what is said above, and check again"
        )
