"""Latency of a tuned network against PyTorch eager, torch.compile with freezing, and ONNX Runtime.

Each side is a process of its own with the same number of threads. They are timed in turn, a short block each, with a
pause before every block so that the threads of the one before have gone to sleep; the figures are medians over all
single runs of all blocks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.common import BenchResult, Conversation, bench_env, cores, interleave, run_json, spread

PEERS = ("eager", "compile", "ort")

# Thread pools of the sides spin for a while after their last run.
_SETTLE_SECS = 0.3


def measure_sides(
    model: str, sides: Sequence[str], *, folder: Path | None, rounds: int, block_secs: float
) -> dict[str, Any]:
    """Times ``sides`` on ``model`` in turn; per side the spread of the seconds per run and what it said when ready."""
    threads = cores()
    with ExitStack() as stack:
        running: dict[str, Conversation] = {}
        for side in sides:
            args = ["-m", "bench.peers.frameworks", "--side", side, "--model", model, "--threads", str(threads)]
            if side == "ours" and folder is not None:
                args += ["--folder", str(folder)]
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

    ``ours`` and ``peer`` (PyTorch eager) are median milliseconds of one run; the other peers are in the details.
    """
    with ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-tune-bench-")))
        tuning = run_json(
            ["-m", "bench.networks.tune_process", model, str(out), "--budget-secs", str(budget_secs), "--seed", str(seed)],
            env=bench_env(cores()),
            timeout_secs=budget_secs + 900,
        )
        folder = Path(tuning["folder"])
        sides = measure_sides(model, ("ours", *PEERS), folder=folder, rounds=rounds, block_secs=block_secs)
    medians = {side: figures["secs"]["median"] for side, figures in sides.items()}
    return latency_result(model, medians, {"threads": cores(), "budget_secs": budget_secs, "tuning": tuning}, sides)


def latency_result(
    model: str, medians: Mapping[str, float], details: Mapping[str, Any], sides: Mapping[str, Any]
) -> BenchResult:
    """The benchmark's result from the median seconds of ``ours`` and every peer."""
    return BenchResult(
        bench="network-latency",
        ours=medians["ours"] * 1e3,
        peer=medians["eager"] * 1e3,
        ratio=medians["eager"] / medians["ours"],
        unit="ms",
        details={
            "model": model,
            "ratios": {side: medians[side] / medians["ours"] for side in PEERS},
            **details,
            "sides": dict(sides),
        },
    )
