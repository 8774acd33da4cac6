"""Time until our network is as fast as MetaSchedule's, network for network.

MetaSchedule tunes for ``peer_secs``, as TVM's guide has it (:mod:`bench.peers.metaschedule_network`), and the network
that it has at each moment of a grid is compiled. We tune the same network from a standing start with each budget of the
grid, as it comes and from nothing: without shipped records, a store or a pre-trained model. In the end all networks are
timed in turn in one harness. Our time is that from the start of the process to the compiled and checked network;
MetaSchedule's begins with its tuning, and neither its imports nor its compilation count.

Each run of a tuner is a piece with a file of its own in the folder ``work``: the same command goes on where it was
interrupted, and ``--pieces`` ends it after some of them. A result says which pieces are missing.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.networks.network_latency import measure_sides
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, STORE_VARIABLE

PEER = "metaschedule"
FORMS = {"as it comes": (), "from nothing": ("--no-pretrained",)}
"""Our forms, with the options of :mod:`bench.networks.tune_process`."""
ASKED_TIMES = {"as it comes": 20.0, "from nothing": 10.0}
_GRID = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_FINISH_SECS = 1800.0


@dataclass(frozen=True)
class Piece:
    """One run of a tuner."""

    model: str
    form: str
    """One of :data:`FORMS`, or :data:`PEER`."""
    budget_secs: float
    folder: Path

    @property
    def file(self) -> Path:
        """The figures of the run, written at its end."""
        return self.folder / "figures.json"

    def figures(self) -> dict[str, Any] | None:
        """Return the figures; None while the run is not done."""
        return json.loads(self.file.read_text()) if self.file.exists() else None

    def run(self, grid: Sequence[float], seed: int) -> None:
        """Run the tuner, and keep the figures."""
        self.folder.mkdir(parents=True, exist_ok=True)
        limits = ["--budget-secs", str(self.budget_secs)]
        if self.form == PEER:
            moments = [argument for secs in grid if secs < self.budget_secs for argument in ("--moment", str(secs))]
            command = ["-m", "bench.peers.metaschedule_network", self.model, str(self.folder), *limits, *moments]
            environment = bench_env(cores())
        else:
            out = str(self.folder / "network")
            command = ["-m", "bench.networks.tune_process", self.model, out, *limits, "--seed", str(seed)]
            command += FORMS[self.form]
            shipped = {} if self.form == "as it comes" else {SHIPPED_VARIABLE: ""}
            environment = bench_env(cores(), **{STORE_VARIABLE: ""}, **shipped)
        figures = run_json(command, env=environment, timeout_secs=self.budget_secs + _FINISH_SECS)
        write_atomically(self.file, (json.dumps(figures) + "\n").encode())

    def networks(self) -> list[dict[str, Any]]:
        """Return ``form``, ``secs``, ``trials`` and ``folder`` of each network of a finished run."""
        figures = self.figures() or {}
        if self.form == PEER:
            return [{"form": PEER, **each} for each in figures["networks"]]
        names = {"secs": "elapsed_secs", "trials": "trials", "folder": "folder"}
        return [{"form": self.form, **{new: figures[old] for new, old in names.items()}}]


def pieces(models: Sequence[str], peer_secs: float, grid: Sequence[float], work: Path) -> Iterator[Piece]:
    """Yield all runs, the peer's of each model first."""
    for model in models:
        folder = work / model.replace("/", "_").replace(":", "_")
        yield Piece(model, PEER, peer_secs, folder / PEER)
        for form in FORMS:
            for secs in (each for each in grid if each <= peer_secs):
                yield Piece(model, form, secs, folder / f"{form.replace(' ', '-')}-{secs:g}")


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
    moments = _moments(grid)
    every = list(pieces(models, peer_secs, moments, work.absolute()))
    for piece in [each for each in every if each.figures() is None][: piece_count or None]:
        click.echo(f"{piece.model}: {piece.form}, {piece.budget_secs:g} s", err=True)
        piece.run(moments, seed)
    missing = [f"{each.model}: {each.form}, {each.budget_secs:g} s" for each in every if each.figures() is None]
    if missing:
        click.echo(f"{len(missing)} pieces are missing, the same command goes on: {'; '.join(missing)}", err=True)
        return None
    details = {
        model: _timed(model, [each for each in every if each.model == model], rounds, block_secs) for model in models
    }
    times = [each["peer_secs"] / (each["times"]["as it comes"] or math.inf) for each in details.values()]
    ours = statistics.geometric_mean(times) if all(times) else 0.0
    return BenchResult(
        "time-to-quality",
        ours=ours,
        peer=1.0,
        ratio=ours,
        unit="times less time",
        details={"peer_secs": peer_secs, "threads": cores(), "asked": ASKED_TIMES, "models": details},
    )


