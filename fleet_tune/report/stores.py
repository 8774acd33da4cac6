"""Reports on a record store and on which records count: tables for people, JSON values for programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet_tune.base.domain import Task
from fleet_tune.base.records.sharing.maintenance import IntegrityReport, RecordVerdict, Statistics, TopTask
from fleet_tune.base.records.stores.origin import MEASURED_BY, Origin
from fleet_tune.report.json_output import json_line
from fleet_tune.report.run import TaskName, cut, fact_grid, format_outcomes, plural
from fleet_tune.report.words import NONE, format_secs

_NAMED = 20
_UNKNOWN = "runs that do not say what they depend on"


def render_top(top: Sequence[TopTask], limit: int) -> RenderableType:
    """Render a row for each task: its best record, and whether this one counts here."""
    table = _table("task", "device class")
    for name in ("records", "best", "GFLOP/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("counts here")
    for each in top[:limit]:
        secs = each.secs
        table.add_row(
            TaskName(each.task.workload.name),
            cut(each.task.device_class.name),
            str(each.records),
            Text(format_secs(secs), "bold"),
            NONE if secs is None else f"{each.task.workload.flop / secs / 1e9:.1f}",
            NONE if each.record is None else "; ".join(each.differences) or "yes",
        )
    if len(top) > limit:
        table.add_row(cut(f"… and {len(top) - limit} more", "dim"))
    return Group(Text(plural(len(top), "task"), "bold"), table)


def top_json(top: Sequence[TopTask]) -> str:
    """Return every task in one line of JSON."""
    tasks = []
    for each in top:
        workload, record = each.task.workload, each.record
        tasks.append(
            {
                "task_id": each.task.id,
                "name": workload.name,
                "device_class": each.task.device_class.name,
                "flop": workload.flop,
                "records": each.records,
                "best_secs": each.secs,
                "candidate": None if record is None else record.candidate.id,
                "run_id": None if record is None else record.run_id,
                "differences": list(each.differences),
            }
        )
    return json_line({"tasks": tasks})


def render_statistics(what: Statistics) -> RenderableType:
    """Render counts by device class, workload, outcome and origin."""
    table = _table("workload", "device class")
    table.add_column("trials", justify="right")
    ordered = sorted(what.workloads.items(), key=lambda item: -item[1])
    for (name, device_class), count in ordered[:_NAMED]:
        table.add_row(cut(name), cut(device_class), str(count))
    if len(ordered) > _NAMED:
        table.add_row(cut(f"… and {len(ordered) - _NAMED} more", "dim"))
    facts = fact_grid()
    for device_class, outcomes in what.outcomes.items():
        facts.add_row(device_class, Text(f"{plural(sum(outcomes.values()), 'trial')} ({format_outcomes(outcomes)})"))
    for origin, count in what.origins:
        facts.add_row("of", Text(f"{_of(origin)}: {plural(count, 'record')}"))
    facts.add_row("store", Text(f"{what.path}, {what.file_bytes / 1e6:.2f} MB, {plural(what.runs, 'run')}"))
    return Group(Text(plural(what.records, "record"), "bold"), table, facts)


def _of(origin: Origin | None) -> str:
    """Describe an origin in a few words."""
    if origin is None:
        return _UNKNOWN
    other = origin.versions.get(MEASURED_BY)
    return other or f"TVM {origin.versions.get('apache-tvm', NONE)}, {origin.cpu_model}"


def statistics_json(what: Statistics) -> str:
    """Return the statistics as one line of JSON."""
    return json_line(
        {
            "store": str(what.path),
            "file_bytes": what.file_bytes,
            "records": what.records,
            "runs": what.runs,
            "outcomes": {name: dict(outcomes) for name, outcomes in what.outcomes.items()},
            "workloads": [
                {"name": name, "device_class": device_class, "trials": count}
                for (name, device_class), count in what.workloads.items()
            ],
            "origins": [
                {"records": count, **({} if origin is None else dataclasses.asdict(origin))}
                for origin, count in what.origins
            ],
        }
    )


def render_why(
    found: Sequence[tuple[Task, Sequence[RecordVerdict]]],
    limit: int,
    shipped: Mapping[str, Sequence[str]],
    versions_alone: bool = False,
) -> RenderableType:
    """Render a row for each candidate of each task: its record, and why it does not count. ``shipped``: lines on
    the records that come with fleet-tune, by task id. ``versions_alone``: only versions were compared, no devices."""
    parts: list[RenderableType] = []
    for task, reasons in found:
        good = sum(not each.reasons for each in reasons)
        parts.append(
            Text(
                f"{task.workload.name} on {task.device_class.name}: {good} of {plural(len(reasons), 'candidate')} count"
            )
        )
        table = _table("candidate", "run", "revision")
        table.add_column("time", justify="right", no_wrap=True)
        table.add_column("counts")
        for each in reasons[:limit]:
            table.add_row(
                each.record.candidate.id[:12],
                each.record.run_id,
                str(each.record.revision),
                format_secs(each.secs),
                "; ".join(each.reasons) or "yes",
            )
        if len(reasons) > limit:
            table.add_row(cut(f"… and {len(reasons) - limit} more", "dim"))
        parts.append(table)
        parts += [Text(line) for line in shipped.get(task.id, ())]
    if versions_alone:
        parts.append(Text("compared are versions alone: --fleet FILE asks devices for their processor and more", "dim"))
    return Group(*parts)


def why_json(found: Sequence[tuple[Task, Sequence[RecordVerdict]]], shipped: Mapping[str, Sequence[str]]) -> str:
    """Return every candidate in one line of JSON."""
    return json_line(
        {
            "tasks": [
                {
                    "task_id": task.id,
                    "name": task.workload.name,
                    "candidates": [
                        {
                            "candidate": each.record.candidate.id,
                            "run_id": each.record.run_id,
                            "revision": each.record.revision,
                            "outcome": each.record.measurement.outcome.value,
                            "secs": each.secs if math.isfinite(each.secs) else None,
                            "counts": not each.reasons,
                            "reasons": list(each.reasons),
                        }
                        for each in reasons
                    ],
                    "shipped": list(shipped.get(task.id, ())),
                }
                for task, reasons in found
            ]
        }
    )


def integrity_lines(what: IntegrityReport) -> list[str]:
    """Describe the damage of a store in lines. Of many lines, return the first ones and the number of the others."""
    lines = [*what.file, *what.damaged]
    if what.orphans:
        lines.append(f"{plural(what.orphans, 'record')} without a task")
    return lines if len(lines) <= _NAMED else [*lines[:_NAMED], f"and {len(lines) - _NAMED} more (--json)"]


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title)
    return table
