"""A run whose processes are killed and stopped at random, every kind of them but the command itself, beside the same
run left alone: what it acknowledged, lost and doubled, how good its best kernels are, and how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchResult
from bench.tables import markdown

ASKED_TIME = 1.5
_REAL_NETWORK = "examples/networks.py:mlp"
_TIMEOUT_SECS = 3600.0


def run(kills: int, trials: int, devices: int, seed: int, real: bool, network: str = _REAL_NETWORK) -> BenchResult:
    calm, troubled = (_played(count, trials, devices, seed, network if real else None) for count in (0, kills))
    details = {"calm": calm, "troubled": troubled, "asked_time": ASKED_TIME, "real": real}
    ratio = calm["secs"] / troubled["secs"]
    return BenchResult("chaos", troubled["secs"], calm["secs"], ratio, f"s for {trials} trials", details)


def _played(kills: int, trials: int, devices: int, seed: int, network: str | None) -> dict[str, Any]:
    args = ["-m", "bench.runs.chaos_process", "--kills", str(kills), "--trials", str(trials)]
    args += ["--devices", str(devices), "--seed", str(seed)]
    args += [] if network is None else ["--network", network]
    return run_json(args, env=bench_env(cores()), timeout_secs=_TIMEOUT_SECS)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    calm, troubled = details["calm"], details["troubled"]
    killed = Counter(f"{each['role']} ({each['signal']})" for each in troubled["kills"])
    rows: list[tuple[str, str, str]] = [
        ("processes killed or stopped", "0", str(len(troubled["kills"]))),
        *(
            (name, f"{calm[key]:,}", f"{troubled[key]:,}")
            for name, key in (
                ("records acknowledged", "acknowledged"),
                ("... lost", "lost"),
                ("... doubled", "doubled"),
                ("trials stored", "trials"),
            )
        ),
        ("estimated latency of the best, ms", f"{calm['best_secs'] * 1e3:.3f}", f"{troubled['best_secs'] * 1e3:.3f}"),
        ("seconds", f"{calm['secs']:.0f}", f"{troubled['secs']:.0f} ({1 / result['ratio']:.2f} times)"),
        ("longest time without a record, s", f"{calm['longest_gap_secs']:.1f}", f"{troubled['longest_gap_secs']:.1f}"),
    ]
    told = ", ".join(f"{name} {count}" for name, count in sorted(killed.items()))
    return f"{markdown(('a run', 'left alone', 'under fire'), rows)}\n\n{told}."


BENCHMARK = Benchmark(
    name="chaos",
    help="A run under random kills and stops of all its processes, beside the same run left alone.",
    options=(
        options.count(
            "--kills", 100, "Processes that are killed (SIGKILL) or stopped (SIGSTOP), one as often.", least=0
        ),
        options.count("--trials", 6000, "Trials of each run."),
        options.count("--devices", 4, "Simulated devices, of two classes in turn."),
        options.count("--seed", 0, "Of what is killed when.", least=0),
        click.Option(["--real"], is_flag=True, help="This machine's CPU and real builds, in place of simulated ones."),
        click.Option(["--network"], default=_REAL_NETWORK, show_default=True, help="Of a real run."),
    ),
    short=("--kills", "6", "--trials", "1000", "--devices", "2"),
    run=run,
    table=table,
)
