"""Time until our network is as fast as MetaSchedule's, network for network.

MetaSchedule tunes for ``peer_secs``, as TVM's guide has it (:mod:`bench.peers.metaschedule_network`), and the network
that it has at each moment of a grid is compiled. Its search does the same once more on our builder and our device
(:mod:`bench.peers.our_engine`), so that search and engineering can be told apart. We tune the same network from a
standing start with each budget of the grid, as it comes and from nothing: without shipped records, a store or a
pre-trained model. In the end the networks are timed in turn in one harness (:mod:`bench.tuning.network_timing`). Our
time is that from the start of the process to the compiled and checked network; MetaSchedule's begins with its tuning,
and neither its imports nor its compilation count.

Each run is independent of the others, so that a short one may be lucky: our time is that of the shortest from which on
every longer one is as fast too, and at equal time the longest counts, not the best. Beside the peer's whole time stands
that in which it was as fast as in the end itself, and each has a mean. A model of which the peer has kernels without a
schedule in the end is in neither: its latency is no result of the peer.

Each run of a tuner and each moment's timing is a piece with a file of its own in the folder ``work``: the same command
goes on where it was interrupted, and ends early where a sitting is limited (:mod:`bench.tuning.pieces`). It names the
pieces that are missing, and has no result before all are done.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import cores
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from bench.tuning.curve_pictures import quality_pictures
from bench.tuning.network_timing import Timing, curves, timings
from bench.tuning.pieces import Sitting, commits, models_option, sitting_options
from bench.tuning.tuner_runs import FORMS, PEER, PEERS, TunerRun, runs

ASKED = {
    "as it comes": {PEER: 20.0, "metaschedule on our engine": 2.5},
    "from nothing": {PEER: 10.0, "metaschedule on our engine": 2.5},
}
"""How many times less time each of our forms is to need than each of the peer's."""
_GRID = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_CLAIM = {"pruner": " (in its paper: 4.08 times less time than MetaSchedule, on tensor cores)"}
"""What papers claim against the peer, by method."""
_MORE = "Give a smaller --peer-batch, so that all kernels have a turn in time, or more --peer-secs"
_AS_FAST = 1.02
"""Latencies of the peer's own networks, relative to its last one, that are as good as it."""


def run(
    models: Sequence[str],
    peer: str,
    peer_secs: float,
    peer_batch: int | None,
    grid: str,
    method: str,
    rounds: int,
    block_secs: float,
    seed: int,
    work: Path,
    resume: bool,
    piece_count: int,
    sitting_secs: float,
) -> BenchResult | None:
    """``ours``: how many times less than the peer's its last latency takes us as it comes, the geometric mean over the
    models whose last network of the peer is whole; 0 where one does not reach it, None with a ``reason`` where none is
    whole. No result while pieces are missing."""
    moments = _moments(grid, peer_secs)
    every = list(runs(models, peer_secs, moments, work, seed, method, peer_batch))
    sitting = Sitting(piece_count, sitting_secs, anew=not resume)
    if not sitting.run(every):
        return None
    of_model: dict[str, Sequence[TunerRun]] = {
        model: [each for each in every if each.model == model] for model in models
    }
    timed = {model: timings(model, of_model[model], work, rounds, block_secs) for model in models}
    every_timing = [piece for pieces in timed.values() for piece in pieces]
    if not sitting.run(every_timing):
        return None
    details = {model: _details(pieces) for model, pieces in timed.items()}
    means, own_means = (_means(details, secs) for secs in ("peer_secs", "own_secs"))
    ours = means["as it comes"][peer]
    return BenchResult(
        "time-to-quality",
        ours=ours,
        peer=1.0 if ours is not None else None,
        ratio=ours,
        unit="times less time",
        details={
            "peer_secs": peer_secs,
            "peer_batch": peer_batch,
            "method": method,
            "seed": seed,
            "commits": commits([*every, *every_timing]),
            "threads": cores(),
            "asked": ASKED,
            "means": means,
            "own_means": own_means,
            "left_out": {
                each: [name for name, found in details.items() if not _is_whole(found, each)] for each in PEERS
            },
            "models": details,
            **({"reason": f"{peer} has tuned all kernels of no model: {_MORE}"} if ours is None else {}),
        },
    )


