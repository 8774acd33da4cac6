"""Figures and tables of a replay's runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bench.replay.bootstrap import over_tasks, ratio, relative
from bench.replay.replay_runs import CURVE, Replayed, overall, quartiles
from bench.tables import markdown

OURS = "fleet"
"""The method that the others are compared with, if it is among the methods of a table."""


def figures(
    runs: Mapping[tuple[str, int], Sequence[Replayed]],
    totals: Mapping[str, Sequence[int]],
    names: Sequence[str],
    tasks: Sequence[int],
    drawn: Collection[str],
) -> dict[str, Any]:
    """Return the figures of runs by method (or variant); those in ``trials`` by method and task.

    ``trials``: quartiles of the trials. ``overall`` and ``sum``: geometric mean and sum of the tasks' medians.
    ``seed_sum``: quartiles over the seeds of the sum over the tasks. ``uninformed``: sum over the tasks of the median
    number of trials that were drawn at random before there was any record. ``overall_trial_secs``: geometric mean over
    the tasks of the median seconds that the trials took. ``curves``: for every number of trials of :data:`CURVE` the
    geometric mean over the tasks of the median best so far, as a share of the best possible speed. ``network``:
    quartiles of the trials of all tasks together.

    Args:
        runs: Runs by (method or variant, task).
        totals: Trials of all tasks together, by variant.
        names: Names of the ``tasks``.
        tasks: Positions of the tasks in the dataset.
        drawn: Methods that have curves. Runs of other methods end when they arrive, or were cached without curves.
    """
    methods = list(dict.fromkeys(name for name, _ in runs))
    trials = {
        method: {
            name: quartiles([each.trials for each in runs[method, at]]) for name, at in zip(names, tasks, strict=True)
        }
        for method in methods
    }
    return {
        "trials": trials,
        "overall": {method: overall({k: v["median"] for k, v in by.items()}) for method, by in trials.items()},
        "sum": {method: sum(each["median"] for each in by.values()) for method, by in trials.items()},
        "seed_sum": {
            method: quartiles(
                [
                    float(sum(run.trials for run in seed))
                    for seed in zip(*(runs[method, at] for at in tasks), strict=True)
                ]
            )
            for method in methods
        },
        "uninformed": {
            method: sum(float(np.median([each.uninformed for each in runs[method, at]])) for at in tasks)
            for method in methods
        },
        "overall_trial_secs": {
            method: overall({str(at): float(np.median([r.trial_secs for r in runs[method, at]])) for at in tasks})
            for method in methods
        },
        "curve_trials": list(CURVE),
        "curves": {
            method: [
                # A share of 0 (no success yet) has no logarithm: it counts as 1e-3.
                overall({str(at): max(float(np.median([r.curve[i] for r in runs[method, at]])), 1e-3) for at in tasks})
                for i in range(len(CURVE))
            ]
            for method in methods
            if method in drawn
        },
        "network": {name: quartiles([float(each) for each in values]) for name, values in totals.items()},
    }


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    ranked = sorted(details["methods"], key=lambda method: details["overall"][method])
    rows = [
        (f"`{task}` ({near})", *(_quartiles(details["trials"][method][task]) for method in ranked))
        for task, near in details["dataset"]["near_best"].items()
    ]
    medians = {
        method: {task: figures["median"] for task, figures in details["trials"][method].items()} for method in ranked
    }
    base = OURS if OURS in ranked else ranked[0]
    rows.append(("overall, geometric mean", *(over_tasks(list(medians[m].values())).text(_trials) for m in ranked)))
    rows.append(
        (
            f"relative to `{base}`, task by task",
            *(relative(medians[m], medians[base]).text(ratio) for m in ranked),
        )
    )
    most = max(details["seeds"].values())
    rows.append(("sum over the tasks", *(_trials(details["sum"][method]) for method in ranked)))
    rows.append(("sum of each seed", *(_quartiles(details["seed_sum"][method]) for method in ranked)))
    rows.append(
        ("of these at random before any record", *(_trials(details["uninformed"][method]) for method in ranked))
    )
    secs = details["overall_trial_secs"]
    rows.append(("seconds to build and measure them, geometric mean", *(f"{secs[method]:.3g}" for method in ranked)))
    rows.append(("trials of a round", *(f"{details['batch'][method]}" for method in ranked)))
    if not details["pretrained"] and details.get("starts"):
        rows.append(("starts from", *(details["starts"].get(method, "nothing") for method in ranked)))
    learned = details.get("learned_from")
    if learned:
        counts = (f"{learned[method]:,} candidates" if method in learned else "nothing" for method in ranked)
        rows.append(("learned from", *counts))
    columns = [f"`{method}`" + _of_seeds(details["seeds"][method], most) for method in ranked]
    if details["pretrained"]:
        columns = [f"{column}, pretrained" for column in columns]
    parts = [markdown(("trials to within 5% of the best (candidates there)", *columns), rows)]
    variants = [name for name in details["trials"] if " - " in name or " + " in name]
    if variants:
        bases = list(dict.fromkeys(name.split()[0] for name in variants))
        effects = list(dict.fromkeys(name.split()[-1] for name in variants))
        switches: list[tuple[str, ...]] = []
        for effect in effects:
            cells: list[str] = []
            for base in bases:
                switched = next(name for name in variants if name.split()[0] == base and name.split()[-1] == effect)
                with_it, without = (base, switched) if " - " in switched else (switched, base)
                cells += [_trials(details["overall"][with_it]), _trials(details["overall"][without])]
            switches.append((effect, *cells))
        columns = [f"`{base}` {state}" for base in bases for state in ("with", "without")]
        parts.append(markdown(("overall trials, effect on and off", *columns), switches))
    if details.get("curves"):
        shares = [(f"`{method}`", *(f"{share:.2f}" for share in curve)) for method, curve in details["curves"].items()]
        parts.append(markdown(("share of the best speed after trials", *map(str, details["curve_trials"])), shares))
    if details["network"]:
        together = [(name, _quartiles(figures)) for name, figures in details["network"].items()]
        parts.append(markdown(("all tasks together", "trials to within 5% of the best sum"), together))
    return "\n\n".join(parts)


def _of_seeds(seeds: int, most: int) -> str:
    """Return the note of a column that has fewer seeds than the others."""
    return "" if seeds == most else f", {seeds} seeds"


def _trials(count: float) -> str:
    """Return a mean number of trials; below ten it has one decimal, which distinguishes methods."""
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}"


def _quartiles(figures: Mapping[str, float]) -> str:
    """Return ``median (lower quartile to upper)``."""
    return f"{figures['median']:.0f} ({figures['q1']:.0f} to {figures['q3']:.0f})"
