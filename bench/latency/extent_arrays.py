"""Writes the inputs and expected outputs of a network with a dynamic dimension at sampled extents.

``python -m bench.latency.extent_arrays MODEL FOLDER --shapes "n=1..32; n=1:0.7,8:0.3"`` writes a file of
:mod:`devices.networks.frameworks.array_file` for each sampled extent into the folder, and prints one line of JSON: the
fields of :class:`bench.latency.shape_sides.Sampled`.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from bench.latency.shape_figures import sampled_extents
from bench.processes import die_with_parent
from devices.networks.frameworks.array_file import write_arrays
from devices.networks.frameworks.runners import installed
from devices.networks.frontend import load_network, locate
from fleet_tune.base.errors import UserError
from fleet_tune.base.shapes.shapes import parse_shapes


@click.command()
@click.argument("model")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--shapes", help="Bounds, and weights behind a semicolon; else those of the network.")
def main(model: str, folder: Path, shapes: str | None) -> None:
    """Print the fields as one line of JSON, the last line of output."""
    die_with_parent()
    try:
        file, function = locate(model)
        network = load_network(model, shapes=None if shapes is None else parse_shapes(shapes))
        dynamic = () if network.shapes is None else network.shapes.dynamic
        if not dynamic:
            raise SystemExit(f"{model} has no dynamic dimension: python -m bench network-latency takes it")
        if len(dynamic) > 1:
            names = ", ".join(each.name for each in dynamic)
            raise SystemExit(f"{model} has the dynamic dimensions {names}: fix all but one in --shapes")
        (dimension,) = dynamic
        weights = sampled_extents(dimension.weights)
        files = []
        for extent, _ in weights:
            at = network.at({dimension.name: extent})
            files.append(write_arrays(folder / f"arrays-{extent}.npz", at.example_inputs, at.framework_outputs()))
    except UserError as error:
        raise SystemExit(str(error)) from error
    found = {
        "dimension": dimension.name,
        "shapes": str(network.shapes),
        "weights": weights,
        "arrays": files,
        "input_shapes": network.input_shapes,
        "frameworks": installed(is_torch=bool(function) or file.suffix == ".pt2"),
    }
    click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
