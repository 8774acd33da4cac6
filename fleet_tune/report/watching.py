"""``fleet-tune watch``: shows a run from its folder, while it is under way and afterwards."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fleet_tune.base.device_state import DeviceEvent
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.datasets.sources import RECORDS_FILE
from fleet_tune.base.records.files.lock_file import is_locked
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Progress
from fleet_tune.report.json_output import json_line
from fleet_tune.report.progress_text import heading, left_text, state_rows
from fleet_tune.report.run import TaskName, cut, fact_grid, format_clock, format_outcomes, plural
from fleet_tune.report.run_history import CurvePoint, HistoryReader, RunHistory, TaskHistory, records_of
from fleet_tune.report.words import NONE, estimate_text, format_secs
from fleet_tune.runs.prediction_quality import PredictionQuality
from fleet_tune.runs.preparing.out_folder import LOCK_FILE
from fleet_tune.runs.progress_file import saved_progress

_READ_SHARE = 0.1
"""Share of the time that may go into reading a run's records again."""
_CURVE_COLUMNS = 48
STEPS = "▁▂▃▄▅▆▇█"
ASCII_STEPS = "_.-=+*#@"
_LINE_SECS = 10.0
_FAILURES = 3
_SILENT_SECS = 30.0
"""A run whose last snapshot is older may hang."""
_FRAME_LINES = 4  # lines of a table that are not rows


@dataclass(frozen=True)
class WatchedRun:
    """A run at one moment."""

    folder: Path
    is_under_way: bool
    """True while a command of this machine uses the folder."""
    history: RunHistory
    devices: Mapping[str, DeviceEvent]
    """The last change of each device."""
    last_record_unix_secs: float | None
    """None before the first record."""
    progress: Progress | None = None
    """The last snapshot, without tasks. None before the first one, and after the run has ended."""
    silent_secs: float = 0.0
    """Age of the snapshot in seconds."""

    @property
    def state(self) -> str:
        """``under way`` or ``ended``."""
        return "under way" if self.is_under_way else "ended"

    @property
    def failures(self) -> list[tuple[str, int, str]]:
        """The kinds of failures, the most frequent first, each with its count and its first message."""
        counts: Counter[str] = Counter()
        messages: dict[str, str] = {}
        for task in self.history.tasks:
            for kind, message in task.failures.items():
                counts[kind] += task.outcomes[kind]
                messages.setdefault(kind, message)
        return [(kind, count, messages[kind]) for kind, count in counts.most_common()]


_NO_HISTORY = RunHistory((), {}, 0.0, 0, {}, PredictionQuality())


