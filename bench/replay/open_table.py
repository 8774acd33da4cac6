"""Figures and tables of runs in the open space of recorded tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.replay.bootstrap import over_tasks, ratio, relative
from bench.replay.open_runs import OpenRun
from bench.replay.replay_runs import overall, quartiles
from bench.replay.replay_table import OURS
from bench.tables import markdown


def figures(
    runs: Mapping[tuple[str, int], Sequence[OpenRun]], names: Sequence[str], tasks: Sequence[int]
) -> dict[str, Any]:
    """Return the figures of runs by method; those in ``trials`` by method and task.

    ``trials``: quartiles of the trials; a run that did not arrive counts with all its trials. ``overall`` and ``sum``:
    geometric mean and sum of the tasks' medians. ``seed_sum``: quartiles over the seeds of the sum over the tasks.
    ``missed``: number of runs that did not arrive. ``uninformed``: sum over the tasks of the median number of trials
    that were drawn at random before there was any record. ``recorded``: share of all trials whose candidate is
    recorded. ``search_secs``: sum over the tasks of the median seconds of search.

    Args:
        runs: Runs by (method, task).
        names: Names of the ``tasks``.
        tasks: Positions of the tasks in the dataset.
    """
    methods = list(dict.fromkeys(name for name, _ in runs))

    def medians(method: str, value: Callable[[OpenRun], float]) -> dict[str, float]:
        return {
            name: quartiles([value(each) for each in runs[method, at]])["median"]
            for name, at in zip(names, tasks, strict=True)
        }

    every = {method: [each for at in tasks for each in runs[method, at]] for method in methods}
    trials = {method: medians(method, lambda each: each.trials) for method in methods}
    return {
        "trials": {
            method: {
                name: quartiles([float(each.trials) for each in runs[method, at]])
                for name, at in zip(names, tasks, strict=True)
            }
            for method in methods
        },
        "overall": {method: overall(trials[method]) for method in methods},
        "sum": {method: sum(trials[method].values()) for method in methods},
        "seed_sum": {
            method: quartiles(
                [
                    float(sum(each.trials for each in seed))
                    for seed in zip(*(runs[method, at] for at in tasks), strict=True)
                ]
            )
            for method in methods
        },
        "missed": {method: sum(not each.arrived for each in every[method]) for method in methods},
        "uninformed": {method: sum(medians(method, lambda each: each.uninformed).values()) for method in methods},
        "recorded": {
            method: sum(each.recorded for each in every[method]) / sum(each.trials for each in every[method])
            for method in methods
        },
        "search_secs": {method: sum(medians(method, lambda each: each.search_secs).values()) for method in methods},
    }


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    most = details["most_trials"]
    parts = []
    for kind, found in details["fillings"].items():
        ranked = sorted(details["methods"], key=lambda method: found["sum"][method])
        columns = [f"`{method}`" for method in ranked]
        rows = [
            (f"`{task}`", *(_quartiles(found["trials"][method][task], most) for method in ranked))
            for task in details["tasks"]
        ]
        medians = {method: {task: its["median"] for task, its in found["trials"][method].items()} for method in ranked}
        base = OURS if OURS in ranked else ranked[0]
        rows += [
            ("overall, geometric mean", *(over_tasks(list(medians[m].values())).text(_count) for m in ranked)),
            (f"relative to `{base}`, task by task", *(relative(medians[m], medians[base]).text(ratio) for m in ranked)),
        ]
        rows += [
            (label, *(write(found[key][method]) for method in ranked))
            for label, key, write in (
                ("sum over the tasks", "sum", _count),
                ("sum of each seed", "seed_sum", _quartiles),
                (f"runs that end after {most} trials without it", "missed", str),
                ("of the sum at random before any record", "uninformed", _count),
                ("seconds of search", "search_secs", _count),
            )
        ]
        rows += [
            (label, *(f"{details[key][method]}" for method in ranked))
            for label, key in (("trials of a round", "batch"), ("seeds", "seeds"))
        ]
        parts.append(markdown((f"trials to within 5% of the best measured, `{kind}`", *columns), rows))
    models = [
        (
            f"`{task}`, `{kind}`",
            f"{its['rank']:.2f}",
            f"{its['fast_rank']:.2f}",
            f"{its['deviation']:.2f}",
            f"{its['fast_deviation']:.2f}",
            f"{its['spread']:.2f}",
            f"{100 * of['near_best'] / of['candidates']:.1f}%",
            f"{100 * its['at_goal']:.1f}%",
        )
        for task, of in details["tasks"].items()
        for kind, found in details["fillings"].items()
        for its in (found["model"][task],)
    ]
    head = (
        "what the models say of held-out records, in log seconds",
        "rank correlation",
        "of the fastest quarter",
        "deviation of the errors",
        "of the tenth predicted fastest",
        "of the costs",
        "measured candidates at the target",
        "of the open space",
    )
    return "\n\n".join([*parts, markdown(head, models)])


def _count(count: float) -> str:
    """Return a mean number; below ten it has one decimal, which distinguishes methods."""
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}"


def _quartiles(trials: Mapping[str, float], most: float = float("inf")) -> str:
    """Return ``median (lower quartile to upper)``. A value of at least ``most`` is written as ``most`` and a plus sign,
    because the run ended there."""
    median, low, high = (f"{trials[key]:.0f}" if trials[key] < most else f"{most}+" for key in ("median", "q1", "q3"))
    return f"{median} ({low} to {high})"
