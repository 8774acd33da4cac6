"""Options that several benchmarks share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from bench.datasets import dataset_path
from bench.machine import cores
from policies.search.methods.registry import METHOD_NAMES

RESNET18 = "examples/networks.py:resnet18"
DCGAN = "bench/networks/paper_networks.py:dcgan"
"""A network without records in the distribution."""
WORKLOADS = ("matmul_relu", "conv2d_nhwc")
"""Names of our networks in bench/networks/workloads.py; MetaSchedule's workloads of the same names compute the same."""


def dataset() -> click.Option:
    return click.Option(
        ["--dataset"],
        type=click.Path(path_type=Path),
        callback=lambda _context, _option, path: dataset_path(path),
        help="File of 'fleet-tune dataset'; else the one in bench/data.",
    )


def tasks(otherwise: str, default: Sequence[str] = ()) -> click.Option:
    """Return the option for parts of the names of a dataset's tasks; ``otherwise``: the ``default`` in words."""
    text = f"Part of a task's name; else {otherwise}."
    return click.Option(["--task", "tasks"], multiple=True, default=list(default), help=text)


def workloads() -> click.Option:
    return click.Option(["--workload", "workloads"], multiple=True, default=WORKLOADS, type=click.Choice(WORKLOADS))


def jobs() -> click.Option:
    return click.Option(["--jobs"], type=click.IntRange(min=1), default=cores, help="Processes; else one for each CPU.")


def limit(least: int) -> click.Option:
    text = "Use only the first candidates of each task."
    return click.Option(["--limit"], type=click.IntRange(min=least), help=text)


def run_cache() -> click.Option:
    text = "File where each run is kept: the same command goes on where it was interrupted."
    return click.Option(["--parts"], type=click.Path(path_type=Path), help=text)


def count(name: str, default: int, text: str | None = None, *, least: int = 1) -> click.Option:
    """Return an option for a whole number of at least ``least``, with its default in the help."""
    return click.Option([name], type=click.IntRange(min=least), default=default, show_default=True, help=text)


def seconds(name: str, parameter: str, default: float, text: str) -> click.Option:
    """Return an option for a time in seconds, with its default in the help."""
    return click.Option([name, parameter], type=float, default=default, show_default=True, help=text)


def methods_named(_context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """Return the method names in ``text``, which are separated by commas. Raises click's BadParameter for an unknown or
    a repeated method."""
    methods = tuple(text.split(","))
    for each in methods:
        if each.partition(":")[0] not in METHOD_NAMES:
            raise click.BadParameter(f"there is no method {each!r}: choose of {', '.join(METHOD_NAMES)}", param=option)
    if len({*methods}) < len(methods):
        raise click.BadParameter(f"a method is named twice: {text}", param=option)
    return methods
