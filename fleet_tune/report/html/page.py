"""One HTML file of a run: without scripts and external resources, readable on a phone, on paper, in the dark and
without colour."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from devices.sketches.schedule_texts import ScheduleTexts, schedule_texts
from devices.sketches.spaces import ScheduleError
from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import SLOW, is_busy, slowness
from fleet_tune.base.version import __version__
from fleet_tune.report.frameworks import TITLES as FRAMEWORK_TITLES
from fleet_tune.report.frameworks import extent_rows, extent_series, extent_titles, problem_lines
from fleet_tune.report.frameworks import rows as framework_rows
from fleet_tune.report.html.charts import step_chart
from fleet_tune.report.html.environment import templates_of
from fleet_tune.report.html.extent_chart import extent_chart
from fleet_tune.report.html.roofline import Place, devices_in, place, roofline
from fleet_tune.report.result_file import RESULT_FILE
from fleet_tune.report.run import format_clock, format_outcomes, plural
from fleet_tune.report.run_history import RunHistory, TaskHistory, read_history
from fleet_tune.report.words import NONE, format_secs
from fleet_tune.runs.framework_times import read_times
from policies.retuning.benefit import HOUR_SECS

REPORT_FILE = "report.html"
_LAST_SHARE = 0.25
_LONGEST_MESSAGE = 400


@dataclass(frozen=True)
class _TaskRow:
    """Row of a task in the page. Numbers are texts."""

    name: str
    device_class: str
    calls: int
    trials: int
    best: str
    in_network: str
    share: str
    gflops: str
    of_roof: str
    rule: str
    outcomes: str
    failures: tuple[tuple[str, str], ...]
    """Kind and first message of each kind of failure."""
    rank_correlation: str
    schedule: ScheduleTexts | None
    """The best schedule; None if there is none."""
    no_schedule: str
    """Why there is none."""


@dataclass(frozen=True)
class _Places:
    """The devices of a run, and the places of its kernels under their rooflines."""

    devices: Mapping[str, DeviceAbstraction]
    """By device class."""
    of_task: Mapping[str, Place]
    """By task."""


def write_report(folder: Path, out: Path) -> None:
    """Write the report of the run in ``folder`` to ``out``.

    Raises :class:`RequestError` for a folder without records, and if ``out`` cannot be written.
    """
    text = render_report(folder)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{out} cannot be written: {error.strerror or error}", "name another file: --out") from error


def render_report(folder: Path) -> str:
    """Return the report of the run in ``folder``. Raises :class:`RequestError` for a folder without records."""
    history = read_history(folder)
    with RecordReader(folder / "records.db") as reader:
        devices = devices_in(reader.meta())
    return _render(folder, history, _result(folder), _places(history, devices))


def _places(history: RunHistory, devices: Mapping[str, DeviceAbstraction]) -> _Places:
    """Return the devices, and the places of the tasks' best kernels under their rooflines."""
    places: dict[str, Place] = {}
    for task in history.tasks:
        device = devices.get(task.task.device_class.name)
        found = None if device is None else place(task.task.workload, task.best_secs, device)
        if found is not None:
            places[task.task.id] = found
    return _Places(devices, places)


