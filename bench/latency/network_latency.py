"""Latency of a tuned network against PyTorch eager, torch.compile with freezing, ONNX Runtime and OpenVINO.

The network is ``file.py:function`` or an ONNX file, for example a quantised one (:mod:`bench.networks.quantise`).
PyTorch is no peer of an ONNX file. The result names peers that are not installed.

A side is our network or a framework. Each side runs in its own process with the same number of threads. The sides are
timed in turn, in short blocks. A pause before each block lets the threads of the previous side go to sleep. The figures
are medians over all single runs of all blocks.

``--precision`` tunes the network once more for each precision, and times it as another side. The result is a front of
latency against error; ``python -m bench.latency.latency_front`` draws it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from fleet_tune.base.errors import RequestError
from fleet_tune.base.precision import Precision, check_error_limit

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

# The error of OpenVINO in a lower precision is more than this factor larger than its error in float32.
_LOWER_PRECISION = 10
# The thread pool of a side spins for a while after its last run.
_SETTLE_SECS = 0.3


def measure_sides(
    model: str,
    sides: Sequence[str],
    *,
    folders: Mapping[str, Path],
    rounds: int,
    block_secs: float,
    kinds: Mapping[str, str] | None = None,
    low_precision: Collection[str] = (),
    fewest_runs: int | None = None,
    unchecked: Collection[str] = (),
) -> dict[str, Any]:
    """Time ``sides`` on ``model`` in turn. Return for each side the spread of the seconds per run (``secs``), and the
    fields that its process reported when it was ready.

    Args:
        model: ``file.py:function`` or an ONNX file.
        sides: names of the sides: kinds of :mod:`bench.peers.frameworks`, or keys of ``kinds``.
        folders: folder of the compiled network, for the sides that have one.
        rounds: blocks of each side.
        block_secs: length of a block.
        kinds: kind of each side whose name is not its kind.
        low_precision: sides that compute in a lower precision.
        fewest_runs: least runs of a block, for sides that may be slow.
        unchecked: sides that are timed whatever their outputs are.
    """
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
            if side in low_precision:
                args.append("--low-precision")
            if side in unchecked:
                args.append("--unchecked")
            if fewest_runs is not None:
                args += ["--fewest-runs", str(fewest_runs)]
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


def run(
    model: str,
    budget_secs: float,
    rounds: int,
    block_secs: float,
    out: Path | None,
    seed: int,
    precisions: Sequence[str] = (),
) -> BenchResult:
    """Tune ``model`` for ``budget_secs`` into ``out`` (None: a temporary folder), and once more for each precision into
    a folder next to it. Then time all sides.

    ``ours`` and ``peer`` (the fastest framework) are median milliseconds of one run. The details have all sides.
    """
    with ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-tune-bench-"))) / "net"
        out = out.absolute()  # children start in the repository
        tunings = {"ours": _tuned(model, out, budget_secs, seed, None)}
        for precision in precisions:
            tunings[precision] = _tuned(model, out.with_name(f"{out.name}-{precision}"), budget_secs, seed, precision)
        peers = _peers(model)
        sides = measure_sides(
            model,
            (*tunings, *peers),
            folders={side: Path(tuning["folder"]) for side, tuning in tunings.items()},
            rounds=rounds,
            block_secs=block_secs,
            kinds=dict.fromkeys(precisions, "ours"),
            low_precision=precisions,
        )
    medians = {side: figures["secs"]["median"] for side, figures in sides.items()}
    details = {"threads": cores(), "budget_secs": budget_secs, "tuning": tunings.pop("ours"), "precisions": tunings}
    if "openvino" not in peers:
        details["not_installed"] = ["openvino"]
    return latency_result(model, medians, details, sides)


def _tuned(model: str, out: Path, budget_secs: float, seed: int, precision: str | None) -> dict[str, Any]:
    options = ["--budget-secs", str(budget_secs), "--seed", str(seed)]
    if precision is not None:
        name, _, error = precision.partition(":")
        options += ["--precision", name, *(["--max-error", error] if error else [])]
    return run_json(
        ["-m", "bench.tuning.tune_process", model, str(out), *options],
        env=bench_env(cores()),
        timeout_secs=budget_secs + 900,
    )


def _peers(model: str) -> tuple[str, ...]:
    """Return the frameworks that can run the network and are installed."""
    peers = ("ort",) if model.endswith(".onnx") else PEERS
    return (*peers, *_OPENVINO) if find_spec("openvino") else peers


def latency_result(
    model: str, medians: Mapping[str, float], details: Mapping[str, Any], sides: Mapping[str, Any]
) -> BenchResult:
    """Return the benchmark's result from the median seconds of ``ours``, of our precisions and of every peer.

    The peer is the fastest framework that keeps the network's precision. OpenVINO with its default settings is excluded
    if it computes in bfloat16.
    """
    others = [side for side in medians if side != "ours"]
    lower = {*details.get("precisions", {})}
    as_it_comes, told = (sides.get(side, {}).get("relative_error", 0.0) for side in _OPENVINO)
    if as_it_comes > _LOWER_PRECISION * told:
        lower.add("openvino")
    best = min(medians[side] for side in others if side not in lower)
    return BenchResult(
        bench="network-latency",
        ours=medians["ours"] * 1e3,
        peer=best * 1e3,
        ratio=best / medians["ours"],
        unit="ms",
        details={
            "model": model,
            "ratios": {side: medians[side] / medians["ours"] for side in others},
            **details,
            "sides": dict(sides),
        },
    )


def front(details: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return name, median seconds and largest relative error of the network as it is and in each precision, the fastest
    first."""
    sides = {"as it is": "ours", **{name: name for name in details.get("precisions", {})}}
    points = [(name, details["sides"][side]) for name, side in sides.items()]
    found = [(name, figures["secs"]["median"], figures["relative_error"]) for name, figures in points]
    return sorted(found, key=lambda point: point[1])


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    precisions = details.get("precisions", {})
    names = {
        "ours": f"fleet-tune, {details['budget_secs'] / 60:g} min",
        **{precision: f"fleet-tune, {precision}" for precision in precisions},
        **_NAMES,
    }
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
    text = markdown(header, rows) + "".join(absent)
    if not precisions:
        return text
    points = [
        (name, f"{1e3 * secs:.2f}", f"{error:.1e}", _mean_error(precisions.get(name, details["tuning"])))
        for name, secs, error in front(details)
    ]
    columns = ("precision", "ms a run", "largest relative error", "mean relative error")
    return f"{text}\n\n{markdown(columns, points)}"


def _mean_error(tuning: Mapping[str, Any]) -> str:
    error = tuning["mean_rel_error"]
    return "-" if error is None else f"{error:.1e}"  # a network that was not checked has none


def _precisions(_context: click.Context, option: click.Parameter, given: Sequence[str]) -> Sequence[str]:
    for each in given:
        name, _, error = each.partition(":")
        try:
            check_error_limit(Precision(name), float(error) if error else None)
        except (RequestError, ValueError) as reason:
            raise click.BadParameter(f"{each!r}: {reason}", param=option) from reason
    return given


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
        click.Option(
            ["--precision", "precisions"],
            multiple=True,
            callback=_precisions,
            help="Time the network in this precision too: bf16, fp16, int8w, or auto:0.01 with its largest error.",
        ),
    ),
    short=("--model", options.RESNET18, "--budget", "300", "--rounds", "10"),
    run=run,
    table=table,
)
