"""Live view of a run: a panel that redraws itself on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.results import Progress
from fleet_tune.report.narration import Detail, Narration, NewBests
from fleet_tune.report.progress_text import behind_text, heading, left_text, silent_text, state_rows
from fleet_tune.report.run import (
    cut,
    fact_grid,
    format_bounds,
    format_clock,
    format_outcomes,
    notice_line,
    plural,
    task_table,
)
from fleet_tune.report.run_history import CurvePoint
from fleet_tune.report.watching import ASCII_STEPS, STEPS, curve
from fleet_tune.report.words import estimate_text

_LINE_SECS = 5.0
_REFRESH_PER_SEC = 4.0
_TABLE_FRAME_LINES = 4  # lines of a task table that are not tasks


class ProgressView:
    """Context manager; give :meth:`update` every snapshot. On a terminal the view vanishes when the block is left.

    Raises RequestError if the log file cannot be written.
    """

    def __init__(self, console: Console, title: str, narration: Narration | None = None) -> None:
        self._console = console
        self._panel = _Panel(title)
        self._narration = narration or Narration()
        self._log = self._narration.open_log()
        self._live: Live | None = None
        if console.is_terminal and self._narration.detail > Detail.QUIET:
            self._live = Live(self._panel, console=console, refresh_per_second=_REFRESH_PER_SEC, transient=True)
        self._bests = NewBests()
        self._last_line_at = -math.inf
        self._last_phase = ""
        self._noticed = 0  # number of the last notice that has a line
        self._end_told = False

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._log is not None:
            if error is not None:
                self._log.write(f"ended by {kind.__name__ if kind else 'an error'}: {error}")
            self._log.close()

    def update(self, progress: Progress) -> None:
        """Show a snapshot. Without a terminal, lines are printed: one in 5 seconds at most, one for each phase, and one
        for each notice at once. The log gets the same lines."""
        self._panel.show(progress)
        for notice in progress.notices:
            if notice.number > self._noticed:
                self._noticed = notice.number
                self._tell(notice_line(notice), Detail.QUIET)
        for line in self._bests.lines(progress):
            self._tell(f"{format_clock(progress.elapsed_secs)} {line}", Detail.VERBOSE)
        if progress.done_secs is not None and not self._end_told:
            self._end_told = True
            self._tell(end_line(progress, datetime.now().astimezone()), Detail.NORMAL)
        now = time.monotonic()
        if now - self._last_line_at >= _LINE_SECS or progress.phase != self._last_phase:
            begins = not self._last_phase and progress.doing
            self._last_line_at, self._last_phase = now, progress.phase
            self._tell(f"{self._panel.title}: {progress.doing}" if begins else progress_line(progress), Detail.NORMAL)

    def _tell(self, line: str, detail: Detail) -> None:
        """Write a line to the log, and to the console if its ``detail`` is asked for and the panel does not show it."""
        if self._log is not None:
            self._log.write(line)
        is_shown = self._live is not None and detail < Detail.VERBOSE
        if detail <= self._narration.detail and not is_shown:
            self._console.print(line, markup=False, soft_wrap=True)


@contextlib.contextmanager
def steps_shown(console: Console, title: str, phase: str, narration: Narration | None = None) -> Iterator[None]:
    """Show the steps of this process (:data:`ACTIVITY`) while the block runs, for commands without a run."""
    ended = threading.Event()
    began = time.monotonic()

    def follow(view: ProgressView) -> None:
        doing = "loading torch and TVM"
        while True:
            doing = ACTIVITY.text or doing
            secs = time.monotonic() - began
            view.update(Progress(phase, secs, None, None, 0, 0, {}, 0.0, {}, {}, (), doing=doing))
            if ended.wait(1 / _REFRESH_PER_SEC):
                return

    with ProgressView(console, title, narration) as view:
        thread = threading.Thread(target=follow, args=(view,), name="steps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def end_line(progress: Progress, now: datetime) -> str:
    """Return the ends of the tuning and of the run as times of day, for a run with a time budget."""
    assert progress.time_budget_secs is not None
    assert progress.done_secs is not None

    def clock(secs: float) -> str:
        return (now + timedelta(seconds=secs - progress.elapsed_secs)).strftime("%H:%M:%S")

    return f"tunes until {clock(progress.time_budget_secs)}, and is done at about {clock(progress.done_secs)}"


def progress_line(progress: Progress) -> str:
    """Return a snapshot in one line."""
    if progress.doing:
        line = f"{format_clock(progress.elapsed_secs)} {progress.phase}: {progress.doing}"
        ends_in = (progress.done_secs or 0.0) - progress.elapsed_secs
        return f"{line} (done in about {format_clock(ends_in)})" if ends_in > 0 else line
    parts = [
        f"{format_clock(progress.elapsed_secs)} {progress.phase}",
        f"{plural(progress.trials, 'trial')} ({format_outcomes(progress.outcomes)})"
        if progress.trials
        else "no trials",
        f"{progress.records_per_sec:.1f}/s",
        _networks(progress),
    ]
    if progress.behind:
        parts.append(f"waits: {behind_text(progress)}")
    if progress.silent:
        parts.append(f"without a sign of life: {silent_text(progress)}")
    if progress.device_time:
        parts.append(f"limited by {format_bounds(progress.device_time)}")
    awaited = _awaited(progress)
    if awaited:
        parts.append(f"{plural(awaited, 'task')} still being described")
    left = left_text(progress)
    return ", ".join([*parts, left] if left else parts)


def _awaited(progress: Progress) -> int:
    """Return the number of tasks whose sketches the tuning waits for. A finished task needs no sketches."""
    return sum(not (task.described or task.finished) for task in progress.tasks)


def _networks(progress: Progress) -> str:
    """Return the estimated latency per device class, or the number of tasks that it lacks."""
    texts = []
    for device_class, secs in progress.network_secs.items():
        tasks = [task for task in progress.tasks if task.device_class == device_class]
        missing = sum(not math.isfinite(task.best_secs) for task in tasks)
        texts.append(estimate_text(device_class, secs, missing, len(tasks), "network "))
    return ", ".join(texts) or "no tasks"


def _share_done(progress: Progress) -> float | None:
    """Return the used share of the budget, 0 to 1; of two limits, that of the nearer one. None without a limit."""
    shares = []
    if progress.time_budget_secs:
        shares.append(progress.elapsed_secs / progress.time_budget_secs)
    if progress.trial_limit:
        shares.append(progress.trials / progress.trial_limit)
    return min(1.0, max(shares)) if shares else None


class _Panel:
    """Renders the latest snapshot into the height of the terminal."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.progress: Progress | None = None
        self._curves: dict[str, list[CurvePoint]] = {}
        """Estimated latencies shown so far, by device class."""
        self._spinner = Spinner("dots", style="cyan")

    def show(self, progress: Progress) -> None:
        """Show a snapshot."""
        self.progress = progress
        for name, secs in progress.network_secs.items():
            points = self._curves.setdefault(name, [])
            if math.isfinite(secs) and (not points or secs != points[-1].network_secs):
                points.append(CurvePoint(progress.elapsed_secs, progress.trials, secs))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self.progress
        head = Table.grid(padding=(0, 1))
        head.add_row(
            self._spinner,
            Text(self.title, "bold"),
            Text(heading(progress) if progress else "starting", "cyan"),
        )
        yield head
        if progress is None:
            return
        facts = self._facts(progress, options)
        yield facts
        used = 1 + facts.row_count + _TABLE_FRAME_LINES
        rows = console.size.height - used
        if rows >= 2 and progress.tasks:
            yield Group(task_table(progress.tasks, limit=rows))

    def _facts(self, progress: Progress, options: ConsoleOptions) -> Table:
        facts = fact_grid()
        clock = Table.grid(padding=(0, 1))
        share = _share_done(progress)
        bar = [] if share is None else [ProgressBar(total=1.0, completed=share, width=30, complete_style="cyan")]
        clock.add_row(format_clock(progress.elapsed_secs), *bar, left_text(progress))
        facts.add_row("time", clock)
        facts.add_row(
            "trials",
            cut(f"{progress.trials}, {progress.records_per_sec:.1f} a second ({format_outcomes(progress.outcomes)})"),
        )
        finished = sum(task.finished for task in progress.tasks)
        awaited = _awaited(progress)
        described = f", {awaited} still being described" if awaited else ""
        facts.add_row("tasks", cut(f"{len(progress.tasks)}, {finished} of them finished{described}"))
        queues = ", ".join(f"{name} {length}" for name, length in progress.queues.items())
        facts.add_row("queues", cut(queues))
        for label, text in state_rows(progress):
            facts.add_row(label, text)
        facts.add_row("estimate", cut(_networks(progress), "bold"))
        steps = ASCII_STEPS if options.ascii_only else STEPS
        for points in self._curves.values():
            if len(points) > 1:
                end = replace(points[-1], secs=progress.elapsed_secs)
                facts.add_row("", Text(curve([*points, end], steps)))
        return facts
