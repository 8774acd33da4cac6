"""Measures the rows of the float32 table: networks of torchvision and transformers against the frameworks, and their
operators.

``python -m bench.latency.float32_table --budget 600`` runs and saves ``bench network-latency`` for each network, and
``bench per-op`` for the tuned network. Rows that were saved at this commit are not measured again, so the same command
resumes an interrupted one. Arguments select networks.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from bench.latency.float32_summary import LABEL
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError
from bench.saved_result import RESULTS, SavedResult, commit, read_result

NETWORKS = (
    "resnet18",
    "squeezenet1_1",
    "efficientnet_b0",
    "mobilenet_v3_small",
    "shufflenet_v2",
    "regnet_y_400mf",
    "convnext_tiny",
    "vit_tiny",
    "distilbert_two_layers",
    "gpt2_two_layers",
)
"""Functions of :mod:`bench.networks.public_networks`."""
_FINISH_SECS = 1800.0


def commands(network: str, budget_secs: float) -> Iterator[tuple[str, list[str]]]:
    """Yield the key of each result of a row, and the arguments of ``python`` that measure and save it."""
    name = f"{LABEL}{network.replace('_', '-')}-{budget_secs:g}"
    out = str(Path("bench-out") / name)
    common = ["--model", f"bench/networks/public_networks.py:{network}", "--save", "--label", name, "--json"]
    tuned = ["-m", "bench", "network-latency", *common, "--out", out, "--budget", f"{budget_secs:g}", "--rounds", "12"]
    yield f"network-latency-{name}", tuned
    yield f"per-op-{name}", ["-m", "bench", "per-op", *common, "--folder", out]


def take(networks: Sequence[str], budget_secs: float, results: Path = RESULTS) -> None:
    """Measure and save the rows that were not saved at this commit. If a network fails, the others are still measured.

    Raise :class:`BenchError` at the end if one failed.
    """
    failed = []
    for network in networks:
        for key, arguments in commands(network, budget_secs):
            path = results / f"{key}.json"
            try:
                if path.exists() and _is_of_this_commit(read_result(path)):
                    click.echo(f"{key}: saved at this commit")
                    continue
                result = run_json(arguments, env=bench_env(cores()), timeout_secs=budget_secs + _FINISH_SECS)
            except BenchError as error:
                click.echo(f"{key}: {error}", err=True)
                failed.append(key)
                break
            click.echo(f"{key}: {result['ours']:.3g} ms, {result['ratio']:.2f} times as fast as the best peer")
    if failed:
        raise BenchError(f"not taken: {', '.join(failed)}")


def _is_of_this_commit(saved: SavedResult) -> bool:
    return saved.commit == commit() and not saved.dirty


@click.command()
@click.argument("networks", nargs=-1, type=click.Choice(NETWORKS))
@click.option("--budget", "budget_secs", type=float, default=600.0, show_default=True, help="Seconds of tuning.")
def main(networks: tuple[str, ...], budget_secs: float) -> None:
    """Measure and save the rows of the float32 table."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the benchmark that runs
    take(networks or NETWORKS, budget_secs)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"bench.latency.float32_table: {error}") from error
