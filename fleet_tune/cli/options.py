"""Options and texts that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])

MODEL_HELP = """

    MODEL is file.py:function (returns a torch module and a tuple of example inputs), an .onnx file, or a .pt2 file
    saved by torch.export.
    """


def fleet_option(command: _F) -> _F:
    """``--fleet``: the path of a fleet file."""
    return click.option("--fleet", type=click.Path(path_type=Path), help="Fleet file (TOML). Default: this CPU.")(
        command
    )


def json_option(command: _F) -> _F:
    """``--json``, as the argument ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print the result as one JSON object, the last line of stdout."
    )(command)


def model_name(model: str) -> str:
    """A name for folders and titles: ``resnet18`` for ``networks.py:resnet18``, ``net`` for ``dir/net.onnx``."""
    path, colon, function = model.rpartition(":")
    name = function if colon and path else Path(model).stem
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "model"