def _details(timed: Sequence[Timing]) -> dict[str, Any]:
    found = curves(timed)
    return {"curves": found, "against": {peer: compared(found, peer) for peer in PEERS}}


def compared(found: Mapping[str, Sequence[Mapping[str, Any]]], peer: str) -> dict[str, Any]:
    """Compare the curves (see :func:`curves`) with the last network of one form of the peer.

    Returns ``own_secs``, in which the peer was as fast itself; ``times``, the seconds that each of our forms needs
    (None: it does not reach it); ``ahead``, how many times as fast each is with as much time at most (None: it has no
    network by then)."""
    last = found[peer][-1]

    def is_as_fast(point: Mapping[str, Any]) -> bool:
        return bool(point["latency"] <= point["last"][peer])

    in_time = {form: [each for each in found[form] if each["secs"] <= last["secs"]] for form in FORMS}
    return {
        "peer_secs": last["secs"],
        "own_secs": _from_then_on(found[peer], lambda point: point["latency"] <= _AS_FAST * point["last"][peer]),
        "latency": last["latency"],
        "unscheduled": last["unscheduled"],
        "times": {form: _from_then_on(found[form], is_as_fast) for form in FORMS},
        "ahead": {form: of[-1]["last"][peer] / of[-1]["latency"] if of else None for form, of in in_time.items()},
    }


def _from_then_on(points: Sequence[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], bool]) -> float | None:
    """Return the seconds of the first point from which on all hold; None if the last one does not."""
    first = None
    for point in reversed(points):
        if not holds(point):
            break
        first = float(point["secs"])
    return first


def _means(details: Mapping[str, Mapping[str, Any]], secs: str) -> dict[str, dict[str, float | None]]:
    """How many times less than the peer's ``secs`` we need, the geometric mean over the models whose last network of
    the peer is whole, by form and peer: 0 where one does not reach it, None without a model."""

    def mean(form: str, peer: str) -> float | None:
        times = [
            _times_less(found["against"][peer], form, secs) for found in details.values() if _is_whole(found, peer)
        ]
        if not times:
            return None
        return statistics.geometric_mean(times) if all(times) else 0.0

    return {form: {peer: mean(form, peer) for peer in PEERS} for form in FORMS}


def _is_whole(found: Mapping[str, Any], peer: str) -> bool:
    """Return true if all kernels of the peer's last network are tuned."""
    return not found["against"][peer]["unscheduled"]


def _times_less(against: Mapping[str, Any], form: str, secs: str) -> float:
    ours = against["times"][form]
    return 0.0 if ours is None else float(against[secs] / ours)


