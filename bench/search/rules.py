"""Effect of each rule of ``fleet``, over several datasets at once: the method without the rule against the method.

A variant is the method with one or several rules removed: their parameter has its neutral value, or the published one.
The trials of a task are those until a candidate is within 5% of the best of the dataset, the mean over the seeds. The
figure of a variant is the geometric mean, over all tasks of all datasets, of its trials relative to those of the
unchanged method; below 1 the method is better without the rule. The interval comes from a paired bootstrap over the
tasks, because tasks differ more than seeds do. For each dataset there is only the geometric mean.

By default the searches are confined to the recorded candidates. With ``--open`` they may propose any candidate of the
sketches' spaces, and a model of the records imputes the missing costs (:mod:`bench.replay.open_replay`). A rule must be
tested in both ways: a rule without effect among a few hundred recorded candidates may free a search that is stuck in
the open space.

For backward elimination, remove the rule whose removal costs least, and name it with ``--without`` to find the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import DATA, labels, read
from bench.replay import open_replay, replay_pool
from bench.replay.bootstrap import over_tasks
from bench.replay.cost_means import KINDS, ImputationModel
from bench.replay.replay_pool import Call, played
from bench.replay.replay_runs import Replayed, run_task
from bench.replay.run_cache import REPLAYED, RunCache, cache_code
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from policies.search.allocation import UcbSketches
from policies.search.bandits import EXPLORATION_CONSTANT
from policies.search.methods import Method, method_named
from policies.search.trainer import Training

Change = Callable[[Method], Method]

DEVELOPMENT = ("other-tasks", "other-class", "grouped", "rows", "strided")
"""Folders of ``bench/data`` whose datasets ``fleet`` was developed on, besides the dataset in ``bench/data`` itself."""
_FILLING: ImputationModel = KINDS[0]
_MOST_TRIALS = 256
"""Trials after which a run in the open spaces ends if it has not arrived."""
BASE = "base"


def _sketches(method: Method) -> UcbSketches:
    assert isinstance(method.sketches, UcbSketches)
    return method.sketches


def _training(method: Method) -> Training:
    assert method.training is not None
    return method.training


RULES: dict[str, Change] = {
    "exploration of sketches below the paper's": lambda method: replace(
        method, sketches=replace(_sketches(method), exploration_constant=EXPLORATION_CONSTANT)
    ),
    "prior visits": lambda method: replace(method, sketches=replace(_sketches(method), prior_visits=0.0)),
    "radius": lambda method: replace(method, selection=replace(method.selection, radius=0.0)),
    "contested share": lambda method: replace(method, selection=replace(method.selection, contested=0.0)),
    "start from the analyzer": lambda method: replace(method, training=replace(_training(method), from_analyzer=False)),
}
"""By rule, the change of the method that removes it."""


def without(names: Sequence[str]) -> Method:
    """Return ``fleet`` without the rules ``names``."""
    method = method_named("fleet")
    for name in names:
        method = RULES[name](method)
    return method


def variants(gone: Sequence[str], wanted: Sequence[str]) -> dict[str, Method]:
    """Return the variants by name: ``BASE``, the method without the rules ``gone``; if there are such rules, the method
    with all rules; and ``BASE`` without each other rule, or only without each of ``wanted`` if it is not empty.

    Raises :class:`BenchError` for an unknown rule.
    """
    unknown = [name for name in (*gone, *wanted) if name not in RULES]
    if unknown:
        raise BenchError(f"there is no rule {unknown[0]!r}: {', '.join(RULES)}")
    left = [name for name in wanted or RULES if name not in gone]
    whole = {"with all rules": without([])} if gone else {}
    return {BASE: without(gone), **whole, **{f"without {name}": without([*gone, name]) for name in left}}


def run(
    datasets: Sequence[Path],
    gone: Sequence[str],
    wanted: Sequence[str],
    seeds: int,
    jobs: int,
    parts: Path | None,
    in_open: bool = False,
) -> BenchResult:
    """Return the lines of :func:`compared`. ``ours``: the geometric mean over the tasks of the trials of ``BASE``.

    ``gone`` and ``wanted``: see :func:`variants`; ``parts``: a file that caches runs; ``in_open``: search in the open
    spaces.
    """
    began = time.perf_counter()
    methods = variants(gone, wanted)
    trials: dict[str, list[float]] = {name: [] for name in methods}
    sizes: list[tuple[str, int]] = []
    for dataset in datasets:
        names = labels(read(dataset))
        made = (_in_open if in_open else _confined)(dataset, names, methods, seeds, jobs, parts)
        for name, found in trials.items():
            found += [float(np.mean(made[name, at])) for at in range(len(names))]
        sizes.append((dataset.stem if dataset.parent == DATA else f"{dataset.parent.name}/{dataset.stem}", len(names)))
    details = {
        "without": list(gone),
        "sets": [list(each) for each in sizes],
        "seeds": seeds,
        "open": in_open,
        "lines": compared({name: np.array(found) for name, found in trials.items()}, [size for _, size in sizes]),
        "elapsed_secs": time.perf_counter() - began,
    }
    return BenchResult("rules", float(np.exp(np.log(trials[BASE]).mean())), None, None, "trials", details)


Trials = dict[tuple[str, int], list[int]]
"""Trials of each seed, by variant and task."""


def _confined(
    dataset: Path, names: Sequence[str], methods: Mapping[str, Method], seeds: int, jobs: int, parts: Path | None
) -> Trials:
    calls = {
        (name, at, seed): Call(method, label, seed, _one, (method, at, seed))
        for seed in range(seeds)
        for name, method in methods.items()
        for at, label in enumerate(names)
    }
    made = played(dataset, jobs, RunCache(parts, dataset, REPLAYED, cache_code(parts, __name__)), calls)
    pairs = [(name, at) for name in methods for at in range(len(names))]
    return {(name, at): [made[name, at, seed].trials for seed in range(seeds)] for name, at in pairs}


def _in_open(
    dataset: Path, names: Sequence[str], methods: Mapping[str, Method], seeds: int, jobs: int, parts: Path | None
) -> Trials:
    of_each = dict.fromkeys(methods, seeds)
    runs, _ = open_replay.play(dataset, range(len(names)), (_FILLING,), methods, of_each, _MOST_TRIALS, jobs, parts)
    return {key: [each.trials for each in found] for key, found in runs[_FILLING].items()}


def _one(method: Method, at: int, seed: int) -> Replayed:
    return run_task(replay_pool.tasks[at], method, seed, 0)


def compared(trials: Mapping[str, NDArray[np.float64]], sizes: Sequence[int]) -> dict[str, Any]:
    """Return for each variant except ``BASE``: ``ratio``, the geometric mean over the tasks of its trials relative to
    those of ``BASE``; ``low`` and ``high``, the interval of a paired bootstrap; ``by_set``, the ratio for each dataset.

    ``sizes``: the number of tasks of each dataset, in the order of the tasks.
    """
    base = np.log(trials[BASE])
    ends = np.cumsum(sizes)
    lines = {}
    for name, found in trials.items():
        if name == BASE:
            continue
        ratios = np.log(found) - base
        interval = over_tasks(np.exp(ratios).tolist())
        lines[name] = {
            "ratio": interval.mean,
            "low": interval.low,
            "high": interval.high,
            "by_set": [float(np.exp(part.mean())) for part in np.split(ratios, ends[:-1])],
        }
    return lines


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows = [
        (name, f"{line['ratio']:.3f} ({line['low']:.3f} to {line['high']:.3f})", *(f"{x:.2f}" for x in line["by_set"]))
        for name, line in sorted(details["lines"].items(), key=lambda item: item[1]["ratio"])
    ]
    gone = f", without {', '.join(details['without'])}" if details["without"] else ""
    tasks = sum(size for _, size in details["sets"])
    where = "in open spaces" if details["open"] else "among recorded candidates"
    head = f"trials relative to fleet{gone}, {where}: {tasks} tasks, {details['seeds']} seeds"
    return markdown((head, "all, and 90% of resamples", *(f"{name} ({size})" for name, size in details["sets"])), rows)


def _datasets(_context: click.Context, _option: click.Parameter, given: Sequence[Path]) -> tuple[Path, ...]:
    if given:
        return tuple(path.absolute() for path in given)
    return tuple(
        path for folder in (DATA, *(DATA / name for name in DEVELOPMENT)) for path in sorted(folder.glob("*.ftd"))
    )


BENCHMARK = Benchmark(
    name="rules",
    help="What each rule of fleet brings, over all development sets together, by replay.",
    options=(
        click.Option(
            ["--dataset", "datasets"],
            multiple=True,
            type=click.Path(path_type=Path),
            callback=_datasets,
            help="File of 'fleet-tune dataset'; else all development sets.",
        ),
        click.Option(["--without", "gone"], multiple=True, help="A rule that is taken away from all variants."),
        click.Option(["--rule", "wanted"], multiple=True, help="A rule to look at; else all."),
        click.Option(["--open", "in_open"], is_flag=True, help="Search in the whole spaces, with costs filled in."),
        options.count("--seeds", 5),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--dataset", "bench/data/other-tasks/znver5-2.ftd", "--rule", "radius", "--seeds", "1"),
    run=run,
    table=table,
)
