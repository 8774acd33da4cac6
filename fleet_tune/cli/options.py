"""Options and texts that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from fleet_tune.base.config.tune_options import COST_MODELS, OPTIONS
from fleet_tune.base.config.values import duration

_F = TypeVar("_F", bound=Callable[..., Any])

NETWORK_HELP = """

    NETWORK is file.py:function (returns a torch module and a tuple of example inputs; the file is run), an .onnx file,
    or a .pt2 file saved by torch.export.
    """


_TYPES: dict[str, Any] = {"path": click.Path(path_type=Path), "int": int, "float": float}


def run_options(*names: str, **texts: str) -> Callable[[_F], _F]:
    """Add the options of a run with these names. Each is passed as the argument of the same name.

    ``texts``: ``--help`` texts by name, instead of the declared ones.
    """

    def decorated(command: _F) -> _F:
        for name in reversed(names):
            command = _click_option(name, texts.get(name))(command)
        return command

    return decorated


def _click_option(name: str, text: str | None) -> Callable[[_F], _F]:
    option = OPTIONS[name]
    help = text or option.help
    if option.kind == "switch":
        turned = (lambda _context, _option, value: not value) if option.default else None
        return click.option(option.flag, name, is_flag=True, callback=turned, help=help)
    return click.option(
        option.flag,
        name,
        type=_TYPES.get(option.kind),
        default=option.default,
        show_default=option.default is not None,
        callback=_duration if option.kind == "duration" else None,
        metavar=option.metavar,
        shell_complete=_completing(option.names) if option.names else None,
        help=help,
    )


def _completing(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function that completes the beginning of a value to ``names``. The value may also be a file."""
    return lambda _context, _option, begin: [name for name in names if name.startswith(begin)]


def _duration(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """Return a duration in seconds. Raises :class:`fleet_tune.base.errors.UserError`."""
    return None if value is None else duration(value)


_LARGE = 1e9
"""An upper bound above this one is not shown: it tells a reader nothing."""


def _range_words(low: float | None, high: float | None) -> str:
    """Return the range of an option in words, for its help and its errors."""
    if high is None or high > _LARGE:
        return "any number" if low is None else f"at least {low:g}"
    return f"at most {high:g}" if low is None else f"from {low:g} to {high:g}"


class WholeNumber(click.IntRange):
    """A whole number in a range."""

    name = "integer"

    def _describe_range(self) -> str:
        return _range_words(self.min, self.max)


class Number(click.FloatRange):
    """A number in a range."""

    name = "float"

    def _describe_range(self) -> str:
        return _range_words(self.min, self.max)


def json_option(command: _F) -> _F:
    """``--json``, as the argument ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print the result as one JSON object, the last line of stdout."
    )(command)


def narration_options(command: _F) -> _F:
    """``--quiet``, ``--verbose`` and ``--log-file``, as the argument ``narration``."""

    @functools.wraps(command)
    def told(*arguments: Any, quiet: bool, verbose: bool, log_file: Path | None, **options: Any) -> Any:
        from fleet_tune.base.errors import RequestError
        from fleet_tune.report.narration import Detail, Narration

        if quiet and verbose:
            raise RequestError("--quiet and --verbose contradict each other", "give one of them")
        detail = Detail.QUIET if quiet else Detail.VERBOSE if verbose else Detail.NORMAL
        return command(*arguments, narration=Narration(detail, log_file), **options)

    for option in (
        click.option(
            "--log-file", type=click.Path(path_type=Path), help="Append what -v tells to this file, with times."
        ),
        click.option("-v", "--verbose", is_flag=True, help="Tell each task's new best too."),
        click.option("-q", "--quiet", is_flag=True, help="Tell warnings, errors and the result alone."),
    ):
        told = option(told)
    return cast(_F, told)


def check_picture(svg: Path | None) -> None:
    """Raise RequestError if the picture cannot be written, before minutes of measuring are wasted."""
    from fleet_tune.base.errors import RequestError

    if svg is not None and (svg.is_dir() or not svg.absolute().parent.is_dir()):
        raise RequestError(
            f"--svg: {svg} cannot be written: it is no file in a folder that is there", "name another file"
        )


def cost_model_option(help: str, default: str | None = None) -> Callable[[_F], _F]:
    """``--cost-model``, as the argument ``cost_model``; its old name, ``--model``, works too, with a note on stderr."""

    def decorated(command: _F) -> _F:
        @functools.wraps(command)
        def with_either(*arguments: Any, cost_model: str | None, old_cost_model: str | None, **options: Any) -> Any:
            if old_cost_model is not None:
                click.echo("note: --model is called --cost-model now", err=True)
            return command(*arguments, cost_model=cost_model or old_cost_model or default, **options)

        told = f"{help}  [default: {default}]" if default else help
        old = click.option("--model", "old_cost_model", hidden=True)(with_either)
        completed = _completing(COST_MODELS)
        return cast(_F, click.option("--cost-model", metavar="NAME", help=told, shell_complete=completed)(old))

    return decorated


def network_name(network: str) -> str:
    """A name for folders and titles: ``resnet18`` for ``networks.py:resnet18``, ``net`` for ``dir/net.onnx``."""
    path, colon, function = network.rpartition(":")
    name = function if colon and path else Path(network).stem
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "network"