def _moments(grid: str, peer_secs: float) -> tuple[float, ...]:
    try:
        moments = tuple(sorted({float(each) for each in grid.split(",")}))
    except ValueError as error:
        raise BenchError(f"the grid is no list of seconds: {grid}") from error
    if not 0 < moments[0] <= peer_secs or not math.isfinite(moments[-1]):
        raise BenchError(f"the grid needs seconds above 0, the first within the peer's {peer_secs:g}: {grid}")
    return moments


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows, points = [], []
    for model, found in details["models"].items():
        name = model.rpartition(":")[2]
        for peer, against in found["against"].items():
            left = f", {against['unscheduled']} kernels not tuned yet" if against.get("unscheduled") else ""
            for form in FORMS:
                secs, ahead, own = against["times"][form], against["ahead"][form], against["own_secs"]
                rows.append(
                    (
                        f"`{name}`, {form}",
                        f"{peer}, {1e3 * against['latency']:.2f} ms{left}",
                        f"{against['peer_secs']:.0f}",
                        f"{own:.0f}",
                        "not reached" if secs is None else f"{secs:.0f}",
                        "-" if secs is None else f"{against['peer_secs'] / secs:.1f}",
                        "-" if secs is None else f"{own / secs:.1f}",
                        "-" if ahead is None else f"{ahead:.2f}",
                    )
                )
        points += [
            (
                f"`{name}`, {form}",
                *(
                    "-" if point.get(unit) is None else f"{point[unit]:.0f}"
                    for unit in ("secs", "trials", "device_secs")
                ),
                f"{1e3 * point['latency']:.2f}",
                f"{point['shipped']} of {point['tasks']}" if point.get("shipped") else "-",
            )
            for form, curve in found["curves"].items()
            for point in curve
        ]
    means = [
        (
            f"{form}, against {peer}",
            f"{details['asked'][form][peer]:g}",
            _mean_text(mean),
            _mean_text(details["own_means"][form][peer]),
        )
        for form, of_form in details["means"].items()
        for peer, mean in of_form.items()
    ]
    ours_header = ("ours, s", "times less", "times less than itself", "faster at equal time")
    header = ("network", "against", "s", "itself as fast after, s", *ours_header)
    curve_header = ("network", "s", "trials", "s of the device", "ms a run", "tasks with shipped records")
    batch = f", rounds of {details['peer_batch']} trials" if details["peer_batch"] else ""
    ours = f"`{details['method']}`{_CLAIM.get(details['method'], '')}"
    said = f"Our method: {ours}. The peer: {details['peer_secs']:g} s{batch}. Seed {details['seed']}."
    mean_header = (
        "times less time, geometric mean",
        "asked",
        "than the peer's whole time",
        "than until it was as fast",
    )
    for peer, models in details["left_out"].items():
        if models:
            names = ", ".join(f"`{model.rpartition(':')[2]}`" for model in models)
            said += f" Not in the means against {peer}, which has kernels without a schedule there: {names}. {_MORE}."
    return "\n\n".join((markdown(mean_header, means), said, markdown(header, rows), markdown(curve_header, points)))


def _mean_text(mean: float | None) -> str:
    return "no model" if mean is None else f"{mean:.1f}" if mean else "not reached by all"


def _method(context: click.Context, option: click.Parameter, text: str) -> str:
    (method, *others) = options.methods_named(context, option, text)
    if others:
        raise click.BadParameter("one method is compared with the peer at a time", param=option)
    return method


BENCHMARK = Benchmark(
    name="time-to-quality",
    help="Time until our network is as fast as the one that MetaSchedule has in the end.",
    options=(
        models_option(options.DCGAN),
        click.Option(["--peer"], type=click.Choice([PEER]), default=PEER, show_default=True, help="The other tuner."),
        options.seconds("--peer-secs", "peer_secs", 1800.0, "Seconds that it tunes."),
        click.Option(
            ["--peer-batch"],
            type=click.IntRange(min=1),
            help="Trials of a round of its scheduler, which gives each kernel one first; else its default, 64.",
        ),
        click.Option(
            ["--grid"],
            default=",".join(f"{secs:g}" for secs in _GRID),
            show_default=True,
            help="Our budgets, in seconds with commas between them; MetaSchedule's networks are kept then too.",
        ),
        click.Option(["--method"], callback=_method, default="fleet", show_default=True, help="Our search method."),
        options.count("--rounds", 10, "Blocks of runs of each network."),
        options.seconds("--block-secs", "block_secs", 1.0, "Length of a block."),
        click.Option(["--seed"], type=int, default=0, show_default=True),
        *sitting_options("bench-out/time-to-quality"),
    ),
    short=("--peer-secs", "120", "--grid", "15,60"),
    run=run,
    table=table,
    pictures=quality_pictures,
)
