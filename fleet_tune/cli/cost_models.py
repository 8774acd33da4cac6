"""``fleet-tune model``: pre-train, fine-tune, evaluate and export cost models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet_tune.cli.options import Number, WholeNumber, cost_model_option, json_option
from fleet_tune.report.json_output import json_line

if TYPE_CHECKING:
    from fleet_tune.base.records.datasets.model_file import Manifest

_SOURCES_HELP = """

    DATA are datasets (.ftd), record databases or folders of runs, and folders of MetaSchedule databases.
    """

_data = click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
_model = click.argument("model", type=click.Path(path_type=Path))
_out = click.option("--out", type=click.Path(path_type=Path), required=True, help="The .safetensors file to write.")
_seed = click.option("--seed", type=WholeNumber(min=0, max=2**32 - 1), default=0, show_default=True)


@click.group(short_help="Cost models for 'tune --transfer-from'.")
def model() -> None:
    """Cost models that learned from earlier measurements: what 'tune --transfer-from' starts from."""


@model.command(short_help="Train a cost model.", help=f"Train a cost model on DATA.{_SOURCES_HELP}")
@_data
@_out
@cost_model_option("Kind of cost model.", "boosted-invariant")
@click.option("--compact", is_flag=True, help="Fewer and smaller trees (half a megabyte), or one network of two.")
@click.option("--no-analyzer", is_flag=True, help="Do not start from the analyzer's prediction.")
@_seed
@json_option
def pretrain(
    data: tuple[Path, ...], out: Path, cost_model: str, compact: bool, no_analyzer: bool, seed: int, as_json: bool
) -> None:
    from fleet_tune.training import cost_models

    cost_models.check_out(out)
    entry = cost_models.pretrainable(cost_model)
    manifest = cost_models.pretrain(data, out, entry, seed, compact=compact, from_analyzer=not no_analyzer)
    _show(manifest, out, as_json)


@model.command(
    short_help="Train a cost model further.",
    help=f"Train the cost model in the file MODEL further on DATA.{_SOURCES_HELP}",
)
@_model
@_data
@_out
@click.option(
    "--moa", is_flag=True, help="Train by momentum adaptation, a step for each task: neural cost models only."
)
@click.option("--momentum", type=Number(0.0, 1.0), default=0.99, show_default=True, help="Momentum of --moa.")
@json_option
def finetune(model: Path, data: tuple[Path, ...], out: Path, moa: bool, momentum: float, as_json: bool) -> None:
    from fleet_tune.base.config import values
    from fleet_tune.training import cost_models

    values.share("the momentum", momentum, "--momentum")  # click's range accepts NaN
    cost_models.check_out(out)
    _show(cost_models.finetune(model, data, out, momentum if moa else None), out, as_json)


@model.command(
    short_help="Say how well a cost model ranks.",
    help="Say how well the cost model MODEL ('pretrained' and 'pretrained-pacm' for those that come with fleet-tune) "
    f"ranks the candidates of every task in DATA.{_SOURCES_HELP}",
)
@_model
@_data
@json_option
def evaluate(model: Path, data: tuple[Path, ...], as_json: bool) -> None:
    from fleet_tune.report.cost_models import render_quality
    from fleet_tune.report.run import make_console
    from fleet_tune.training import cost_models

    qualities = cost_models.evaluate(model, data)
    make_console(stderr=as_json).print(render_quality(qualities, cost_models.summary(qualities)))
    if as_json:
        body = {"model": str(model), "tasks": [dataclasses.asdict(each) for each in qualities]}
        click.echo(json_line({**body, "mean": dict(cost_models.summary(qualities))}))


@model.command(short_help="Write the cost model of a run as a file.")
@click.argument("source", type=click.Path(path_type=Path))
@_out
@click.option("--device-class", metavar="NAME", help="Class whose cost model is written, for a run with several.")
@json_option
def export(source: Path, out: Path, device_class: str | None, as_json: bool) -> None:
    """Write the cost model that the run in the folder SOURCE has adapted to its devices (methods pruner and
    moa-pruner), or one that comes with fleet-tune ('pretrained', 'pretrained-pacm'), as a file."""
    from fleet_tune.training import cost_models

    cost_models.check_out(out)
    _show(cost_models.export(source, out, device_class), out, as_json)


def _show(manifest: Manifest, out: Path, as_json: bool) -> None:
    from fleet_tune.report.cost_models import render_manifest
    from fleet_tune.report.run import make_console

    make_console(stderr=as_json).print(render_manifest(manifest, out))
    if as_json:
        fields = dataclasses.asdict(manifest)
        del fields["header"]
        click.echo(json_line({"file": str(out), "bytes": out.stat().st_size, **fields}))
