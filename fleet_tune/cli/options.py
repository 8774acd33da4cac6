"""Options and texts that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

_F = TypeVar("_F", bound=Callable[..., Any])

NETWORK_HELP = """

    NETWORK is file.py:function (returns a torch module and a tuple of example inputs; the file is run), an .onnx file,
    or a .pt2 file saved by torch.export.
    """


def fleet_option(command: _F) -> _F:
    """``--fleet``: the path of a fleet file."""
    return click.option("--fleet", type=click.Path(path_type=Path), help="Fleet file (TOML). Default: this CPU.")(
        command
    )


def inputs_option(command: _F) -> _F:
    """``--inputs``: the path of an ``.npz`` file."""
    text = "Inputs to compare and time the network on (.npz: by name, or in order). Default: its own examples."
    return click.option("--inputs", type=click.Path(path_type=Path), metavar="FILE", help=text)(command)


def trust_option(command: _F) -> _F:
    """``--trust-model``."""
    text = "Read a .pt2 file also where that runs code in it (pickles, other operators than torch's own)."
    return click.option("--trust-model", is_flag=True, help=text)(command)


def json_option(command: _F) -> _F:
    """``--json``, as the argument ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print the result as one JSON object, the last line of stdout."
    )(command)


def check_picture(svg: Path | None) -> None:
    """Raises RequestError for a picture that cannot be written: what takes minutes is not measured in vain."""
    from fleet_tune.base.errors import RequestError

    if svg is not None and (svg.is_dir() or not svg.absolute().parent.is_dir()):
        raise RequestError(
            f"--svg: {svg} cannot be written: it is no file in a folder that is there", "name another file"
        )


def time_budget_secs(text: str | None) -> float | None:
    """The value of ``--time-budget`` in seconds. Raises :class:`fleet_tune.base.errors.UserError`."""
    from fleet_tune.base.config.values import duration

    return None if text is None else duration(text)


def cost_model_option(help: str, default: str | None = None) -> Callable[[_F], _F]:
    """``--cost-model``, as the argument ``cost_model``; its old name, ``--model``, works and says so on stderr."""

    def decorated(command: _F) -> _F:
        @functools.wraps(command)
        def with_either(*arguments: Any, cost_model: str | None, old_cost_model: str | None, **options: Any) -> Any:
            if old_cost_model is not None:
                click.echo("note: --model is called --cost-model now", err=True)
            return command(*arguments, cost_model=cost_model or old_cost_model or default, **options)

        told = f"{help}  [default: {default}]" if default else help
        old = click.option("--model", "old_cost_model", hidden=True)(with_either)
        return cast(_F, click.option("--cost-model", metavar="NAME", help=told)(old))

    return decorated


def network_name(network: str) -> str:
    """A name for folders and titles: ``resnet18`` for ``networks.py:resnet18``, ``net`` for ``dir/net.onnx``."""
    path, colon, function = network.rpartition(":")
    name = function if colon and path else Path(network).stem
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "network"
