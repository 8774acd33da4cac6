"""Time until our network is as fast as MetaSchedule's, network for network.

MetaSchedule tunes for ``peer_secs``, as TVM's guide has it (:mod:`bench.peers.metaschedule_network`), and the network
that it has at each moment of a grid is compiled. Its search does the same once more on our builder and our device
(:mod:`bench.peers.our_engine`), so that search and engineering can be told apart. We tune the same network from a
standing start with each budget of the grid, as it comes and from nothing: without shipped records, a store or a
pre-trained model. In the end all networks are timed in turn in one harness. Our time is that from the start of the
process to the compiled and checked network; MetaSchedule's begins with its tuning, and neither its imports nor its
compilation count.

Each run of a tuner is a piece with a file of its own in the folder ``work``: the same command goes on where it was
interrupted, and ``--pieces`` ends it after some of them. It names those that are missing, and has no result before all
are done.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.latency.network_latency import measure_sides
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from bench.tuning.pieces import Piece, commits, model_folder, models_option, pieces_option, run_missing, work_option
from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, STORE_VARIABLE

PEER = "metaschedule"
PEERS = {PEER: (), "metaschedule on our engine": ("--our-engine",)}
"""The peer's forms, with the options of :mod:`bench.peers.metaschedule_network`."""
FORMS = {"as it comes": (), "from nothing": ("--no-pretrained",)}
"""Our forms, with the options of :mod:`bench.tuning.tune_process`."""
ASKED = {
    "as it comes": {PEER: 20.0, "metaschedule on our engine": 2.5},
    "from nothing": {PEER: 10.0, "metaschedule on our engine": 2.5},
}
"""How many times less time each of our forms is to need than each of the peer's."""
_GRID = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_FINISH_SECS = 1800.0


@dataclass(frozen=True)
class TunerRun(Piece):
    """One run of a tuner with one budget."""

    form: str
    """One of :data:`FORMS` or :data:`PEERS`."""
    budget_secs: float
    moments: tuple[float, ...]
    """Seconds after which the peer's networks are kept too."""
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}: {self.form}, {self.budget_secs:g} s"

    def tune(self) -> dict[str, Any]:
        limits = ["--budget-secs", str(self.budget_secs)]
        if self.form in PEERS:
            command = ["-m", "bench.peers.metaschedule_network", self.model, str(self.folder), *limits]
            command += [argument for secs in self.moments for argument in ("--moment", str(secs))]
            command += PEERS[self.form]
            environment = bench_env(cores())
        else:
            out = str(self.folder / "network")
            command = ["-m", "bench.tuning.tune_process", self.model, out, *limits, "--seed", str(self.seed)]
            command += FORMS[self.form]
            shipped = {} if self.form == "as it comes" else {SHIPPED_VARIABLE: ""}
            environment = bench_env(cores(), **{STORE_VARIABLE: ""}, **shipped)
        return run_json(command, env=environment, timeout_secs=self.budget_secs + _FINISH_SECS)

    def networks(self) -> list[dict[str, Any]]:
        """Return ``form``, ``secs``, ``trials`` and ``folder`` of each network of a run that is done."""
        figures = self.figures()
        if self.form in PEERS:
            return [{"form": self.form, **each} for each in figures["networks"]]
        names = {"secs": "elapsed_secs", "trials": "trials", "folder": "folder"}
        return [{"form": self.form, **{new: figures[old] for new, old in names.items()}}]


def runs(
    models: Sequence[str], peer_secs: float, grid: Sequence[float], work: Path, seed: int = 0
) -> Iterator[TunerRun]:
    """Yield all runs, the peer's of each model first."""
    moments = tuple(secs for secs in grid if secs < peer_secs)
    for model in models:
        folder = model_folder(work, model)
        for form in PEERS:
            yield TunerRun(model, folder / form.replace(" ", "-"), form, peer_secs, moments, seed)
        for form in FORMS:
            for secs in (each for each in grid if each <= peer_secs):
                yield TunerRun(model, folder / f"{form.replace(' ', '-')}-{secs:g}", form, secs, (), seed)


def run(
    models: Sequence[str],
    peer_secs: float,
    grid: str,
    work: Path,
    piece_count: int,
    rounds: int,
    block_secs: float,
    seed: int,
) -> BenchResult | None:
    """``ours``: how many times less than the peer's its last latency takes us as it comes, the geometric mean over the
    models; 0 where one does not reach it. None, and no result, while pieces are missing."""
    every = list(runs(models, peer_secs, _moments(grid), work, seed))
    if not run_missing(every, piece_count):
        return None
    details = {
        model: _timed(model, [each for each in every if each.model == model], rounds, block_secs) for model in models
    }
    against = [each["against"][PEER] for each in details.values()]
    times = [each["peer_secs"] / (each["times"]["as it comes"] or math.inf) for each in against]
    ours = statistics.geometric_mean(times) if all(times) else 0.0
    return BenchResult(
        "time-to-quality",
        ours=ours,
        peer=1.0,
        ratio=ours,
        unit="times less time",
        details={
            "peer_secs": peer_secs,
            "commits": commits(every),
            "threads": cores(),
            "asked": ASKED,
            "models": details,
        },
    )


