"""Reports on a dataset: a table for people, JSON values for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet_tune.base.domain import Outcome
from fleet_tune.base.results import Collected
from fleet_tune.base.task_data import OUTCOMES, Dataset, TaskData
from fleet_tune.report.json_output import json_line
from fleet_tune.report.run import cut, fact_grid, format_outcomes, plural
from fleet_tune.report.words import NONE, format_secs


def render_dataset(dataset: Dataset, path: Path) -> RenderableType:
    """Render a row for each task, then the outcomes, the devices that measured, and the size of the file."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task")
    table.add_column("device class")
    for name in ("sketches", "candidates", "failed", "best", "median", "best GFLOP/s", "spread"):
        table.add_column(name, justify="right")
    for data in dataset:
        facts = _facts(data)
        table.add_row(
            cut(data.task.workload.name),
            cut(data.task.device_class.name),
            f"{facts['described']} of {facts['sketches']}",
            str(len(data)),
            str(len(data) - int(data.ok.sum())),
            Text(format_secs(facts["best_secs"]), "bold"),
            format_secs(facts["median_secs"]),
            NONE if facts["best_gflops"] is None else f"{facts['best_gflops']:.1f}",
            NONE if facts["median_spread"] is None else f"{facts['median_spread']:.1%}",
        )
    facts_grid = fact_grid()
    outcomes = {outcome.value: sum(_count(data, outcome) for data in dataset) for outcome in OUTCOMES}
    facts_grid.add_row("outcomes", Text(format_outcomes(outcomes)))
    for fingerprint in dataset.fingerprints:
        what = f"{fingerprint.cpu_model}, {plural(fingerprint.threads, 'thread')}, TVM {fingerprint.tvm_version}"
        facts_grid.add_row(fingerprint.device_class.name, Text(what))
    facts_grid.add_row("file", Text(f"{path}, {path.stat().st_size / 1e6:.2f} MB"))
    title = Text.assemble((dataset.network or path.name, "bold"))
    title.append(f": {plural(dataset.candidates, 'candidate')} of {plural(len(dataset), 'task')}")
    return Group(title, table, facts_grid)


def render_collected(result: Collected) -> RenderableType:
    """Render the end of collecting: the new records, their place, and the next step."""
    facts = fact_grid()
    total = sum(result.outcomes.values())
    facts.add_row("trials", Text(f"{total} ({format_outcomes(result.outcomes)}), {result.new_trials} of them now"))
    facts.add_row("records", Text(str(result.out / "records.db")))
    facts.add_row("dataset", Text(NONE if result.dataset is None else str(result.dataset)))
    parts: list[RenderableType] = [facts]
    if result.interrupted:
        parts.append(Text("\nStopped early. Everything measured is stored; the same command goes on.", "yellow"))
    return Group(*parts)


def dataset_json(dataset: Dataset, path: Path) -> str:
    """Return one line of JSON: the file, its network (``model``), the figures of every task. Unknown ones are null."""
    return json_line(
        {
            "file": str(path),
            "bytes": path.stat().st_size,
            "model": dataset.network,
            "device_classes": [fingerprint.device_class.name for fingerprint in dataset.fingerprints],
            "tasks": [_facts(data) for data in dataset],
        }
    )


def collected_json(result: Collected) -> str:
    """Return one line of JSON. Its keys are the fields of :class:`fleet_tune.base.results.Collected`, but the network's
    is ``model``, and the signal is left out."""
    return json_line(
        {
            "model": result.network,
            "out": str(result.out),
            "dataset": None if result.dataset is None else str(result.dataset),
            "outcomes": dict(result.outcomes),
            "new_trials": result.new_trials,
            "elapsed_secs": result.elapsed_secs,
            "interrupted": result.interrupted,
        }
    )


def _facts(data: TaskData) -> dict[str, Any]:
    ran = bool(data.ok.any())
    return {
        "task_id": data.task.id,
        "name": data.task.workload.name,
        "device_class": data.task.device_class.name,
        "sketches": len(data.sketches),
        "described": sum(sketch.described for sketch in data.sketches),
        "candidates": len(data),
        "outcomes": {outcome.value: count for outcome in OUTCOMES if (count := _count(data, outcome))},
        "best_secs": data.best_secs if ran else None,
        "median_secs": float(np.median(data.cost_secs[data.ok])) if ran else None,
        "best_gflops": data.task.workload.flop / data.best_secs / 1e9 if ran else None,
        "median_spread": float(np.median(data.spread[data.ok])) if ran else None,
        "trial_secs": float(data.build_secs.sum() + data.measure_secs.sum()),
    }


def _count(data: TaskData, outcome: Outcome) -> int:
    return int((data.outcome == OUTCOMES.index(outcome)).sum())
