"""exp, erf, sigmoid and tanh on one core: TVM's lowering against ours.

The same kernel, with vectors of 16 values, is built once by each side, in a process of its own. Both are timed in turn.
``ratio`` is the geometric mean over the functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env
from bench.processes import Conversation
from bench.result import BenchResult, interleave, spread
from bench.tables import markdown, median_and_range

FUNCTIONS = ("exp", "erf", "sigmoid", "tanh")
SIDES = ("ours", "tvm")


def run(rounds: int) -> BenchResult:
    """Return the nanoseconds per value of each function and side. Both sides run in turn, ``rounds`` times."""
    figures: dict[str, Any] = {}
    for function in FUNCTIONS:
        with ExitStack() as stack:
            children = {}
            for side in SIDES:
                command = ["-m", "bench.devices.vector_math_process", function, "--side", side]
                children[side] = stack.enter_context(Conversation(command, env=bench_env(1)))
            samples = interleave(rounds, {side: _block(child) for side, child in children.items()})
            errors = {side: child.ready["largest_error"] for side, child in children.items()}
        figures[function] = {side: spread(samples[side]) for side in SIDES} | {"largest_error": errors}
    medians = {side: [f[side]["median"] for f in figures.values()] for side in SIDES}
    ours, tvm = (statistics.geometric_mean(medians[side]) for side in SIDES)
    return BenchResult("vector-math", ours=ours, peer=tvm, ratio=tvm / ours, unit="ns", details={"functions": figures})


def _block(child: Conversation) -> Callable[[], list[float]]:
    def take() -> list[float]:
        times: list[float] = child.ask("")["ns"]
        return times

    return take


def table(result: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{name}`",
            *(median_and_range(figures[side]) for side in SIDES),
            f"{figures['tvm']['median'] / figures['ours']['median']:.1f}",
            *(f"{figures['largest_error'][side]:.1e}" for side in SIDES),
        )
        for name, figures in result["details"]["functions"].items()
    ]
    header = ("ns for one value", "ours", "TVM", "faster by", "our largest error", "TVM's")
    return markdown(header, rows)


BENCHMARK = Benchmark(
    name="vector-math",
    help="Exponential, erf, sigmoid and tanh on one core: TVM's lowering against ours.",
    options=(options.count("--rounds", 9),),
    short=("--rounds", "5"),
    run=run,
    table=table,
)
