"""The pages of a dashboard as HTML, made from the state of the runs, of the store and of the service."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fleet_tune.base.device_state import DeviceEvent
from fleet_tune.base.errors import UserError
from fleet_tune.base.records.sharing.maintenance import Statistics, TopTask
from fleet_tune.base.version import __version__
from fleet_tune.report.html.charts import Point, TimelineRow, step_chart, timeline
from fleet_tune.report.html.environment import templates_of
from fleet_tune.report.progress_text import heading, state_rows
from fleet_tune.report.run import format_clock, format_outcomes, plural
from fleet_tune.report.run_history import CurvePoint, RunHistory, TaskHistory
from fleet_tune.report.watching import WatchedRun
from fleet_tune.report.words import NONE, estimate_text, format_secs

_PAUSE_SECS = 5.0
"""Seconds without a record after which a device counts as idle."""
_TASKS_OF_STORE = 500

_ENVIRONMENT = templates_of("fleet_tune.report.dashboard")


def whole_page(title: str, main: str, up: str = "") -> str:
    """Return a page around the ``main`` part. ``up``: address of the page that lists this one; empty for none."""
    return _ENVIRONMENT.get_template("page.html.j2").render(title=title, main=main, up=up, version=__version__)


def overview(runs: Mapping[str, WatchedRun | UserError]) -> str:
    """Return the main part of the list of runs, with their curves side by side."""
    rows: list[dict[str, Any]] = []
    curves: dict[str, list[Point]] = {}
    for name, run in runs.items():
        if isinstance(run, UserError):
            rows.append({"name": name, "state": f"cannot be read: {run}", "time": "", "trials": "", "latency": ""})
            continue
        history = run.history
        rows.append(
            {
                "name": name,
                "state": run.state,
                "time": format_clock(history.secs),
                "trials": str(history.trials),
                "latency": ", ".join(_latencies(history)),
            }
        )
        for device_class, points in history.curves.items():
            if points:
                label = name if len(history.curves) == 1 else f"{name} on {device_class}"
                curves[label] = _points(points)
    chart = _curves(curves) if curves else ""
    return _ENVIRONMENT.get_template("overview.html.j2").render(rows=rows, chart=chart)


def run_page(run: WatchedRun, events: Sequence[DeviceEvent], report: str) -> str:
    """Return the main part of a run's page. ``events``: those of its devices; ``report``: address of its report."""
    history = run.history
    outcomes: Counter[str] = sum((task.outcomes for task in history.tasks), start=Counter())
    last = run.last_record_unix_secs
    now = [] if run.progress is None else [(label, text.plain) for label, text in state_rows(run.progress)]
    facts = [
        ("state", run.state if run.progress is None else f"{run.state}, {heading(run.progress)}"),
        *now,
        ("time of tuning", format_clock(history.secs)),
        ("trials", f"{history.trials} ({format_outcomes(outcomes)})" if history.trials else "none"),
        ("last record", NONE if last is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last))),
        *(("network", text) for text in _latencies(history)),
    ]
    for name in history.curves:
        gain = history.gain(name, 0.25) if history.curves[name] else None
        if gain is not None:
            facts.append(("last quarter of the time", f"took {gain:.1%} away on {name}"))
    curves = {name: _points(points) for name, points in history.curves.items() if points}
    return _ENVIRONMENT.get_template("run.html.j2").render(
        facts=facts,
        chart=_curves(curves) if curves else "",
        tasks=_task_rows(history),
        timeline=_timeline(history, events),
        events=[_event(each, history) for each in reversed(events)],
        failures=run.failures,
        report=report,
    )


def store_page(top: Sequence[TopTask], statistics: Statistics) -> str:
    """Return the main part of a record store's page."""
    tasks = [
        {
            "name": each.task.workload.name,
            "device_class": each.task.device_class.name,
            "records": each.records,
            "best": format_secs(each.secs),
            "gflops": NONE if each.secs is None else f"{each.task.workload.flop / each.secs / 1e9:.1f}",
        }
        for each in top[:_TASKS_OF_STORE]
    ]
    classes = [
        (name, f"{plural(sum(outcomes.values()), 'trial')} ({format_outcomes(outcomes)})")
        for name, outcomes in statistics.outcomes.items()
    ]
    return _ENVIRONMENT.get_template("store.html.j2").render(tasks=tasks, classes=classes, more=len(top) - len(tasks))