def _result(folder: Path) -> Mapping[str, Any]:
    """Return the result file of the last command on a folder; empty if there is none."""
    try:
        result: Mapping[str, Any] = json.loads((folder / RESULT_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return result


def _render(folder: Path, history: RunHistory, result: Mapping[str, Any], places: _Places) -> str:
    environment = templates_of("fleet_tune.report.html")
    outcomes: Counter[str] = Counter()
    for task in history.tasks:
        outcomes.update(task.outcomes)
    return environment.get_template("report.html.j2").render(
        title=result.get("model") or folder.resolve().name,
        version=__version__,
        has_result=bool(result),
        networks=[_network(each) for each in result.get("networks", ())],
        **_frameworks(folder),
        charts={name: _charts(name, history) for name, points in history.curves.items() if points},
        rooflines=_rooflines(history, places),
        missing=[name for name, points in history.curves.items() if not points],
        tasks=_rows(history, result, places),
        predictions=_predictions(history),
        several_classes=len(history.curves) > 1,
        facts=_facts(folder, history, outcomes, result),
        device_time={name: _shares(shares) for name, shares in result.get("device_time", {}).items()},
        notices=[f"{format_clock(each['at_secs'])} {each['text']}" for each in result.get("notices", ())],
        skipped=[f"{each['task'] or 'the network'}: {each['reason']}" for each in result.get("left_out", ())],
    )


def _network(network: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of a compiled network."""
    lines = [("published", str(network["published"]))]
    framework = network.get("framework", "the framework")  # absent in files of older versions, as is its time
    for label, key in (("tuned", "tuned_secs"), ("untuned", "untuned_secs"), (framework, "framework_secs")):
        if network.get(key) is not None:
            lines.append((label, format_secs(network[key])))
    for label, key in (
        ("speed-up over untuned", "speedup_over_untuned"),
        (f"speed-up over {framework}", "speedup_over_framework"),
    ):
        if network.get(key) is not None:
            lines.append((label, f"{network[key]:.2f}×"))
    if network["max_rel_error"] is not None:
        lines.append(("largest error", f"{network['max_rel_error']:.2g} of the largest output"))
    if network["precision"]:
        lines.append(("precision", network["precision"]))
    times = network["in_network"]
    if times is not None:
        lines.append(("in kernels", format_secs(times["kernels_secs"])))
        lines.append(("calls and allocation", format_secs(times["left_over_secs"])))
    remark = network["problem"] or ""
    if is_busy(network.get("others_cores")):
        remark += f" Timed on a busy host: other processes took {network['others_cores']:.1f} of its processor cores."
    slow = slowness(network.get("tuned_secs"), network.get("estimate_secs"))
    if slow >= SLOW and network["published"] == "tuned":
        remark += f" Timed in a slow moment: it took {slow:.2f} times its estimate."
    return {"device_class": network["device_class"], "lines": lines, "remark": remark.strip()}


def _frameworks(folder: Path) -> dict[str, Any]:
    """Return the values of the page on the times in frameworks."""
    found = read_times(folder)
    if found is None:
        return {"frameworks": []}
    day = datetime.fromtimestamp(found.unix_secs).astimezone().date().isoformat()
    machine = f"{found.cpu} with {plural(found.threads, 'thread')}, on {day}"
    return {
        "frameworks": framework_rows(found),
        "framework_titles": FRAMEWORK_TITLES,
        "framework_machine": machine + (f", with {found.extent}" if found.extent else ""),
        "extents": extent_rows(found),
        "extent_titles": extent_titles(found),
        "extent_problems": problem_lines(found),
        "extent_charts": [extent_chart(series, name) for name, series in extent_series(found).items()],
    }


def _charts(device_class: str, history: RunHistory) -> dict[str, Any]:
    points = history.curves[device_class]
    by_time = [(point.secs, point.network_secs) for point in points]
    by_trials = [(float(point.trials), point.network_secs) for point in points]
    title = f"Estimated latency of the network on {device_class}"

    def number(value: float) -> str:
        return f"{value:.0f}"

    gain = history.gain(device_class, _LAST_SHARE)
    # The gains of a run predict nothing beyond twice its time.
    more_secs = min(HOUR_SECS, history.secs)
    expected = history.expected_gain(device_class, more_secs)
    return {
        "last": format_secs(points[-1].network_secs),
        "time": step_chart({"": by_time}, f"{title} by time", "time of tuning", format_clock, format_secs),
        "trials": step_chart({"": by_trials}, f"{title} by trials", "trials", number, format_secs),
        "gain": None if gain is None else f"{gain:.1%}",
        "more": format_clock(more_secs),
        "expected": None if expected is None else f"{expected:.1%}",
    }


def _rooflines(history: RunHistory, places: _Places) -> dict[str, str]:
    """Return the picture of each device class whose figures are known."""
    pictures = {}
    for name, device in places.devices.items():
        own = [
            places.of_task[t.task.id]
            for t in history.tasks
            if t.task.device_class.name == name and t.task.id in places.of_task
        ]
        if own:
            pictures[name] = roofline(own, device, f"Kernels under the roofline of {name}")
    return pictures


def _rows(history: RunHistory, result: Mapping[str, Any], places: _Places) -> list[_TaskRow]:
    """Return the rows of the tasks, those with the largest part of the network's time first."""
    tasks = history.tasks
    placed = {
        kernel["task_id"]: kernel
        for network in result.get("networks", ())
        if network["in_network"] is not None
        for kernel in network["in_network"]["kernels"]
    }
    rules = {task["task_id"]: task["best_rule"] for task in result.get("tasks", ())}

    def secs(task: TaskHistory) -> float:
        kernel = placed.get(task.task.id)
        return task.task.weight * (task.best_secs if kernel is None else float(kernel["secs"]))

    totals: dict[str, float] = dict.fromkeys((task.task.device_class.name for task in tasks), 0.0)
    for task in tasks:
        if math.isfinite(secs(task)):
            totals[task.task.device_class.name] += secs(task)
    rows = []
    for task in sorted(tasks, key=lambda each: -secs(each)):
        work, kernel, total = task.task.workload, placed.get(task.task.id), totals[task.task.device_class.name]
        known = math.isfinite(task.best_secs)
        under_roof = places.of_task.get(task.task.id)
        rows.append(
            _TaskRow(
                work.name,
                task.task.device_class.name,
                task.task.weight,
                task.trials,
                format_secs(task.best_secs),
                NONE if kernel is None else format_secs(kernel["secs"]),
                f"{secs(task) / total:.0%}" if math.isfinite(secs(task)) and total else NONE,
                f"{work.flop / task.best_secs / 1e9:.1f}" if known and work.flop else NONE,
                NONE if under_roof is None else f"{under_roof.flops / under_roof.roof_flops:.0%}",
                rules.get(task.task.id, ""),
                format_outcomes(task.outcomes),
                tuple((kind.replace("_", " "), _shortened(text)) for kind, text in task.failures.items()),
                _correlation(history.predictions.of_task(task.task.id)),
                *_schedule(task),
            )
        )
    return rows


def _correlation(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _schedule(task: TaskHistory) -> tuple[ScheduleTexts | None, str]:
    """Return the best schedule of a task, or the reason why there is none."""
    if task.best is None:
        return None, "No candidate of this task was verified."
    try:
        return schedule_texts(task.task.workload.module, task.best.trace), ""
    except (ScheduleError, ValueError) as error:  # TVM raises ValueError for a program of another version
        return None, f"The schedule does not fit the program any more: {error}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} …"


def _predictions(history: RunHistory) -> list[tuple[str, str]]:
    """Return the rank correlation of the predictions of each device class for which it is known."""
    known = ((name, history.predictions.of_class(name)) for name in history.curves)
    return [(name, _correlation(value)) for name, value in known if value is not None]


def _facts(
    folder: Path, history: RunHistory, outcomes: Mapping[str, int], result: Mapping[str, Any]
) -> list[tuple[str, str]]:
    facts = [
        ("folder", str(folder.resolve())),
        ("trials", f"{history.trials} ({format_outcomes(outcomes)}) in {format_clock(history.secs)}"),
        ("tasks", plural(len(history.tasks), "task")),
    ]
    if result.get("interrupted"):
        facts.append(("end", "stopped before its budget was used"))
    if result.get("inputs"):
        facts.append(("inputs", str(result["inputs"])))
    store, learned = result.get("store"), result.get("transferred")
    if store is not None:
        facts.append(("store", f"{store['path']}: {plural(store['known'], 'task')} known"))
    if learned is not None:
        facts.append(("learned from", str(learned["source"])))
    return facts


def _shares(shares: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, f"{share:.0%}") for name, share in sorted(shares.items(), key=lambda each: -each[1])]
