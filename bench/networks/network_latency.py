"""Latency of a tuned network against PyTorch eager, torch.compile with freezing, ONNX Runtime and OpenVINO.

The network is ``file.py:function`` or an ONNX file, a quantised one for example (:mod:`bench.networks.quantise`), which
PyTorch cannot run. Peers that are not installed are named in the result.

Each side is a process of its own with the same number of threads. They are timed in turn, a short block each, with a
pause before every block so that the threads of the one before have gone to sleep; the figures are medians over all
single runs of all blocks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import Conversation, run_json
from bench.result import BenchResult, interleave, spread
from bench.tables import markdown, median_and_range

PEERS = ("eager", "compile", "ort")
"""The frameworks that every environment of the benchmarks has."""
_OPENVINO = ("openvino", "openvino-f32")
_NAMES = {
    "eager": "PyTorch eager",
    "compile": "torch.compile, freezing",
    "ort": "ONNX Runtime",
    "openvino": "OpenVINO",
    "openvino-f32": "OpenVINO, float32",
}

# Thread pools of the sides spin for a while after their last run.
_SETTLE_SECS = 0.3


def measure_sides(
    model: str,
    sides: Sequence[str],
    *,
    folders: Mapping[str, Path],
    rounds: int,
    block_secs: float,
    kinds: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Times ``sides`` on ``model`` in turn; per side the spread of the seconds per run and what it said when ready.

    ``folders``: where the compiled network is, for the sides that have one. ``kinds``: what those sides are that have
    names of their own (of :mod:`bench.peers.frameworks`)."""
    threads = cores()
    with ExitStack() as stack:
        running: dict[str, Conversation] = {}
        for side in sides:
            args = [
                "-m",
                "bench.peers.frameworks",
                "--side",
                (kinds or {}).get(side, side),
                "--model",
                model,
                "--threads",
                str(threads),
            ]
            if side in folders:
                args += ["--folder", str(folders[side])]
            running[side] = stack.enter_context(Conversation(args, env=bench_env(threads)))
        samples = interleave(rounds, {side: _block(child, block_secs) for side, child in running.items()})
        return {
            side: {"secs": spread(samples[side]), **{k: v for k, v in child.ready.items() if k != "side"}}
            for side, child in running.items()
        }


def _block(child: Conversation, block_secs: float) -> Callable[[], list[float]]:
    def take() -> list[float]:
        time.sleep(_SETTLE_SECS)
        answer: list[float] = child.ask(str(block_secs))["secs"]
        return answer

    return take


def run(model: str, budget_secs: float, rounds: int, block_secs: float, out: Path | None, seed: int) -> BenchResult:
    """Tunes ``model`` for ``budget_secs`` (into ``out``, or a folder that is thrown away), then times all sides.

    ``ours`` and ``peer`` (the fastest framework) are median milliseconds of one run; all are in the details.
    """
    with ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-tune-bench-")))
        out = out.absolute()  # children start in the repository
        limits = ["--budget-secs", str(budget_secs), "--seed", str(seed)]
        tuning = run_json(
            ["-m", "bench.networks.tune_process", model, str(out), *limits],
            env=bench_env(cores()),
            timeout_secs=budget_secs + 900,
        )
        folders = {"ours": Path(tuning["folder"])}
        peers = _peers(model)
        sides = measure_sides(model, ("ours", *peers), folders=folders, rounds=rounds, block_secs=block_secs)
    medians = {side: figures["secs"]["median"] for side, figures in sides.items()}
    details = {"threads": cores(), "budget_secs": budget_secs, "tuning": tuning}
    if "openvino" not in peers:
        details["not_installed"] = ["openvino"]
    return latency_result(model, medians, details, sides)


def _peers(model: str) -> tuple[str, ...]:
    """The frameworks that can run the network and are installed."""
    peers = ("ort",) if model.endswith(".onnx") else PEERS
    return (*peers, *_OPENVINO) if find_spec("openvino") else peers


def latency_result(
    model: str, medians: Mapping[str, float], details: Mapping[str, Any], sides: Mapping[str, Any]
) -> BenchResult:
    """The benchmark's result from the median seconds of ``ours`` and every peer."""
    peers = [side for side in medians if side != "ours"]
    best = min(medians[side] for side in peers)
    return BenchResult(
        bench="network-latency",
        ours=medians["ours"] * 1e3,
        peer=best * 1e3,
        ratio=best / medians["ours"],
        unit="ms",
        details={
            "model": model,
            "ratios": {side: medians[side] / medians["ours"] for side in peers},
            **details,
            "sides": dict(sides),
        },
    )


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {"ours": f"fleet-tune, {details['budget_secs'] / 60:g} min", **_NAMES}
    rows = [
        (
            names[side],
            median_and_range(figures["secs"], scale=1e3),
            "1" if side == "ours" else f"{details['ratios'][side]:.2f}",
            f"{figures['relative_error']:.1e}",
        )
        for side, figures in details["sides"].items()
    ]
    header = (f"`{details['model']}`", "ms a run", "ours is faster by", "relative error")
    absent = [f"\nNot installed: {_NAMES[side]}." for side in details.get("not_installed", ())]
    return markdown(header, rows) + "".join(absent)


BENCHMARK = Benchmark(
    name="network-latency",
    help="Latency of the tuned network against PyTorch, torch.compile with freezing, ONNX Runtime and OpenVINO.",
    options=(
        click.Option(
            ["--model"], default=options.RESNET18, show_default=True, help="file.py:function, or an ONNX file."
        ),
        options.seconds("--budget", "budget_secs", 600.0, "Seconds of tuning."),
        options.count("--rounds", 15, "Blocks of runs of each side."),
        options.seconds("--block-secs", "block_secs", 1.0, "Length of a block."),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path),
            help="Keep the tuning here, or go on with the one that is here.",
        ),
        click.Option(["--seed"], type=int, default=0, show_default=True),
    ),
    short=("--model", options.RESNET18, "--budget", "300", "--rounds", "10"),
    run=run,
    table=table,
)
