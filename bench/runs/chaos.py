"""A run with injected failures compared with the same run without them: how many records it acknowledged, lost and
duplicated, how fast its best kernels are, and how long it took. Every kind of process is killed or stopped: the
processes of the run, the command, Ray's processes, and whole nodes of the cluster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchResult
from bench.tables import markdown

ASKED_TIME = 1.5
CANDIDATE_SECS = 0.05
_REAL_NETWORK = "examples/networks.py:mlp"
_TIMEOUT_SECS = 4 * 3600.0
_ROWS = (
    ("records acknowledged", "acknowledged", "{:,}", 1),
    ("... lost", "lost", "{:,}", 1),
    ("... doubled", "doubled", "{:,}", 1),
    ("trials stored", "trials", "{:,}", 1),
    ("estimated latency of the best, ms", "best_secs", "{:.3f}", 1e3),
    ("longest time without a record, s", "longest_gap_secs", "{:.1f}", 1.0),
)


def run(
    kills: int,
    trials: int,
    devices: int,
    candidate_secs: float,
    nodes: int,
    seed: int,
    real: bool,
    real_trials: int,
    network: str,
    parts: Path | None,
) -> BenchResult:
    """Run with and without failures. ``ours``: seconds with failures; ``peer``: seconds without. With ``real``, a real
    run gets half of the ``kills``, and a simulated run the rest."""
    of_real = kills // 2 if real else 0
    kinds: dict[str, tuple[int, int, str | None]] = {"simulated": (kills - of_real, trials, None)}
    if real:
        kinds["real"] = (of_real, real_trials, network)
    runs = {
        kind: {
            "calm": _played(0, count, devices, candidate_secs, nodes, seed, played, parts),
            "troubled": _played(under, count, devices, candidate_secs, nodes, seed, played, parts),
        }
        for kind, (under, count, played) in kinds.items()
    }
    calm, troubled = (sum(each[how]["secs"] for each in runs.values()) for how in ("calm", "troubled"))
    return BenchResult("chaos", troubled, calm, calm / troubled, "s", {"runs": runs, "asked_time": ASKED_TIME})


def _played(
    kills: int,
    trials: int,
    devices: int,
    candidate_secs: float,
    nodes: int,
    seed: int,
    network: str | None,
    parts: Path | None,
) -> dict[str, Any]:
    """Return the figures of a run. If the file ``parts`` has figures of the same command, take them from there; else
    run the command, and append its figures to the file."""
    args = ["-m", "bench.runs.chaos_process", "--kills", str(kills), "--trials", str(trials)]
    args += ["--devices", str(devices), "--nodes", str(nodes), "--seed", str(seed)]
    args += ["--candidate", str(candidate_secs)] if network is None else ["--network", network]
    kept = [] if parts is None or not parts.exists() else [json.loads(line) for line in parts.read_text().splitlines()]
    found = next((each["figures"] for each in kept if each["command"] == args), None)
    if found is None:
        found = run_json(args, env=bench_env(cores()), timeout_secs=_TIMEOUT_SECS)
        if parts is not None:
            with parts.open("a") as file:
                file.write(json.dumps({"command": args, "figures": found}) + "\n")
    return dict(found)


def table(result: Mapping[str, Any]) -> str:
    runs = result["details"]["runs"]
    header = ("a run", *(f"{kind}, {how}" for kind in runs for how in ("left alone", "under fire")))
    both = [each[how] for each in runs.values() for how in ("calm", "troubled")]
    rows = [
        ("processes killed or stopped", *(str(len(one["kills"])) for one in both)),
        ("... and the command given again", *(str(len(one["ends"])) for one in both)),
        *((name, *(form.format(one[key] * factor) for one in both)) for name, key, form, factor in _ROWS),
        ("seconds", *(text for each in runs.values() for text in _secs(each["calm"], each["troubled"]))),
    ]
    killed = Counter(f"{kill['role']} ({kill['signal']})" for one in both for kill in one["kills"])
    told = ", ".join(f"{name} {count}" for name, count in sorted(killed.items()))
    return f"{markdown(header, rows)}\n\n{told}."


def _secs(calm: Mapping[str, Any], troubled: Mapping[str, Any]) -> tuple[str, str]:
    return f"{calm['secs']:.0f}", f"{troubled['secs']:.0f} ({troubled['secs'] / calm['secs']:.2f} times)"


BENCHMARK = Benchmark(
    name="chaos",
    help="A run under random kills and stops of all its processes and nodes, beside the same run left alone.",
    options=(
        options.count("--kills", 100, "What is killed (SIGKILL) or stopped (SIGSTOP), one as often.", least=0),
        options.count("--trials", 6000, "Trials of each simulated run."),
        options.count("--devices", 4, "Simulated devices, of two classes in turn."),
        options.seconds("--candidate", "candidate_secs", CANDIDATE_SECS, "A candidate takes on a simulated device."),
        options.count("--nodes", 2, "Nodes of the cluster beside its head; 0: a run's own cluster.", least=0),
        options.count("--seed", 0, "Of what is killed when.", least=0),
        click.Option(
            ["--real"], is_flag=True, help="Then also this machine's CPU and builds, under half of the kills."
        ),
        options.count("--real-trials", 600, "Trials of each real run."),
        click.Option(["--network"], default=_REAL_NETWORK, show_default=True, help="Of a real run."),
        options.run_cache(),
    ),
    short=("--kills", "6", "--trials", "1000", "--devices", "2", "--nodes", "1"),
    run=run,
    table=table,
)
