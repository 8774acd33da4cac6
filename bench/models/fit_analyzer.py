"""``python -m bench fit-analyzer``: fits the constants of the CPU analyzer to recorded candidates.

*Objective.* Let ``e = log(measured seconds) - log(predicted seconds)`` for a candidate that ran. The loss of a task is
the mean of ``|e - median(e)|`` over its candidates. It measures how well the analyzer predicts the ratios between the
times of candidates, independently of their level. The objective is the mean loss over the tasks of all sets.

*Search.* Coordinate descent: each constant in turn is multiplied by a step, then divided by it, and keeps the first
value that lowers the objective. The step shrinks from pass to pass. Facts of a processor (ports, latencies, page size)
are not fitted. Limits that rule candidates out are not fitted either, because the objective does not depend on them.

The shipped values were not made by this command. They were found by hand, from single effects in the records of the
same sets. The command prints how far its result is from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.datasets import DATA, read
from bench.result import BenchError
from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import score
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.cpu.fitted import FITTED
from policies.arrays import Floats, Matrix

DEVELOPMENT = (
    "znver5-2.ftd",
    "other-tasks/znver5-2.ftd",
    "other-class/avx2-1.ftd",
    "grouped/znver5-1.ftd",
    "rows/znver4-1.ftd",
    "strided/znver4-2.ftd",
)
"""The sets of ``bench/data`` from which the shipped constants were found."""
KEPT = frozenset(
    {
        "fma_ports",
        "fma_latency",
        "load_ports",
        "window_operations",
        "flop_per_fma",
        "page_bytes",
        "max_unrolled_points",
        "max_spill_factor",
        "rows.clock_hertz",
    }
)
"""Constants that are not fitted: facts of a processor, and limits that rule candidates out."""
STEPS = (1.5, 1.2, 1.08)
"""Factor of a step in each pass."""


@dataclass(frozen=True)
class Part:
    """Measured candidates of one sketch of a task."""

    sketch: Sketch
    matrix: Matrix
    log_secs: Floats
    device: DeviceAbstraction


Task = Sequence[Part]


def read_tasks(sets: Sequence[Path], limit: int, seed: int = 0) -> list[Task]:
    """Return the tasks of ``sets``, each with a random sample of about ``limit`` candidates that ran on a CPU and whose
    sketch is described. Tasks with fewer than two such candidates are omitted.

    Raise :class:`BenchError` if no task is left.
    """
    rng = np.random.default_rng(seed)
    tasks: list[Task] = []
    for path in sets:
        for data in read(path):
            parts = []
            share = min(limit / max(len(data), 1), 1.0)
            for at, (sketch, matrix) in enumerate(zip(data.sketches, data.decisions, strict=True)):
                cost_secs = data.cost_secs[data.rows(at)]
                ran = np.flatnonzero(np.isfinite(cost_secs))
                chosen = np.sort(rng.permutation(ran)[: math.ceil(share * len(ran))])
                if sketch.described and data.abstraction.kind == "cpu" and len(chosen):
                    parts.append(Part(sketch, matrix[chosen], np.log(cost_secs[chosen]), data.abstraction))
            if sum(len(part.matrix) for part in parts) > 1:
                tasks.append(parts)
    if not tasks:
        raise BenchError("the sets have no described candidate that ran on a CPU")
    return tasks


def loss(task: Task, constants: CpuConstants) -> float:
    """Return the loss of one task; see the module's docstring."""
    errors = [part.log_secs - np.log(score(part.sketch, part.matrix, part.device, constants)[0]) for part in task]
    error = np.concatenate(errors).astype(np.float64)
    return float(np.abs(error - np.median(error)).mean())


def objective(tasks: Sequence[Task], constants: CpuConstants) -> float:
    """Return the mean loss of the tasks."""
    return float(np.mean([loss(task, constants) for task in tasks]))