def _timed(model: str, of_model: Sequence[TunerRun], rounds: int, block_secs: float) -> dict[str, Any]:
    networks = [network for piece in of_model for network in piece.networks()]
    names = [f"{network['form']} {network['secs']:.0f}" for network in networks]
    sides = dict(zip(names, networks, strict=True))
    timed = measure_sides(
        model,
        list(sides),
        folders={name: Path(network["folder"]) for name, network in sides.items()},
        rounds=rounds,
        block_secs=block_secs,
        kinds={name: PEER if network["form"] in PEERS else "ours" for name, network in sides.items()},
    )
    curves: dict[str, list[dict[str, float]]] = {form: [] for form in (*PEERS, *FORMS)}
    for name, network in sides.items():
        point = {"secs": network["secs"], "trials": network["trials"], "latency": timed[name]["secs"]["median"]}
        curves[network["form"]].append(point)
    return {"curves": curves, "against": {peer: compared(curves, peer) for peer in PEERS}}


def compared(curves: Mapping[str, Sequence[Mapping[str, float]]], peer: str) -> dict[str, Any]:
    """Return the seconds that each of our forms needs for the last latency of one form of the peer (None: it does not
    reach it), and how many times as fast as the peer's each is with as much time at most."""
    last = max(curves[peer], key=lambda point: point["secs"])
    times = {
        form: min((point["secs"] for point in curves[form] if point["latency"] <= last["latency"]), default=None)
        for form in FORMS
    }
    in_time = {form: [each["latency"] for each in curves[form] if each["secs"] <= last["secs"]] for form in FORMS}
    ahead = {form: last["latency"] / min(found) if found else None for form, found in in_time.items()}
    return {"peer_secs": last["secs"], "latency": last["latency"], "times": times, "ahead": ahead}


def _moments(grid: str) -> tuple[float, ...]:
    try:
        moments = tuple(sorted({float(each) for each in grid.split(",")}))
    except ValueError as error:
        raise BenchError(f"the grid is no list of seconds: {grid}") from error
    if not moments or moments[0] <= 0:
        raise BenchError(f"the grid needs seconds above 0: {grid}")
    return moments


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows, points = [], []
    for model, found in details["models"].items():
        name = model.rpartition(":")[2]
        for peer, against in found["against"].items():
            for form in FORMS:
                secs, ahead = against["times"][form], against["ahead"][form]
                rows.append(
                    (
                        f"`{name}`, {form}",
                        f"{peer}, {1e3 * against['latency']:.2f} ms",
                        f"{against['peer_secs']:.0f}",
                        "not reached" if secs is None else f"{secs:.0f}",
                        "-" if secs is None else f"{against['peer_secs'] / secs:.1f}",
                        "-" if ahead is None else f"{ahead:.2f}",
                    )
                )
        points += [
            (f"`{name}`, {form}", f"{point['secs']:.0f}", f"{point['trials']:.0f}", f"{1e3 * point['latency']:.2f}")
            for form, curve in found["curves"].items()
            for point in sorted(curve, key=lambda each: each["secs"])
        ]
    asked = "; ".join(
        f"{form}, {' and '.join(f'{times:g} against {peer}' for peer, times in against.items())}"
        for form, against in details["asked"].items()
    )
    header = ("network", "against", "s", "ours to its latency, s", "times less", "faster at equal time")
    curve = ("network", "s", "trials", "ms a run")
    return f"{markdown(header, rows)}\n\nAsked, times less: {asked}.\n\n{markdown(curve, points)}"


BENCHMARK = Benchmark(
    name="time-to-quality",
    help="Time until our network is as fast as the one that MetaSchedule has in the end.",
    options=(
        models_option(options.RESNET18),
        options.seconds("--peer-secs", "peer_secs", 1800.0, "Seconds that MetaSchedule tunes."),
        click.Option(
            ["--grid"],
            default=",".join(f"{secs:g}" for secs in _GRID),
            show_default=True,
            help="Our budgets, and the moments of MetaSchedule's networks, in seconds with commas between them.",
        ),
        work_option("bench-out/time-to-quality"),
        pieces_option(),
        options.count("--rounds", 10, "Blocks of runs of each network."),
        options.seconds("--block-secs", "block_secs", 1.0, "Length of a block."),
        click.Option(["--seed"], type=int, default=0, show_default=True),
    ),
    short=("--peer-secs", "120", "--grid", "15,60"),
    run=run,
    table=table,
)
