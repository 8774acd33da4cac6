"""Number of trials until a candidate within 5% of the best is found, with and without transfer, by replay.

A search starts from a model that was trained on a source. The source has no records of the task on its device class:

- ``workloads``: the other tasks of the same dataset, each task left out in turn (AutoTVM's global and local model); or,
  with ``--from`` and ``--to``, some of its tasks to others, such as C1 to C6 of ResNet-18 to C7 to C9 (figure 8);
- ``class``: records of the same workload on another device class;
- ``pretrained``: the model that is shipped with fleet-tune, on workloads that it was not trained on.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import OTHER_CLASS, labels, other_tasks_path, pick, read
from bench.inputs import note_input
from bench.machine import bench_env
from bench.models.laboratory import load_model, method_named
from bench.processes import die_with_parent
from bench.replay.replay_runs import TOLERANCE, RecordedTask, overall, quartiles
from bench.replay.warm_starts import summed
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from fleet_tune.base.records.datasets.sources import BUILTIN
from fleet_tune.base.task_data import TaskData
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, read_model
from policies.cost_models.knowledge import general_prior, own_prior
from policies.cost_models.protocol import CostModel
from policies.search.methods import Method

METHODS = ("autotvm", "fleet")
Positions = tuple[int, ...]
ASKED = 3.0

_tasks: dict[tuple[str, int], RecordedTask] = {}


def _start() -> None:
    die_with_parent()


def run_with(task: RecordedTask, chosen: Method, seed: int, prior: CostModel | None, limit: int) -> int:
    """Return the number of trials until a candidate is within :data:`TOLERANCE` of the best, at most ``limit``.

    ``prior``: model from which the search starts; None: no transfer. Raise :class:`BenchError` if the search is
    exhausted before.
    """
    search, data, trials = task.search(chosen, seed, prior), task.data, 0
    while not search.exhausted:
        for outcome in task.round(search, chosen, seed):
            trials += 1
            if outcome.cost_secs <= data.best_secs * (1 + TOLERANCE):
                return trials
            if trials >= limit:
                return limit
    raise BenchError(f"{chosen.name} measured all {trials} candidates and did not find the best")


def _one(path: Path, at: int, method: str, seeds: Sequence[int], prior: bytes, limit: int) -> list[int]:
    key = (str(path), at)
    if key not in _tasks:
        _tasks[key] = RecordedTask(read(path)[at])
    model = load_model(prior) if prior else None
    return [run_with(_tasks[key], method_named(method), seed, model, limit) for seed in seeds]


def priors(
    source: str,
    target: Sequence[TaskData],
    other: Sequence[TaskData],
    taught: Sequence[TaskData],
    chosen: Method,
    teachers: Sequence[TaskData] = (),
) -> list[bytes]:
    """Return a saved prior for each target task, or empty bytes if no model could be trained for the task.

    If a method's own model reads only features that all tasks share, the prior is such a model, as in equation 4 of
    AutoTVM. The priors of other methods are our models.

    Args:
        source: ``workloads``, ``class`` or ``pretrained``.
        target: the tasks that are searched.
        other: the tasks of the other device class, for ``class``.
        taught: the training tasks of the general prior of such a method, for ``pretrained``. It replaces the shipped
            model, which is of another kind.
        chosen: the method.
        teachers: the tasks that teach every target, for ``workloads``; empty: all other targets.
    """
    assert chosen.training is not None
    name = chosen.training.teaches
    saved: list[bytes] = []
    shared: CostModel | None = None
    if source == "pretrained" and chosen.starts_from:
        shared = read_model(note_input(BUILTIN_PATHS[chosen.starts_from]))[0]
    elif source == "pretrained" and name:
        shared = general_prior(taught, 0, name, from_analyzer=False)
    elif source == "pretrained":
        shared = read_model(note_input(BUILTIN_PATHS[BUILTIN]))[0]
    for data in target:
        model: CostModel | None
        same = [each for each in other if each.task.workload.hash == data.task.workload.hash]
        rest = list(teachers) or [each for each in target if each is not data]
        if source == "pretrained":
            model = shared
        elif name:
            model = general_prior(same if source == "class" else rest, 0, name, from_analyzer=False)
        elif source == "class":
            model = own_prior(same, data.sketches, data.abstraction, 0)[0]
        else:
            model = general_prior(rest, 0)
        saved.append(b"" if model is None else summed(model).save())
    return saved


def all_cases(dataset: Path) -> dict[str, tuple[Path, str]]:
    """Return the dataset and the title of each case."""
    return {
        "workloads": (dataset, "from the other tasks"),
        "class": (dataset, "from the same tasks on avx2-1"),
        "class, back": (OTHER_CLASS, "avx2-1, from the same tasks on znver5-2"),
        "pretrained": (other_tasks_path(None), "other tasks, from the model that comes with fleet-tune"),
    }


def run(
    dataset: Path,
    methods: Sequence[str],
    seeds: int,
    limit: int,
    jobs: int,
    teachers: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> BenchResult:
    """Return the trials of every method, source and task, with and without transfer, as median and quartiles over the
    seeds. A run that has not found a good candidate after ``limit`` trials counts as ``limit``.

    ``teachers`` and ``targets``: parts of names of tasks. With them, the only case is the transfer from the teachers to
    the targets.
    """
    os.environ.update(bench_env(1))
    began = time.perf_counter()
    some = bool(teachers or targets)
    learned, chosen = between(labels(read(dataset)), teachers, targets) if some else ((), ())
    cases = {"workloads": (dataset, f"from {', '.join(teachers)}")} if some else all_cases(dataset)
    spawn = multiprocessing.get_context("spawn")
    details: dict[str, Any] = {"methods": list(methods), "seeds": seeds, "limit": limit, "asked": ASKED, "cases": {}}
    runs: dict[tuple[str, str, int, bool], Any] = {}
    plain: dict[tuple[Path, str, int], Any] = {}
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start) as pool:
        for case, (path, _) in cases.items():
            everything = list(read(path))
            positions = chosen if some else tuple(range(len(everything)))
            target = [everything[at] for at in positions]
            teaching = [everything[at] for at in learned]
            other = list(read(dataset if path == OTHER_CLASS else OTHER_CLASS))
            taught = [*read(dataset), *read(OTHER_CLASS)]
            for method in methods:
                start = priors(case.partition(",")[0], target, other, taught, method_named(method), teaching)
                saved = dict(zip(positions, start, strict=True))
                for at in positions:
                    if (path, method, at) not in plain:
                        plain[path, method, at] = pool.submit(_one, path, at, method, range(seeds), b"", limit)
                    runs[case, method, at, False] = plain[path, method, at]
                    warm = pool.submit(_one, path, at, method, range(seeds), saved[at], limit) if saved[at] else None
                    runs[case, method, at, True] = warm or plain[path, method, at]
        for case, (path, what) in cases.items():
            names = labels(read(path))
            shown = chosen if some else range(len(names))
            details["cases"][case] = {"what": what, "dataset": path.name, "methods": {}}
            for method in methods:
                tasks = {
                    name: {
                        side: quartiles([float(each) for each in runs[case, method, at, warm].result()])
                        for side, warm in (("without", False), ("with", True))
                    }
                    for at in shown
                    for name in (names[at],)
                }
                without = overall({name: each["without"]["median"] for name, each in tasks.items()})
                with_it = overall({name: each["with"]["median"] for name, each in tasks.items()})
                details["cases"][case]["methods"][method] = {
                    "tasks": tasks,
                    "without": without,
                    "with": with_it,
                    "ratio": without / with_it,
                }
    details["elapsed_secs"] = time.perf_counter() - began
    first = details["cases"]["workloads"]["methods"][methods[0]]
    return BenchResult("transfer", first["with"], first["without"], first["ratio"], "trials", details)


def between(names: Sequence[str], teachers: Sequence[str], targets: Sequence[str]) -> tuple[Positions, Positions]:
    """Return the positions of the teaching tasks and of the target tasks, by parts of their names.

    Raise :class:`BenchError` if either is missing or a task is both.
    """
    if not teachers or not targets:
        raise BenchError("a transfer between tasks has two sides: name some with --from and others with --to")
    found = pick(names, teachers), pick(names, targets)
    if both := set(found[0]) & set(found[1]):
        raise BenchError(f"{names[min(both)]} is on both sides of the transfer: name it once, with --from or with --to")
    return found


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    parts = []
    for case in details["cases"].values():
        methods = list(case["methods"])
        tasks = list(case["methods"][methods[0]]["tasks"])
        rows: list[tuple[str, ...]] = [
            (
                f"`{task}`",
                *(
                    f"{case['methods'][method]['tasks'][task][side]['median']:.0f}"
                    for method in methods
                    for side in ("without", "with")
                ),
            )
            for task in tasks
        ]
        both = (f"{case['methods'][method][side]:.1f}" for method in methods for side in ("without", "with"))
        rows.append(("overall, geometric mean", *both))
        ratios = (cell for method in methods for cell in ("", f"{case['methods'][method]['ratio']:.1f} times fewer"))
        rows.append(("", *ratios))
        header = (case["what"], *(f"`{method}` {side}" for method in methods for side in ("without", "with")))
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)


BENCHMARK = Benchmark(
    name="transfer",
    help="Trials until within 5% of the best, with and without transfer from other workloads and another device class.",
    options=(
        options.dataset(),
        click.Option(["--method", "methods"], multiple=True, default=list(METHODS), show_default=True),
        click.Option(["--from", "teachers"], multiple=True, help="Part of the name of a task that teaches; with --to."),
        click.Option(["--to", "targets"], multiple=True, help="Part of the name of a task that is taught by these."),
        options.count("--seeds", 5),
        options.count("--limit", 256, "Trials of a run at most.", least=16),
        options.jobs(),
    ),
    short=("--seeds", "1", "--limit", "64"),
    run=run,
    table=table,
)
