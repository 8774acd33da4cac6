"""Latency of one tuned network over the extents of its dynamic dimension, against the frameworks with the same
dimension: ONNX Runtime, OpenVINO, torch.compile and PyTorch eager.

The network is tuned once for a distribution of extents. Then all sides are timed in turn at up to eight extents, and
the result is the mean over the distribution. ``--alone`` also tunes and times a network with fixed shapes for each of
these extents. This shows the latency that one tuning for all extents loses, and the tuning time that it saves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.latency.shape_figures import DYNAMIC, FIXED, best_of, median_of, weighted_mean
from bench.latency.shape_picture import extent_pictures
from bench.latency.shape_sides import Sampled, Side, time_sides
from bench.latency.shape_table import table
from bench.latency.shape_tunings import Tunings
from bench.machine import bench_env, cores
from bench.networks.dynamic_extents import shapes_beside
from bench.processes import run_json
from bench.result import BenchError, BenchResult, spread
from devices.networks.frameworks.order import OURS
from fleet_tune.base.config.shape_options import shapes_given
from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.shapes import Shapes

_TINY = "bench/networks/dynamic_networks.py:tiny_layers"
_READ_SECS = 1800.0
_LOADS = 3
_OF_A_TUNING = ("elapsed_secs", "trials", "tuned_secs", "untuned_secs")


def run(
    model: str,
    shapes: str | None,
    shapes_weights: str | None,
    budget_secs: float,
    rounds: int,
    block_secs: float,
    out: Path | None,
    seed: int,
    alone: bool,
) -> BenchResult:
    """Tune ``model`` for ``budget_secs`` into a folder in ``out`` (None: a temporary folder), and with ``alone`` once
    more for each sampled extent. Then time all sides.

    ``ours`` and ``peer`` (the framework with the least mean) are mean milliseconds of one run over the distribution.
    The details have all sides. Raise :class:`BenchError` if a compiled network of ours fails or gives wrong outputs.
    """
    asked = asked_shapes(model, shapes, shapes_weights)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-tune-bench-")))
        reading = ["-m", "bench.latency.extent_arrays", model, str(work), *(["--shapes", asked] if asked else [])]
        sampled = Sampled.read(run_json(reading, env=bench_env(cores()), timeout_secs=_READ_SECS))
        # Absolute, because child processes start in the repository.
        tunings = Tunings((work / "tunings" if out is None else out).absolute(), model, budget_secs, seed)
        dynamic = tunings.take(DYNAMIC, sampled.shapes)
        others = sampled.extents if alone else ()
        fixed = {extent: tunings.take(f"{FIXED}-{extent}", f"{sampled.dimension}={extent}") for extent in others}
        sides = [
            Side(OURS, OURS, sampled.extents, Path(dynamic["folder"])),
            *(Side(name, name, sampled.extents) for name in sampled.frameworks),
            *(Side(FIXED, OURS, (extent,), Path(each["folder"])) for extent, each in fixed.items()),
        ]
        found = time_sides(model, sides, sampled, work, rounds=rounds, block_secs=block_secs)
        loading = _loading({DYNAMIC: dynamic, **({FIXED: fixed[sampled.extents[-1]]} if alone else {})}, sampled)
    details = {"threads": cores(), "budget_secs": budget_secs, "tuning": dynamic, "loading": loading}
    if alone:
        details["alone"] = alone_figures(dynamic, fixed)
    return shape_result(model, sampled, found, details)


def asked_shapes(model: str, shapes: str | None, shapes_weights: str | None) -> str | None:
    """Return the bounds and weights of the options, else those of :mod:`bench.networks.dynamic_extents`; None if there
    are none.

    Raise :class:`BenchError` for invalid options.
    """
    try:
        given: Shapes | None = shapes_given(shapes, shapes_weights)
    except RequestError as error:
        raise BenchError(str(error)) from error
    return shapes_beside(model) if given is None else str(given)


def _loading(tuned: Mapping[str, Mapping[str, Any]], sampled: Sampled) -> dict[str, Any]:
    """Return the spreads of the seconds and MiB for loading each network and running it once at the largest extent."""
    taken: dict[str, list[Mapping[str, float]]] = {name: [] for name in tuned}
    for _ in range(_LOADS):
        for name, figures in tuned.items():
            arguments = ["-m", "bench.latency.load_process", figures["folder"], sampled.arrays[-1]]
            taken[name].append(run_json(arguments, env=bench_env(cores()), timeout_secs=_READ_SECS))
    by_name = {name: {key: spread([each[key] for each in all_]) for key in all_[0]} for name, all_ in taken.items()}
    return {"extent": sampled.extents[-1], **by_name}


def alone_figures(dynamic: Mapping[str, Any], fixed: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tunings of single extents, the sum of their seconds (``elapsed_secs``), and the seconds of the tuning
    for all extents divided by the mean seconds of a single extent's tuning (``times_of_one``)."""
    secs = [each["elapsed_secs"] for each in fixed.values()]
    return {
        "tunings": {extent: {key: each[key] for key in _OF_A_TUNING} for extent, each in fixed.items()},
        "elapsed_secs": sum(secs),
        "times_of_one": dynamic["elapsed_secs"] * len(secs) / sum(secs),
    }


