"""Time until our network is as fast as MetaSchedule's, for each network.

MetaSchedule tunes for ``peer_secs``, as in TVM's guide (:mod:`bench.peers.metaschedule_network`). Its last network is
compiled, and so are its first network and those after some shares of its time. Its search also runs on our builder and
our device (:mod:`bench.peers.our_engine`), to separate the effect of the search from that of the engine.

We tune the same network with each budget of the grid, each time in a new process with an empty cache, in two forms. The
form "as it comes" has the defaults, with an empty store. The form "from nothing" has no shipped records, no store and
no pre-trained model. The analyzer is the same in both: its constants were fitted on datasets that docs/datasets.md
lists.

At the end, the networks are timed in turn in one harness (:mod:`bench.tuning.network_timing`). Our time is that from
the start of the process to the compiled and checked network. MetaSchedule's time begins with its tuning; its imports
and its compilation do not count.

Each of our runs is independent of the others, so a short run may be lucky. Our time is therefore that of the shortest
run such that it and all longer runs are as fast as the peer. At equal time, the longest run counts, not the best. Our
time is compared with two times of the peer: its whole time, and the time after which it was as fast as in the end. Each
comparison has a mean.

The peer may end with kernels that have no valid trial: it measures on random numbers, with which a look-up in a table
fails. These kernels stay unscheduled, as for its users, and the table shows their number. The peer does not check the
outputs of its kernels either. A network with wrong outputs counts, and the table shows the error.

Each run of a tuner and the timing of each moment is a piece with its own file in the folder ``work``. The same command
resumes an interrupted benchmark, and a sitting can be limited (:mod:`bench.tuning.pieces`). The command lists the
missing pieces, and has no result before all pieces are done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import cores
from bench.result import BenchError, BenchResult
from bench.tuning.curve_pictures import quality_pictures
from bench.tuning.network_timing import Timing, curves, timings
from bench.tuning.pieces import Sitting, models_option, sitting_options, sources, work_folder
from bench.tuning.quality_comparison import ASKED, compared, least, means_of
from bench.tuning.quality_table import table
from bench.tuning.tuner_runs import FORMS, PEER, PEERS, TunerRun, runs

_GRID = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)


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
    """Run the missing pieces and return the result; None while pieces are missing.

    ``ours``: ratio of the peer's time to that of our form "as it comes", as the geometric mean over the models; 0 if
    our form does not become as fast for one of them. Raises :class:`BenchError` for a wrong ``grid``.
    """
    moments = _moments(grid, peer_secs)
    every = list(runs(models, peer_secs, moments, work, seed, method, peer_batch))
    sitting = Sitting(piece_count, sitting_secs, anew=not resume)
    with work_folder(work):
        if not sitting.run(every):
            return None
        timed = _timed(models, every, work, rounds, block_secs)
        every_timing = [piece for pieces in timed.values() for piece in pieces]
        if not sitting.run(every_timing):
            return None
    details = {model: _details(pieces, peer_secs) for model, pieces in timed.items()}
    means, own_means = (means_of(details, secs) for secs in ("peer_secs", "own_secs"))
    ours = means["as it comes"][peer]
    return BenchResult(
        "time-to-quality",
        ours=ours,
        peer=1.0,
        ratio=ours,
        unit="times less time",
        details={
            "peer_secs": peer_secs,
            "peer_batch": peer_batch,
            "method": method,
            "seed": seed,
            "sources": sources([*every, *every_timing]),
            "threads": cores(),
            "asked": ASKED,
            "means": means,
            "own_means": own_means,
            "least": {form: {peer: least(details, form, peer) for peer in PEERS} for form in FORMS},
            "models": details,
        },
    )


def _timed(
    models: Sequence[str], every: Sequence[TunerRun], work: Path, rounds: int, block_secs: float
) -> dict[str, list[Timing]]:
    """Return the timings of each model. All runs in ``every`` have to be done."""
    of_model = {model: [each for each in every if each.model == model] for model in models}
    return {model: timings(model, of_model[model], work, rounds, block_secs) for model in models}


def _details(timed: Sequence[Timing], peer_secs: float) -> dict[str, Any]:
    found = curves(timed)
    return {"curves": found, "against": {peer: compared(found, peer, peer_secs) for peer in PEERS}}


def _moments(grid: str, peer_secs: float) -> tuple[float, ...]:
    try:
        moments = tuple(sorted({float(each) for each in grid.split(",")}))
    except ValueError as error:
        raise BenchError(f"the grid is no list of seconds: {grid}") from error
    if not 0 < moments[0] <= peer_secs or not math.isfinite(moments[-1]):
        raise BenchError(f"the grid needs seconds above 0, the first within the peer's {peer_secs:g}: {grid}")
    return moments


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
            help="Trials of a batch of its scheduler with its own builder, which gives each kernel one first; else its "
            "default, 64. For a network whose kernels would not have had a batch within half of the time.",
        ),
        click.Option(
            ["--grid"],
            default=",".join(f"{secs:g}" for secs in _GRID),
            show_default=True,
            help="Our budgets, in seconds with commas between them.",
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
