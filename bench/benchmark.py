"""The description of a benchmark, and the discovery of all benchmarks."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import bench
from bench.inputs import files_of_options, inputs
from bench.result import BenchError, BenchResult
from bench.saved_result import Provenance

_DECLARED = re.compile(r"^BENCHMARK\b[^=\n]*=", re.MULTILINE)


def _no_pictures(_result: Mapping[str, Any], _key: str) -> Mapping[str, Callable[[Path], None]]:
    return {}


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, with all that the command line, ``make bench`` and the pages of figures need.

    To add a benchmark, define ``BENCHMARK`` at the top level of a module; nothing else is necessary. Such a module must
    import quickly, so it imports neither TVM nor torch nor Ray at its top level. Code that needs them is in a module
    beside it, which usually runs in a process of its own.
    """

    name: str
    """Name on the command line and of the result file."""
    help: str
    """Help text: one line."""
    options: Sequence[click.Option]
    """Options, named like the parameters of ``run``."""
    short: Sequence[str]
    """Arguments of the short form, which ``make bench`` runs."""
    run: Callable[..., BenchResult | None]
    """Takes the options; returns None if they ask for something that has no result."""
    table: Callable[[Mapping[str, Any]], str]
    """Returns tables in Markdown from a result's JSON object."""
    pictures: Callable[[Mapping[str, Any], str], Mapping[str, Callable[[Path], None]]] = _no_pictures
    """Takes a result's JSON object and its key; returns the pictures for the page of tables: by file name, a function
    that draws the picture into a file."""

    def __post_init__(self) -> None:
        """Raises :class:`BenchError` if the options do not fit the parameters of ``run``."""
        parameters = inspect.signature(self.run).parameters
        needed = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
        given = {str(option.name) for option in self.options}
        if not needed <= given <= set(parameters):
            raise BenchError(f"{self.name}: its options are {sorted(given)}, and it takes {sorted(parameters)}")

    def command(self) -> click.Command:
        """Return the command ``NAME [options] --json --save``. It prints the result: with ``--json`` as one line of
        JSON, otherwise as text."""

        def call(as_json: bool, save: bool, label: str, **options: Any) -> None:
            if label and not save:
                raise BenchError("--label names the file that --save writes: add --save")
            provenance = None
            if save:
                arguments = click.get_current_context().obj or (self.name,)
                files = files_of_options(options.values())
                provenance = Provenance(self.run.__module__, files, ("-m", "bench", *arguments), label)
            result = self.run(**options)
            if result is None:
                return
            if provenance is not None:
                click.echo(f"written to {provenance.save(result, inputs())}", err=True)
            click.echo(result.to_json() if as_json else result.to_text())

        parameters: list[click.Parameter] = [*self.options, json_option(), save_option(), label_option()]
        return click.Command(self.name, params=parameters, callback=call, help=self.help)


def json_option() -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object as the last line.")


def save_option() -> click.Option:
    text = "Write the result to bench/results, for the pages of 'python -m bench docs'."
    return click.Option(["--save"], is_flag=True, help=text)


def label_option() -> click.Option:
    text = "Name of this result among several of the benchmark: part of the file that --save writes."
    return click.Option(["--label"], default="", help=text)


def discover(package: ModuleType = bench) -> dict[str, Benchmark]:
    """Return the ``BENCHMARK`` of every module of ``package`` and its subpackages, by name.

    Modules without ``BENCHMARK`` are not imported. Raises :class:`BenchError` if two benchmarks have the same name.
    """
    benchmarks: dict[str, Benchmark] = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.ispkg or not _declares_benchmark(module.name):
            continue
        benchmark = import_module(module.name).BENCHMARK
        if benchmark.name in benchmarks:
            raise BenchError(f"two benchmarks are called {benchmark.name!r}, one of them in {module.name}")
        benchmarks[benchmark.name] = benchmark
    return benchmarks


def _declares_benchmark(module: str) -> bool:
    """Decided by the source text: importing the other modules may import TVM, torch or Ray, which takes seconds."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None and bool(_DECLARED.search(Path(spec.origin).read_text()))