def shape_result(
    model: str,
    sampled: Sampled,
    found: Mapping[int, Mapping[str, Mapping[str, Any]]],
    details: Mapping[str, Any],
) -> BenchResult:
    """Return the benchmark's result. ``found``: the return value of :func:`bench.latency.shape_sides.time_sides`.

    A framework that fails at an extent has no mean and cannot be the peer of the whole result. It still counts at the
    other extents. Networks with fixed shapes are no peers.
    """
    frameworks = sampled.frameworks
    extents = []
    for extent, weight in sampled.weights:
        sides = found[extent]
        entry: dict[str, Any] = {"extent": extent, "weight": weight, "sides": dict(sides)}
        extents.append({**entry, **_ratios({name: median_of(entry, name) for name in sides}, frameworks)})
    compared = (OURS, *frameworks, *([FIXED] if FIXED in found[extents[0]["extent"]] else []))
    means = {name: weighted_mean(extents, name) for name in compared}
    ours, best = means[OURS], best_of(means, frameworks)
    assert ours is not None, "a network of ours that does not run is an error"
    return BenchResult(
        bench="shape-latency",
        ours=ours * 1e3,
        peer=None if best is None else best * 1e3,
        ratio=None if best is None else best / ours,
        unit="ms",
        details={
            "model": model,
            "dimension": sampled.dimension,
            "shapes": sampled.shapes,
            "frameworks": frameworks,
            "mean_secs": means,
            "ratios": {name: mean / ours for name, mean in means.items() if name != OURS and mean is not None},
            "extents": extents,
            **details,
        },
    )


def _ratios(secs: Mapping[str, float | None], frameworks: Sequence[str]) -> dict[str, float | None]:
    """Return the seconds of the best framework divided by ours (``ratio``), and those of the network that is fixed to
    the extent, if there is one, divided by ours (``fixed_ratio``)."""
    ours, best = secs[OURS], best_of(secs, frameworks)
    assert ours is not None, "a network of ours that does not run is an error"
    found = {"ratio": None if best is None else best / ours}
    fixed = secs.get(FIXED)
    return found if fixed is None else {**found, "fixed_ratio": fixed / ours}


BENCHMARK = Benchmark(
    name="shape-latency",
    help="Latency of one network over its dynamic dimension against the frameworks, and against fixed networks.",
    options=(
        click.Option(
            ["--model"],
            default="bench/networks/dynamic_networks.py:bert_four_layers",
            show_default=True,
            help="file.py:function that returns dynamic_shapes too, or an ONNX file.",
        ),
        click.Option(["--shapes"], help="Bounds, such as tokens=1..512; else those beside the network."),
        click.Option(["--shapes-weights"], help="How often each extent comes, with --shapes: tokens=16:0.7,512:0.3."),
        options.seconds("--budget", "budget_secs", 600.0, "Seconds of tuning, for all extents and for each alone."),
        options.count("--rounds", 12, "Blocks of runs of each side at each extent."),
        options.seconds("--block-secs", "block_secs", 0.5, "Length of a block."),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path),
            help="Folder that keeps the tunings; those that have ended are not made again.",
        ),
        click.Option(["--seed"], type=int, default=0, show_default=True),
        click.Option(["--alone"], is_flag=True, help="Tune and time the network fixed to each extent, too."),
    ),
    short=("--model", _TINY, "--budget", "60", "--rounds", "5"),
    run=run,
    table=table,
    pictures=extent_pictures,
)