def _timed(model: str, of_model: Sequence[Piece], rounds: int, block_secs: float) -> dict[str, Any]:
    networks = [network for piece in of_model for network in piece.networks()]
    names = [f"{network['form']} {network['secs']:.0f}" for network in networks]
    sides = dict(zip(names, networks, strict=True))
    timed = measure_sides(
        model,
        list(sides),
        folders={name: Path(network["folder"]) for name, network in sides.items()},
        rounds=rounds,
        block_secs=block_secs,
        kinds={name: PEER if network["form"] == PEER else "ours" for name, network in sides.items()},
    )
    curves: dict[str, list[dict[str, float]]] = {form: [] for form in (PEER, *FORMS)}
    for name, network in sides.items():
        point = {"secs": network["secs"], "trials": network["trials"], "latency": timed[name]["secs"]["median"]}
        curves[network["form"]].append(point)
    return compared(curves)


def compared(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Return the curves with the seconds that each of our forms needs for the peer's last latency (None: it does not
    reach it), and how many times as fast as the peer's each is with as much time at most."""
    last = max(curves[PEER], key=lambda point: point["secs"])
    times = {
        form: min((point["secs"] for point in curves[form] if point["latency"] <= last["latency"]), default=None)
        for form in FORMS
    }
    in_time = {form: [each["latency"] for each in curves[form] if each["secs"] <= last["secs"]] for form in FORMS}
    ahead = {form: last["latency"] / min(found) if found else None for form, found in in_time.items()}
    return {"curves": curves, "peer_secs": last["secs"], "times": times, "ahead": ahead}


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
        peer = max(found["curves"][PEER], key=lambda point: point["secs"])
        for form in FORMS:
            secs, ahead = found["times"][form], found["ahead"][form]
            rows.append(
                (
                    f"`{name}`, {form}",
                    f"{peer['secs']:.0f}",
                    "not reached" if secs is None else f"{secs:.0f}",
                    "-" if secs is None else f"{peer['secs'] / secs:.1f}",
                    "-" if ahead is None else f"{ahead:.2f}",
                )
            )
        points += [
            (f"`{name}`, {form}", f"{point['secs']:.0f}", f"{point['trials']:.0f}", f"{1e3 * point['latency']:.2f}")
            for form, curve in found["curves"].items()
            for point in sorted(curve, key=lambda each: each["secs"])
        ]
    asked = " and ".join(f"{times:g} {form}" for form, times in details["asked"].items())
    header = ("network", "MetaSchedule, s", "ours to its latency, s", "times less", "faster at equal time")
    curve = ("network", "s", "trials", "ms a run")
    return f"{markdown(header, rows)}\n\nAsked: {asked} times less.\n\n{markdown(curve, points)}"


BENCHMARK = Benchmark(
    name="time-to-quality",
    help="Time until our network is as fast as the one that MetaSchedule has in the end.",
    options=(
        click.Option(
            ["--models"],
            callback=lambda _context, _option, text: tuple(text.split(",")),
            default=options.RESNET18,
            show_default=True,
            help="Networks as file.py:function, with commas between them.",
        ),
        options.seconds("--peer-secs", "peer_secs", 1800.0, "Seconds that MetaSchedule tunes."),
        click.Option(
            ["--grid"],
            default=",".join(f"{secs:g}" for secs in _GRID),
            show_default=True,
            help="Our budgets, and the moments of MetaSchedule's networks, in seconds with commas between them.",
        ),
        click.Option(
            ["--work"],
            type=click.Path(path_type=Path),
            default=Path("bench-out/time-to-quality"),
            show_default=True,
            help="Folder of the pieces: the same command goes on where it was interrupted.",
        ),
        click.Option(
            ["--pieces", "piece_count"],
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="End after so many pieces; 0: do all.",
        ),
        options.count("--rounds", 10, "Blocks of runs of each network."),
        options.seconds("--block-secs", "block_secs", 1.0, "Length of a block."),
        click.Option(["--seed"], type=int, default=0, show_default=True),
    ),
    short=("--peer-secs", "120", "--grid", "15,60"),
    run=run,
    table=table,
)
