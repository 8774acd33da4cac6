"""Command line of the benchmarks: ``python -m bench NAME [options] --json``.

The last line of output is one JSON object: ``bench``, ``ours``, ``peer``, ``ratio`` (above 1 is better for us),
``unit``, ``details``. Without ``--json`` it is printed for people.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
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
    "transfer": ["--seeds", "1", "--limit", "64"],
    "moa": ["--seeds", "1"],
    "rpc-overhead": ["--rounds", "10"],
    "device-recovery": ["--rounds", "1"],
    "cost-model": ["--seeds", "1", "--limit", "160"],
    "measure-cost": ["--candidates", "16", "--rounds", "20"],
    "gpu": ["--trials", "64"],
}


def _show(result: BenchResult, as_json: bool) -> None:
    if as_json:
        click.echo(result.to_json())
        return
    if result.ours is None:
        click.echo(f"{result.bench}: skipped: {result.details['reason']}")
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
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures here, for bench.search.plots.")
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
@click.option(
    "--method", "methods", multiple=True, default=["all"], show_default=True, help="A method of fleet-tune, or all."
)
@click.option("--task", "tasks", multiple=True, help="Part of a task's name; else all tasks.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--deep-seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Seeds at most of methods with a neural network: a run of theirs takes minutes.",
)
@click.option("--effects/--no-effects", default=True, show_default=True, help="Each paper's effect on and off.")
@click.option("--network-seeds", type=click.IntRange(min=0), default=5, show_default=True, help="Runs of all tasks.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures here, for bench.search.plots.")
@_jobs_option
@_json_option
def replay_command(
    dataset: Path | None,
    methods: tuple[str, ...],
    tasks: tuple[str, ...],
    seeds: int,
    deep_seeds: int,
    effects: bool,
    network_seeds: int,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Measured trials until a candidate within 5% of the dataset's best is found."""
    from bench import replay
    from bench.measured import dataset_path

    result = replay.run(
        dataset_path(dataset),
        replay.all_methods(methods),
        tasks,
        seeds,
        jobs or cores(),
        deep_seeds=deep_seeds,
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


@main.command("cost-model")
@_dataset_option
@click.option(
    "--held-out", type=click.Path(path_type=Path), help="Dataset of other tasks; else the one in bench/data/held-out."
)
@click.option("--model", "models", multiple=True, help="A model of the comparison; else all.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--limit", type=click.IntRange(min=40), help="Use only the first candidates of each task.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="MetaSchedule's model too.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures here.")
@_jobs_option
@_json_option
def cost_model_command(
    dataset: Path | None,
    held_out: Path | None,
    models: tuple[str, ...],
    seeds: int,
    limit: int | None,
    peer: bool,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Top-1 and Top-5 of every cost model, in-domain and across tasks, beside MetaSchedule's."""
    from bench import cost_model
    from bench.measured import dataset_path, held_out_path

    paths = dataset_path(dataset), held_out_path(held_out)
    _show(cost_model.run(*paths, models, seeds, limit, jobs or cores(), peer=peer, out=out), as_json)


@main.command("measure-cost")
@_dataset_option
@click.option("--task", "tasks", multiple=True, help="Part of a task's name; else two matmuls and two convolutions.")
@click.option("--candidates", type=click.IntRange(min=8), default=60, show_default=True, help="Of each task.")
@click.option(
    "--rounds", type=click.IntRange(min=3), default=100, show_default=True, help="In which the best are judged."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Keep libraries and measured tasks here, and go on with them."
)
@click.option("--limit-secs", type=float, default=float("inf"), help="Begin no further task after this time.")
@click.option("--build", is_flag=True, help="Only compile the candidates into --out.")
@_json_option
def measure_cost_command(
    dataset: Path | None,
    tasks: tuple[str, ...],
    candidates: int,
    rounds: int,
    out: Path | None,
    limit_secs: float,
    build: bool,
    as_json: bool,
) -> None:
    """Device seconds for each candidate and the regret, against 500 runs and MetaSchedule's evaluator settings."""
    from bench import measure_cost
    from bench.measured import dataset_path

    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as temporary:
        folder = out.absolute() if out is not None else Path(temporary)
        chosen = tasks or measure_cost.TASKS
        path = dataset_path(dataset)
        result = measure_cost.run(path, chosen, candidates, rounds, folder, limit_secs, build=build)
    if result is not None:
        _show(result, as_json)


@main.command("rpc-overhead")
@click.option("--rounds", type=click.IntRange(min=1), default=40, show_default=True)
@_json_option
def rpc_overhead_command(rounds: int, as_json: bool) -> None:
    """Seconds per measurement beyond the kernel's own run time, ours and RPCRunner's."""
    from bench import rpc_overhead

    _show(rpc_overhead.run(rounds), as_json)


@main.command("device-recovery")
@click.option("--fault", "faults", multiple=True, help="Name of a fault; else all.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@_json_option
def device_recovery_command(faults: tuple[str, ...], rounds: int, as_json: bool) -> None:
    """Seconds from each fault to the end of the next good measurement."""
    from bench import device_recovery

    _show(device_recovery.run(rounds, faults), as_json)


@main.command("gpu")
@click.option("--workload", "workloads", multiple=True, type=click.Choice(["matmul_relu", "conv2d_nhwc"]))
@click.option("--trials", type=click.IntRange(min=1), default=256, show_default=True, help="MetaSchedule's trials.")
@_json_option
def gpu_command(workloads: tuple[str, ...], trials: int, as_json: bool) -> None:
    """Run time of the kernels that are found on this machine's GPU, against MetaSchedule and PyTorch."""
    from bench import gpu

    _show(gpu.run(workloads or gpu.WORKLOADS, trials), as_json)


@main.command("transfer")
@_dataset_option
@click.option("--method", "methods", multiple=True, default=["autotvm", "fleet"], show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--limit", type=click.IntRange(min=16), default=256, show_default=True, help="Trials of a run at most.")
@_jobs_option
@_json_option
def transfer_command(
    dataset: Path | None, methods: tuple[str, ...], seeds: int, limit: int, jobs: int | None, as_json: bool
) -> None:
    """Trials until within 5% of the best, with and without transfer from other workloads and another device class."""
    from bench import transfer
    from bench.measured import dataset_path

    _show(transfer.run(dataset_path(dataset), methods, seeds, limit, jobs or cores()), as_json)


@main.command("moa")
@_dataset_option
@click.option("--target", type=click.Path(path_type=Path), help="Dataset of the other class; else bench/data's.")
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--share", type=click.IntRange(min=1), default=4, show_default=True, help="Records of a task an update.")
@_jobs_option
@_json_option
def moa_command(
    dataset: Path | None, target: Path | None, seeds: int, share: int, jobs: int | None, as_json: bool
) -> None:
    """Momentum adaptation to another device class, against fine-tuning and training from scratch."""
    from bench import moa
    from bench.measured import dataset_path

    _show(moa.run(dataset_path(dataset), target or moa.DEFAULT_TARGET, seeds, share, jobs or cores()), as_json)


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