def retune_page(status: Mapping[str, Any]) -> str:
    """Return the main part of the page of ``fleet-tune retune``. ``status``: as ``retune status --json`` prints it."""
    deployments = [
        {
            "network": each["network"],
            "device_class": each["device_class"],
            "version": NONE if each["version"] is None else str(each["version"]),
            "latency": format_secs(each["secs"]),
            "spent": f"{each['effort_secs'] / 3600:.2g} h",
            "buys": NONE if each["next_hour"] is None else format_secs(each["next_hour"]["saved_secs"]),
            "problem": each["problem"] or "",
        }
        for each in status["deployments"]
    ]
    events = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["at"])), _deployment(each) + each["text"])
        for each in reversed(status["events"])
    ]
    state = "runs" if status["running"] else "does not run"
    return _ENVIRONMENT.get_template("retune.html.j2").render(
        state=state,
        waits_for=status["waits_for"] or "",
        share=f"{100 * status['share']:.3g}%",
        deployments=deployments,
        devices=[(each["name"], each["problem"] or "good") for each in status["devices"]],
        events=events,
    )


def _deployment(event: Mapping[str, Any]) -> str:
    names = " on ".join(name for name in (event["network"], event["device_class"]) if name)
    return f"{names}: " if names else ""


def problem(text: str) -> str:
    """Return the main part of a page that says what is wrong."""
    return _ENVIRONMENT.get_template("problem.html.j2").render(text=text)


def _latencies(history: RunHistory) -> list[str]:
    """Return the latency of each device class in words."""
    texts: list[str] = []
    for name, points in history.curves.items():
        tasks = [task for task in history.tasks if task.task.device_class.name == name]
        missing = sum(math.isinf(task.best_secs) for task in tasks)
        secs = points[-1].network_secs if points else math.inf
        texts.append(estimate_text(name, secs, missing, len(tasks)))
    return texts


def _points(points: Sequence[CurvePoint]) -> list[Point]:
    return [(point.secs, point.network_secs) for point in points]


def _curves(curves: Mapping[str, Sequence[Point]]) -> str:
    return step_chart(curves, "Estimated latency by time", "time of tuning", format_clock, format_secs)


def _task_rows(history: RunHistory) -> list[dict[str, Any]]:
    """Return the rows of the tasks: those without a result first, then by their share."""

    def secs(task: TaskHistory) -> float:
        return task.task.weight * task.best_secs

    totals: dict[str, float] = {}
    for task in history.tasks:
        if math.isfinite(task.best_secs):
            name = task.task.device_class.name
            totals[name] = totals.get(name, 0.0) + secs(task)
    rows = []
    for task in sorted(history.tasks, key=lambda each: -secs(each)):
        work, known = task.task.workload, math.isfinite(task.best_secs)
        rows.append(
            {
                "name": work.name,
                "device_class": task.task.device_class.name,
                "calls": task.task.weight,
                "trials": task.trials,
                "failed": sum(task.outcomes.values()) - task.outcomes["ok"],
                "first": format_secs(task.first_secs),
                "best": format_secs(task.best_secs),
                "share": f"{secs(task) / totals[task.task.device_class.name]:.0%}" if known else NONE,
                "gflops": f"{work.flop / task.best_secs / 1e9:.1f}" if known and work.flop else NONE,
            }
        )
    return rows


def _begin(history: RunHistory, events: Sequence[DeviceEvent] = ()) -> float:
    """Return the time of the first record or event, in seconds since 1970."""
    firsts = [times[0] for times in history.measured_unix_secs.values() if len(times)]
    return min([*firsts, *(each.unix_secs for each in events)], default=0.0)


def _timeline(history: RunHistory, events: Sequence[DeviceEvent]) -> str:
    """Return the timeline of the devices; empty while there is nothing to show."""
    devices = sorted({*history.measured_unix_secs, *(each.device_id for each in events)})
    begin = _begin(history, events)
    lasts = [times[-1] for times in history.measured_unix_secs.values() if len(times)]
    end = max([*lasts, *(each.unix_secs for each in events)], default=begin) - begin
    if not devices or end <= 0:
        return ""
    rows = [
        TimelineRow(
            device,
            _stretches([at - begin for at in history.measured_unix_secs.get(device, ())], end / 200),
            [(each.unix_secs - begin, _what(each)) for each in events if each.device_id == device],
        )
        for device in devices
    ]
    return timeline(rows, end, "What the devices did", format_clock)


def _stretches(times: Sequence[float], least: float) -> list[tuple[float, float]]:
    """Return begin and end of each stretch of time in which records came without a pause. A pause is longer than
    :data:`_PAUSE_SECS` and than ``least``: a shorter one would not be visible."""
    pause = max(_PAUSE_SECS, least)
    found: list[list[float]] = []
    for at in times:
        if found and at - found[-1][1] <= pause:
            found[-1][1] = at
        else:
            found.append([at, at])
    return [(begin, end) for begin, end in found]


def _what(event: DeviceEvent) -> str:
    reason = f": {event.reason}" if event.reason else ""
    return f"{event.device_id} {event.state.word} ({event.kind.replace('_', ' ')}){reason}"


def _event(event: DeviceEvent, history: RunHistory) -> tuple[str, str]:
    return format_clock(max(0.0, event.unix_secs - _begin(history))), _what(event)
