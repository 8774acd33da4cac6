"""Command line of the benchmarks: ``python -m bench NAME [options] --json``.

The last line of output is one JSON object: ``bench``, ``ours``, ``peer``, ``ratio`` (above 1 is better for us),
``unit``, ``details``. Without ``--json`` it is printed for people.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bench.common import ROOT, BenchError, BenchResult, bench_env, cores, run_json

RESNET18 = "examples/networks.py:resnet18"
_SHORT: dict[str, list[str]] = {
    "trial-rate": ["--trials", "64", "--rounds", "1"],
    "network-latency": ["--model", RESNET18, "--budget", "300", "--rounds", "10"],
    "first-record": ["--rounds", "3"],
}


def _show(result: BenchResult, as_json: bool) -> None:
    if as_json:
        click.echo(result.to_json())
        return
    peer = "" if result.peer is None else f", peer {result.peer:.4g} {result.unit}, ratio {result.ratio:.2f}"
    click.echo(f"{result.bench}: ours {result.ours:.4g} {result.unit}{peer}")
    click.echo(json.dumps(json.loads(result.to_json())["details"], indent=2))


def _json_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")(command)


@click.group()
def main() -> None:
    """Benchmarks of fleet-tune against MetaSchedule, PyTorch and ONNX Runtime, taken in the same run."""


@main.command("trial-rate")
@click.option("--workload", "workloads", multiple=True, type=click.Choice(["matmul_relu", "conv2d_nhwc"]))
@click.option("--trials", type=click.IntRange(min=1), default=128, show_default=True, help="MetaSchedule's trials.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--limit-secs", type=float, default=float("inf"), help="End MetaSchedule after the batch in progress.")
@_json_option
def trial_rate_command(workloads: tuple[str, ...], trials: int, rounds: int, limit_secs: float, as_json: bool) -> None:
    """Valid measured trials a minute, ours and MetaSchedule's."""
    from bench import trial_rate

    _show(trial_rate.run(workloads or trial_rate.WORKLOADS, trials, rounds, limit_secs), as_json)


@main.command("network-latency")
@click.option("--model", default=RESNET18, show_default=True, help="file.py:function")
@click.option("--budget", "budget_secs", type=float, default=600.0, show_default=True, help="Seconds of tuning.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Blocks of runs of each side."
)
@click.option("--block-secs", type=float, default=1.0, show_default=True, help="Length of a block.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Keep the tuning here, or go on with the one that is here."
)
@click.option("--seed", type=int, default=0, show_default=True)
@_json_option
def network_latency_command(
    model: str, budget_secs: float, rounds: int, block_secs: float, out: Path | None, seed: int, as_json: bool
) -> None:
    """Latency of the tuned network against PyTorch eager, torch.compile with freezing, and ONNX Runtime."""
    from bench import network_latency

    _show(network_latency.run(model, budget_secs, rounds, block_secs, out and out.absolute(), seed), as_json)


@main.command("first-record")
@click.option("--model", "models", multiple=True, default=[RESNET18], show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@_json_option
def first_record_command(models: tuple[str, ...], rounds: int, as_json: bool) -> None:
    """Seconds from starting `fleet-tune tune` to its first record."""
    from bench import first_record

    _show(first_record.run(models, rounds), as_json)


@main.command("all")
@click.option("--short", is_flag=True, help="The short form of each benchmark.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Write the tables of this file anew.")
@_json_option
def all_command(short: bool, write: Path | None, as_json: bool) -> None:
    """Run every benchmark, each in a process of its own, one after the other."""
    from bench.tables import write_tables

    results: dict[str, dict[str, Any]] = {}
    commands: dict[str, str] = {}
    for name, options in _SHORT.items():
        args = ["-m", "bench", name, *(options if short else []), "--json"]
        commands[name] = shlex.join(["python", *args])
        click.echo(commands[name], err=True)
        results[name] = run_json(args, env=bench_env(cores()), timeout_secs=7200)
        if write is not None:  # after each one, so that a failure later on loses nothing
            write_tables(write, results, commands)
        shown = {**results[name], "details": "..."} if not as_json else results[name]
        click.echo(json.dumps(shown))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench: {error}") from error