def values_of(constants: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the constants with their names. A constant of a part is called ``part.name``."""
    for field in fields(constants):
        value = getattr(constants, field.name)
        if is_dataclass(value):
            yield from values_of(value, f"{field.name}.")
        else:
            yield prefix + field.name, value


def with_value(constants: CpuConstants, name: str, value: float) -> CpuConstants:
    """Return the constants with another value of the constant ``name``."""
    part, _, inner = name.rpartition(".")
    if not part:
        return replace(constants, **{name: value})  # type: ignore[arg-type]
    return replace(constants, **{part: replace(getattr(constants, part), **{inner: value})})


def fit(tasks: Sequence[Task], start: CpuConstants, steps: Sequence[float] = STEPS) -> tuple[CpuConstants, float]:
    """Return the constants that coordinate descent finds from ``start``, and their objective."""
    best, least = start, objective(tasks, start)
    for step in steps:
        for name in [name for name, _ in values_of(start) if name not in KEPT]:
            for factor in (step, 1.0 / step):
                tried = with_value(best, name, dict(values_of(best))[name] * factor)
                found = objective(tasks, tried)
                if found < least:
                    best, least = tried, found
                    break
    return best, least


def jittered(constants: CpuConstants, factor: float, seed: int) -> CpuConstants:
    """Return the constants with each fitted one multiplied by a random factor between ``1 / factor`` and ``factor``."""
    rng = np.random.default_rng(seed)
    for name, value in list(values_of(constants)):
        if name not in KEPT:
            constants = with_value(constants, name, value * float(factor ** rng.uniform(-1.0, 1.0)))
    return constants


def module_text(constants: CpuConstants, provenance: str) -> str:
    """Return the text of a module such as :mod:`policies.analysis.cpu.fitted`."""
    lines = ["FITTED = CpuConstants("]
    for field in fields(constants):
        value = getattr(constants, field.name)
        if is_dataclass(value):
            lines.append(f"    {field.name}={type(value).__name__}(")
            lines += [f"        {each.name}={getattr(value, each.name)!r}," for each in fields(value)]
            lines.append("    ),")
        else:
            lines.append(f"    {field.name}={value!r},")
    lines.append(")")
    return "\n".join(
        [
            '"""Values of the CPU analyzer\'s constants, and where they come from."""',
            "",
            "from __future__ import annotations",
            "",
            "from policies.analysis.cpu.constants import CpuConstants, MoveConstants, RowWiseConstants",
            "",
            f'PROVENANCE = """{provenance.strip()}"""',
            '"""Data, date and command that the values come from."""',
            "",
            *lines,
            "",
        ]
    )


def compared(fitted: CpuConstants, shipped: CpuConstants = FITTED) -> Mapping[str, float]:
    """Return the ratio of each fitted constant to the shipped one, by name, for those that differ."""
    known = dict(values_of(shipped))
    return {name: value / known[name] for name, value in values_of(fitted) if value != known[name]}


def command() -> click.Command:
    """Return the command ``fit-analyzer``."""

    def call(
        sets: tuple[Path, ...], limit: int, jitter: float, seed: int, passes: int, out: Path | None, as_json: bool
    ) -> None:
        chosen = sets or tuple(DATA / name for name in DEVELOPMENT)
        tasks = read_tasks(chosen, limit)
        start = jittered(FITTED, jitter, seed)
        fitted, least = fit(tasks, start, STEPS[:passes])
        ratios = compared(fitted)
        result = {
            "tasks": len(tasks),
            "candidates": sum(len(part.matrix) for task in tasks for part in task),
            "objective": {"shipped": objective(tasks, FITTED), "start": objective(tasks, start), "fitted": least},
            "ratio_to_shipped": ratios,
        }
        if out is not None:
            names = ", ".join(str(path.relative_to(DATA) if path.is_relative_to(DATA) else path) for path in chosen)
            options = f"--limit {limit} --jitter {jitter:g} --seed {seed} --passes {passes}"
            out.write_text(
                module_text(
                    fitted,
                    f"Fitted on {date.today()} by 'python -m bench fit-analyzer {options}' on {names}: "
                    f"{least:.4f} in log seconds, {result['objective']['shipped']:.4f} with the values before.",  # type: ignore[index]
                )
            )
        if as_json:
            click.echo(json.dumps(result))
            return
        for name, found in result["objective"].items():  # type: ignore[attr-defined]
            click.echo(f"{name}: {found:.4f} in log seconds")
        for name, ratio in ratios.items():
            click.echo(f"  {name}: {ratio:.3f} times the shipped value")

    options = [
        click.Option(
            ["--dataset", "sets"],
            multiple=True,
            type=click.Path(exists=True, path_type=Path),
            help="File of 'fleet-tune dataset'; else the development sets of bench/data.",
        ),
        click.Option(["--limit"], type=click.IntRange(min=2), default=100, show_default=True, help="Rows of a task."),
        click.Option(
            ["--jitter"],
            type=click.FloatRange(min=1.0),
            default=1.0,
            show_default=True,
            help="Start from the shipped values times random factors up to this one.",
        ),
        click.Option(["--seed"], type=int, default=0, show_default=True, help="Seed of the jitter."),
        click.Option(["--passes"], type=click.IntRange(1, len(STEPS)), default=len(STEPS), show_default=True),
        click.Option(["--out"], type=click.Path(path_type=Path), help="Write the values as a module here."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
    ]
    text = "Fit the constants of the CPU analyzer anew on recorded candidates."
    return click.Command("fit-analyzer", params=list(options), callback=call, help=text)
