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
    "draft": ["--seeds", "10", "--limit", "300"],
    "replay": ["--method", "all", "--seeds", "3", "--no-effects", "--network-seeds", "0"],
    "search-time": ["--rounds", "2", "--records", "64"],
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


_dataset_option = click.option(
    "--dataset", type=click.Path(path_type=Path), help="File of 'fleet-tune dataset'; else the one in bench/data."
)
_jobs_option = click.option("--jobs", type=click.IntRange(min=1), help="Processes; else one for each CPU.")


@main.command("draft")
@_dataset_option
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--calibration", type=click.IntRange(min=1), default=64, show_default=True, help="Records to learn from.")
@click.option("--share", type=click.IntRange(min=1), default=8, show_default=True, help="One in so many is kept.")
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first candidates of each task.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures here, for bench.plots.")
@_jobs_option
@_json_option
def draft_command(
    dataset: Path | None,
    seeds: int,
    calibration: int,
    share: int,
    limit: int | None,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Candidates scored a second, and Best-1 of the drafted share against MetaSchedule's cost model and chance."""
    from bench import draft
    from bench.measured import dataset_path

    _show(draft.run(dataset_path(dataset), seeds, calibration, share, limit, jobs or cores(), out), as_json)


@main.command("replay")
@_dataset_option
@click.option("--method", default="all", show_default=True, help="A method of fleet-tune, or all.")
@click.option("--task", "tasks", multiple=True, help="Part of a task's name; else all tasks.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--effects/--no-effects", default=True, show_default=True, help="Each paper's effect on and off.")
@click.option("--network-seeds", type=click.IntRange(min=0), default=5, show_default=True, help="Runs of all tasks.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures here, for bench.plots.")
@_jobs_option
@_json_option
def replay_command(
    dataset: Path | None,
    method: str,
    tasks: tuple[str, ...],
    seeds: int,
    effects: bool,
    network_seeds: int,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Measured trials until a candidate within 5% of the dataset's best is found."""
    from bench import replay
    from bench.measured import dataset_path

    methods = replay.all_methods(method)
    result = replay.run(
        dataset_path(dataset),
        methods,
        tasks,
        seeds,
        jobs or cores(),
        effects=effects,
        network_seeds=network_seeds,
        out=out,
    )
    _show(result, as_json)


@main.command("search-time")
@_dataset_option
@click.option(
    "--task", "tasks", multiple=True, help="Part of a task's name; else a matmul, a 3x3 and a batched matmul."
)
@click.option("--records", multiple=True, type=click.IntRange(min=64), default=[64, 256], show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--method", default="fleet", show_default=True)
@_json_option
def search_time_command(
    dataset: Path | None, tasks: tuple[str, ...], records: tuple[int, ...], rounds: int, method: str, as_json: bool
) -> None:
    """Seconds of search for each batch of 64, ours and MetaSchedule's, on one core."""
    from bench import search_time
    from bench.measured import dataset_path

    chosen = tasks or search_time.TASKS
    _show(search_time.run(dataset_path(dataset), chosen, records, rounds, method), as_json)


@main.command("all")
@click.option("--short", is_flag=True, help="The short form of each benchmark.")
@click.option("--only", "only", multiple=True, type=click.Choice(list(_SHORT)), help="Of all, these.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Write the tables of this file anew.")
@_json_option
def all_command(short: bool, only: tuple[str, ...], write: Path | None, as_json: bool) -> None:
    """Run every benchmark, each in a process of its own, one after the other."""
    from bench.tables import write_tables

    results: dict[str, dict[str, Any]] = {}
    commands: dict[str, str] = {}
    for name in only or _SHORT:
        options = _SHORT[name] if short else []
        args = ["-m", "bench", name, *options, "--json"]
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