class RunWatcher:
    """Reads a run's folder again and again.

    Args:
        folder: output folder of the run.
        clock: time in seconds.
        now: seconds since 1970.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._clock, self._now = folder, clock, now
        self._reader = HistoryReader(folder)
        self._history: RunHistory | None = None
        self._seq = -1
        self._next_read = -math.inf
        self._sent: RunHistory | None = None

    def look(self) -> WatchedRun:
        """Return the run as it is now. The history of a long run takes time to read, and may lag: reading takes at most
        about the share :data:`_READ_SHARE` of the time.

        Raises :class:`RequestError` for a folder without records, and :class:`RecordStoreError`.
        """
        is_under_way = is_locked(self._folder / LOCK_FILE)  # before the records are read: none is missed
        saved = saved_progress(self._folder) if is_under_way else None
        said = (None, 0.0) if saved is None else (saved.progress, max(0.0, self._now() - saved.unix_secs))
        if is_under_way and not (self._folder / RECORDS_FILE).is_file():  # the network is being imported
            return WatchedRun(self._folder, True, _NO_HISTORY, {}, None, *said)
        with RecordReader(records_of(self._folder)) as reader:
            seq, devices = reader.last_seq(), reader.devices.states()
            last = reader.since(seq - 1, 1) if seq else []
        begin = self._clock()
        if self._history is None or (seq != self._seq and (begin >= self._next_read or not is_under_way)):
            self._history, self._seq = self._reader.read(), seq
            end = self._clock()
            self._next_read = end + (end - begin) / _READ_SHARE
        last_secs = last[0].unix_secs if last else None
        return WatchedRun(self._folder, is_under_way, self._history, devices, last_secs, *said)

    def look_for_changes(self) -> tuple[WatchedRun, bool]:
        """Return the run, and true if its history has changed since the last call. An unchanged history is left out, so
        that a cluster need not send it again. Raises as :meth:`look`."""
        run = self.look()
        if run.history is self._sent:
            return replace(run, history=_NO_HISTORY), False
        self._sent = run.history
        return run, True


def looks(
    look: Callable[[], WatchedRun], every_secs: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[WatchedRun]:
    """Yield a result of ``look`` every ``every_secs`` seconds. The last one is that of a run that has ended."""
    while True:
        run = look()
        yield run
        if not run.is_under_way:
            return
        sleep(every_secs)


@contextlib.contextmanager
def watcher_of(folder: Path, address: str | None) -> Iterator[Callable[[], WatchedRun]]:
    """Yield a function that looks at the run in a folder: of this machine, or of the head node of the Ray cluster at
    ``address``.

    Raises :class:`RequestError` for a relative folder of a cluster, and :class:`ClusterError`. The function raises as
    :meth:`RunWatcher.look` does.
    """
    if address is None:
        yield RunWatcher(folder).look
        return
    if not folder.is_absolute():
        problem = f"with --address a folder has an absolute path, and {folder} is relative"
        raise RequestError(problem, "give the absolute path of the output folder on the head node")
    from actors.clusters.head_node import on_head_node

    with on_head_node(address, partial(RunWatcher, folder)) as call:
        yield with_last_history(partial(call, "look_for_changes"))


def with_last_history(look: Callable[[], tuple[WatchedRun, bool]]) -> Callable[[], WatchedRun]:
    """Return a function that calls ``look``, and puts the last history into a run that comes without one."""
    history = _NO_HISTORY

    def whole() -> WatchedRun:
        nonlocal history
        run, is_new = look()
        history = run.history if is_new else history
        return replace(run, history=history)

    return whole


def show(console: Console, runs: Iterator[WatchedRun], now: Callable[[], float] = time.time) -> WatchedRun | None:
    """Show each run. On a terminal it replaces the one before. Elsewhere a line is printed whenever results or phase
    have changed, and every ten seconds. The last run is shown whole, and returned; None if there is none."""
    last: WatchedRun | None = None
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for last in runs:
                live.update(render_run(last, console, now()), refresh=True)
    else:
        told, told_at = "", -math.inf
        for last in runs:
            phase = "" if last.progress is None else last.progress.phase
            news = f"{phase} {run_line(replace(last, progress=None))}"
            if news != told or now() >= told_at + _LINE_SECS:
                told, told_at = news, now()
                console.print(run_line(last), markup=False, soft_wrap=True)
    if last is not None:
        console.print(render_run(last, console, now(), whole=True))
    return last


def run_json(run: WatchedRun) -> str:
    """Return the run as one line of JSON."""
    history = run.history
    return json_line(
        {
            "folder": str(run.folder.resolve()),
            "is_under_way": run.is_under_way,
            "secs": history.secs,
            "trials": history.trials,
            "last_record_unix_secs": run.last_record_unix_secs,
            "now": None if run.progress is None else _now_json(run.progress, run.silent_secs),
            "network_secs": {
                name: points[-1].network_secs if points else None for name, points in history.curves.items()
            },
            "devices": {name: event.state.word for name, event in run.devices.items()},
            "failures": {kind: {"trials": count, "first": message} for kind, count, message in run.failures},
            "tasks": [
                {
                    "task_id": each.task.id,
                    "name": each.task.workload.name,
                    "calls": each.task.weight,
                    "trials": each.trials,
                    "best_secs": each.best_secs if math.isfinite(each.best_secs) else None,
                }
                for each in history.tasks
            ],
        }
    )


def _now_json(progress: Progress, silent_secs: float) -> dict[str, Any]:
    return {
        "phase": progress.phase,
        "doing": progress.doing,
        "secs": progress.elapsed_secs,
        "time_budget_secs": progress.time_budget_secs,
        "done_secs": progress.done_secs,
        "trial_limit": progress.trial_limit,
        "limited_by": progress.bounds,
        "devices": dict(progress.devices),
        "vitals": {name: dict(values) for name, values in progress.vitals.items()},
        "silent_secs": silent_secs,
        "silent_processes": {name: progress.elapsed_secs - since for name, since in progress.silent.items()},
        "waits_for_runs": {name: title for name, (title, _) in progress.behind.items()},
        "notices": [{"secs": each.at_secs, "text": each.text, "times": each.times} for each in progress.notices],
    }


def run_line(run: WatchedRun) -> str:
    """Return the run in one line."""
    history = run.history
    outcomes: Counter[str] = Counter()
    for task in history.tasks:
        outcomes.update(task.outcomes)
    trials = f"{plural(history.trials, 'trial')} ({format_outcomes(outcomes)})" if history.trials else "no trials"
    parts = [f"{format_clock(history.secs)} {run.state}", trials, *_estimates(history)]
    if run.progress is not None:
        parts[0] += f", {heading(run.progress)}"
        left = left_text(run.progress)
        parts += [left] if left else []
    return ", ".join(parts)


def render_run(run: WatchedRun, console: Console, now: float, *, whole: bool = False) -> RenderableType:
    """Render the run. ``whole``: with all tasks and failures, else with as many tasks as fit on the terminal. ``now``:
    seconds since 1970."""
    history = run.history
    facts = fact_grid()
    progress = run.progress
    doing = "" if progress is None else f", {heading(progress)}"
    facts.add_row("run", cut(f"{run.folder.resolve().name}: {run.state}{doing}"))
    if run.silent_secs > _SILENT_SECS:
        facts.add_row("", cut(f"the run has said nothing for {format_clock(run.silent_secs)}", "yellow"))
    age = "" if run.last_record_unix_secs is None else f", the last {format_clock(now - run.last_record_unix_secs)} ago"
    left = left_text(progress) if progress is not None else ""
    facts.add_row("time", cut(", ".join([f"{format_clock(history.secs)} of tuning", *([left] if left else [])])))
    facts.add_row("trials", cut(f"{history.trials}{age}"))
    if not history.curves:
        facts.add_row("network", cut("no tasks yet"))
    steps = ASCII_STEPS if console.options.ascii_only else STEPS
    for name, points in history.curves.items():
        facts.add_row("network", cut(", ".join(_estimates(history, name)), "bold"))
        if points:
            facts.add_row("", Text(curve(points, steps)))
            gain = history.gain(name, 0.25)
            if gain is not None:
                facts.add_row("", cut(f"the last quarter of the time took {gain:.1%} away"))
    if progress is None or not progress.devices:
        states = ", ".join(f"{name} {event.state.word}" for name, event in run.devices.items())
        facts.add_row("devices", cut(states or NONE))
    if progress is not None:
        for label, text in state_rows(progress):
            facts.add_row(label, text)
    for kind, count, message in run.failures[: None if whole else _FAILURES]:
        facts.add_row("failed", cut(f"{count} {kind.replace('_', ' ')}: {' '.join(message.split())}", "yellow"))
    rows = None if whole else console.size.height - facts.row_count - _FRAME_LINES
    return facts if rows is not None and rows < 1 else Group(facts, _tasks(history, rows))


def curve(points: Sequence[CurvePoint], steps: str = STEPS) -> str:
    """Return a latency over time as a line of characters. ``steps``: the characters from latency zero to the highest
    latency."""
    most = max(point.network_secs for point in points)
    end = points[-1].secs
    columns = []
    for at in range(_CURVE_COLUMNS):
        moment = end * (at + 1) / _CURVE_COLUMNS
        known = [point for point in points if point.secs <= moment]
        height = known[-1].network_secs / most if known and most else 0.0
        columns.append(steps[min(len(steps) - 1, round(height * (len(steps) - 1)))] if known else " ")
    return "".join(columns)


def _estimates(history: RunHistory, only: str = "") -> list[str]:
    """Return the estimated latency of each device class, or the number of tasks that it lacks."""
    texts = []
    for name, points in history.curves.items():
        if only not in ("", name):
            continue
        tasks = [task for task in history.tasks if task.task.device_class.name == name]
        missing = sum(math.isinf(task.best_secs) for task in tasks)
        texts.append(estimate_text(name, points[-1].network_secs if points else math.inf, missing, len(tasks)))
    return texts or ["no tasks"]


def _tasks(history: RunHistory, limit: int | None) -> Table:
    """Return the tasks, those with the largest share of the time first, and those without a result before all."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("task")
    for title in ("calls", "trials", "failed", "first", "best", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    totals: defaultdict[str, float] = defaultdict(float)
    for task in history.tasks:
        if math.isfinite(task.best_secs):
            totals[task.task.device_class.name] += _secs(task)
    ordered = sorted(history.tasks, key=lambda task: -_secs(task))
    shown = ordered if limit is None or len(ordered) <= limit else ordered[: max(0, limit - 1)]
    for task in shown:
        failed = sum(task.outcomes.values()) - task.outcomes["ok"]
        total = totals[task.task.device_class.name]
        share = f"{_secs(task) / total:.0%}" if math.isfinite(task.best_secs) and total else NONE
        table.add_row(
            TaskName(task.task.workload.name),
            str(task.task.weight),
            str(task.trials),
            str(failed),
            format_secs(task.first_secs),
            format_secs(task.best_secs),
            share,
        )
    if len(shown) < len(ordered):
        table.add_row(cut(f"and {len(ordered) - len(shown)} more"))
    return table


def _secs(task: TaskHistory) -> float:
    """Return the seconds of all calls."""
    return task.task.weight * task.best_secs
