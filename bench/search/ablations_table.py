"""Figures of the ablations' runs, and the table of their result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.replay.bootstrap import Interval, over_tasks, ratio, relative
from bench.replay.replay_runs import Replayed, overall, quartiles
from bench.tables import markdown, median_and_quartiles

DOUBLED = " x2"
"""Mark in the name of a variant that measures two candidates per trial: it has half as many trials as measurements."""


def figures(
    runs: Mapping[tuple[str, int], Sequence[Replayed]], variants: Sequence[str], tasks: Sequence[int]
) -> dict[str, Any]:
    """Return these figures of each variant, of the trials until a run has arrived:

    - ``sum``: quartiles over the seeds of the sum over the tasks
    - ``overall``: geometric mean of the tasks' medians, with the ``interval`` of a bootstrap over the tasks
    - ``relative``: the same for the medians relative to those of the paper's first variant, task by task
    """
    trials = {
        name: {str(at): [trials_of(name, each.trials) for each in runs[name, at]] for at in tasks} for name in variants
    }
    medians = {
        name: {at: quartiles(by_seed)["median"] for at, by_seed in by_task.items()} for name, by_task in trials.items()
    }
    first: dict[str, str] = {}
    for name in variants:
        first.setdefault(name.partition(":")[0], name)
    return {
        name: {
            "sum": quartiles([float(sum(seed)) for seed in zip(*trials[name].values(), strict=True)]),
            "overall": overall(medians[name]),
            "interval": asdict(over_tasks(list(medians[name].values()))),
            "relative": asdict(relative(medians[name], medians[first[name.partition(":")[0]]])),
        }
        for name in variants
    }


def trials_of(variant: str, measurements: int) -> float:
    """Return the trials of a variant for a number of measurements."""
    return float(math.ceil(measurements / 2) if DOUBLED in variant else measurements)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    resampled = all("relative" in line for line in details["lines"].values())  # not in results of earlier versions
    rows = [
        (
            name,
            median_and_quartiles(line["sum"]),
            f"{line['overall']:.1f}",
            *((Interval(**line["relative"]).text(ratio),) if resampled else ()),
            f"{details['seeds'][name]}",
        )
        for name, line in details["lines"].items()
    ]
    head = (f"trials to within 5%, {len(details['tasks'])} tasks", "sum of each seed", "geometric mean")
    return markdown((*head, *(("relative to the first, task by task",) if resampled else ()), "seeds"), rows)
