"""Reports on a finished run or a plan, for people (rich renderables) and for programs (JSON values).

The live view of a run is in :mod:`fleet_tune.report.progress`.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fleet_tune.base.records.datasets.sources import BUILTINS
from fleet_tune.base.results import (
    SLOW,
    DeviceTime,
    FromStore,
    InNetwork,
    NetworkResult,
    Notice,
    OutputErrors,
    Plan,
    TaskProgress,
    Transferred,
    TuneResult,
    bound_by,
)
from fleet_tune.report.json_output import json_line
from fleet_tune.report.network import network_lines
from fleet_tune.report.skipped import skipped_lines
from fleet_tune.report.words import NONE, format_secs

_WIDTH_WITHOUT_TERMINAL = 120
_SHORTEST_NAME = 12  # columns
_NOTICES = 5  # number of the last notices that the summary shows


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr. If that is no terminal and COLUMNS is not set, lines have 120 columns."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in console._environ:
        console = Console(stderr=stderr, highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    return console


def format_clock(secs: float) -> str:
    """``4:07`` or ``1:04:07``."""
    minutes, rest = divmod(max(0, round(secs)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_outcomes(outcomes: Mapping[str, int]) -> str:
    """``398 ok, 10 build error``, the most frequent first; ``no trials`` if there are none."""
    counted = sorted(((count, str(name)) for name, count in outcomes.items() if count), reverse=True)
    return ", ".join(f"{count} {name.replace('_', ' ')}" for count, name in counted) or "no trials"


def format_restarts(restarts: Mapping[str, int]) -> str:
    """``recorder 2 times, device once``: the processes that were lost and started again, by role."""
    return ", ".join(f"{role} {'once' if times == 1 else f'{times} times'}" for role, times in restarts.items())


def notice_line(notice: Notice) -> str:
    """``4:07 device board is lost (2 times)``: a notice in one line, with its time in the run."""
    times = f" ({notice.times} times)" if notice.times > 1 else ""
    return f"{format_clock(notice.at_secs)} {' '.join(notice.text.split())}{times}"


def plural(count: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cut(text: str, style: str = "") -> Text:
    """Return text that is cut off with an ellipsis if its column is too narrow. Its column must not be ``no_wrap``:
    rich narrows such columns first and leaves the numbers beside them whole."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


class TaskName:
    """The name of a task in a table: if its column is too narrow, its operators are cut and its shape stays."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_SHORTEST_NAME, len(self._name)), len(self._name))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shortened_name(self._name, options.max_width), no_wrap=True, overflow="ellipsis")


def shortened_name(name: str, width: int) -> str:
    """Return the name of a task in ``width`` columns: ``conv2d_add_re… 56x56x64``."""
    operators, _, shape = name.rpartition(" ")
    room = width - len(shape) - 2
    return name if len(name) <= width or room < 1 or not operators else f"{operators[:room]}… {shape}"


def fact_grid() -> Table:
    """A grid of labels and values."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    return facts


def task_table(
    tasks: Sequence[TaskProgress], *, limit: int | None = None, in_network: Mapping[str, InNetwork] | None = None
) -> Table:
    """Return a table with a row for each task. Tasks without a result come first, then those with the largest share of
    the network's time. Tasks without a result and without a trial are only counted, in the last row.

    ``limit``: number of rows at most, None for all; the last row then says how many tasks are not shown.
    ``in_network``: the kernels' times in the compiled networks, by device class, if they are known. The column
    ``share`` is the task's part of the time of all these kernels, else of the latency of the tasks that have a result.
    """
    totals = _known_secs(tasks)
    several_classes = len(totals) > 1
    timed = in_network or {}
    placed = {kernel.task_id: kernel for each in timed.values() for kernel in each.kernels}

    def secs_of(task: TaskProgress) -> float:
        """Return the seconds of all calls. Infinite if they are not known."""
        if task.device_class not in timed:
            return task.weight * task.best_secs
        kernel = placed.get(task.task_id)
        return math.inf if kernel is None else kernel.calls * kernel.secs

    def shown_secs(task: TaskProgress) -> float | None:
        """Return the seconds of one call. None if the clock cannot tell."""
        kernel = placed.get(task.task_id)
        return None if kernel is None or not kernel.is_clear else kernel.secs

    def share_of(task: TaskProgress) -> str:
        secs = secs_of(task)
        total = timed[task.device_class].kernels_secs if task.device_class in timed else totals[task.device_class]
        return f"{secs / total:.0%}" if math.isfinite(secs) and total > 0 else NONE

    table = _table("task", *(["device class"] if several_classes else []))
    _add_numbers(table, "calls", "trials", "best", *(["in network"] if placed else []), "GFLOP/s", "share")
    table.add_column("sketch rule")
    ordered = sorted((task for task in tasks if _has_something(task, placed)), key=lambda task: -secs_of(task))
    room = len(tasks) if limit is None else limit
    shown = ordered if len(ordered) + (len(ordered) < len(tasks)) <= room else ordered[: max(0, room - 1)]
    for task in shown:
        measured = math.isfinite(task.best_secs)
        table.add_row(
            TaskName(task.name),
            *([cut(task.device_class)] if several_classes else []),
            str(task.weight),
            str(task.trials),
            Text(format_secs(task.best_secs), "bold"),
            *([format_secs(shown_secs(task))] if placed else []),
            f"{task.gflops:.1f}" if measured else NONE,
            share_of(task),
            cut(_rule_of(task), "dim"),
        )
    if len(shown) < len(tasks):
        rest = f"{len(tasks) - len(shown)} {'more' if len(shown) < len(ordered) else 'without a trial'}"
        table.add_row(cut(f"… and {rest}" if shown else rest, "dim"))
    return table


def _has_something(task: TaskProgress, placed: Collection[str] = ()) -> bool:
    """Return true if a task has a trial, a result, or a time in a network. ``placed``: ids of the tasks that were timed
    in a network."""
    return task.trials > 0 or math.isfinite(task.best_secs) or task.task_id in placed


def _rule_of(task: TaskProgress) -> str:
    """Return the sketch rule of a task's best candidate. It is known once the task's sketches are described."""
    if task.described:
        return task.best_rule
    return "known before" if math.isfinite(task.best_secs) else "not described yet"


def render_summary(result: TuneResult) -> RenderableType:
    """Render the summary of a run: its tasks, the networks with speed-ups and errors, their folders and the way to load
    them."""
    parts: list[RenderableType] = []
    if any(map(_has_something, result.tasks)):
        timed = {each.device_class: each.in_network for each in result.networks if each.in_network is not None}
        parts.append(task_table(result.tasks, in_network=timed))
    parts += [_network_table(network) for network in result.networks]
    facts = fact_grid()
    if result.tasks and not parts:
        facts.add_row("tasks", Text(f"{len(result.tasks)}, none of them tried yet"))
    total = sum(result.outcomes.values())
    facts.add_row(
        "trials",
        Text(
            f"{total} ({format_outcomes(result.outcomes)}), {result.new_trials or 'none'} of them in this run of"
            f" {format_clock(result.elapsed_secs)}"
            if total
            else f"none in this run of {format_clock(result.elapsed_secs)}"
        ),
    )
    for each in result.not_tried:
        facts.add_row("not tried", Text(f"{plural(each.trials, 'trial')}: {each.reason}", "yellow"))
    if result.restarts:
        facts.add_row("restarted", Text(format_restarts(result.restarts), "yellow"))
    if result.device_time and result.new_trials:
        facts.add_row("limited by", Text(format_bounds(result.device_time)))
    if result.store is not None:
        facts.add_row("store", Text(_from_store(result.store, len(result.tasks))))
    if result.transferred is not None:
        facts.add_row("learned from", Text(_transferred(result.transferred)))
    for line in skipped_lines(result.left_out):
        facts.add_row("skipped", Text(line, "yellow"))
    for notice in result.notices[-_NOTICES:]:
        facts.add_row("noticed", Text(notice_line(notice), "yellow"))
    if result.inputs and result.networks:
        facts.add_row("inputs", Text(result.inputs))
    for network in result.networks:
        of_class = f"{network.device_class}: " if len(result.networks) > 1 else ""
        for label, line, style in network_lines(network):
            facts.add_row(label, Text(of_class + line, style))
    nothing = result.interrupted and not total
    if not nothing and (result.new_trials or not result.networks):  # a compilation reads records that lie elsewhere
        facts.add_row("records", Text(str(result.out / "records.db")))
    for network in result.networks:
        if network.published == "nothing":
            continue
        call = f'network = fleet_tune.load("{network.folder}"); outputs = network(*inputs)'
        facts.add_row("load it", Text(call, "cyan"))
    parts.append(facts)
    if nothing:
        parts += [Text(""), Text("Stopped before anything was measured.", "yellow")]
    elif result.interrupted:
        parts += [Text(""), Text("Stopped early. Everything measured is stored.", "yellow")]
        parts.append(Text("The same command goes on from here; fleet-tune compile builds what was found so far."))
    return Group(Text(""), _headline(result), *parts)


def render_plan(plan: Plan) -> RenderableType:
    """Render the output of ``--dry-run``: the tasks, their sketches, the devices and the limits."""
    table = _table("task", "device class")
    _add_numbers(table, "calls", "GFLOP", "share", "sketches")
    totals: dict[str, float] = {}
    for task in plan.tasks:
        totals[task.device_class] = totals.get(task.device_class, 0.0) + task.weight * task.flop
    for task in sorted(plan.tasks, key=lambda task: -task.weight * task.flop):
        total = totals[task.device_class]
        table.add_row(
            cut(task.name),
            cut(task.device_class),
            str(task.weight),
            f"{task.flop / 1e9:.4f}",
            f"{task.weight * task.flop / total:.0%}" if total else NONE,
            str(task.sketches),
        )
    limits = []
    if plan.time_budget_secs is not None:
        limits.append(f"{format_clock(plan.time_budget_secs)} of tuning")
    if plan.trial_limit is not None:
        limits.append(plural(plan.trial_limit, "trial"))
    facts = fact_grid()
    facts.add_row("method", Text(plan.method))
    facts.add_row("budget", Text(" or ".join(limits) + (", whichever ends first" if len(limits) > 1 else "")))
    if plan.transferred is not None or plan.store is None or not plan.store.taught:
        facts.add_row("learns from", Text("nothing" if plan.transferred is None else _transferred(plan.transferred)))
    if plan.store is not None:
        facts.add_row("store", Text(_from_store(plan.store, len(plan.tasks))))
    for name, what in plan.devices.items():
        facts.add_row("device", Text(f"{name}: {what}"))
    if plan.inputs:
        facts.add_row("inputs", Text(plan.inputs))
    if plan.precision is not None:
        facts.add_row("precision", Text("; ".join([plan.precision, *map(_error_of, plan.errors.items())])))
    for line in skipped_lines(plan.left_out):
        facts.add_row("skipped", Text(line, "yellow"))
    heading = Text.assemble((plan.network, "bold"), f": {plural(len(plan.tasks), 'task')}. Nothing was measured.")
    return Group(heading, table, facts)


def to_json(value: TuneResult | Plan) -> dict[str, Any]:
    """Return the result or plan as plain JSON values. Keys are the field names of the dataclasses, but the network's
    name is ``model``, as in earlier versions.

    It adds the derived figures ``gflops`` per task, ``speedup_over_untuned`` and ``speedup_over_framework`` of each
    network, and ``bounds`` by device class. Infinities and unknown values are null.
    """
    fields = _plain(value)
    plain: dict[str, Any] = {"model": fields.pop("network"), **fields}
    for task, fields in zip(value.tasks, plain["tasks"], strict=True):
        fields["gflops"] = task.gflops
    if isinstance(value, TuneResult):
        plain["bounds"] = value.bounds
        for network, fields in zip(value.networks, plain["networks"], strict=True):
            fields["speedup_over_untuned"] = _speedup(network.untuned_secs, network.secs)
            fields["speedup_over_framework"] = _speedup(network.framework_secs, network.secs)
            if network.in_network is not None:
                fields["in_network"] |= network.in_network.sums
    return plain


def to_json_line(value: TuneResult | Plan) -> str:
    """Return one line of JSON; see :func:`to_json`."""
    return json_line(to_json(value))


def save_svg(renderable: RenderableType, path: Path, title: str, width: int = 110) -> None:
    """Save an SVG picture of what a terminal of ``width`` columns would show."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Padding(renderable, (0, 1)))
    console.save_svg(str(path), title=title)


_LIMITS: Mapping[str, str] = {
    DeviceTime.MEASURE: "measurements",
    DeviceTime.SEARCH: "the search",
    DeviceTime.BUILD: "builds",
    DeviceTime.WINDOW: "quiet windows",
    DeviceTime.TURN: "other runs",
    DeviceTime.COMMIT: "the record store",
    DeviceTime.TASKS: "a lack of tasks",
}


def format_bounds(device_time: Mapping[str, Mapping[str, float]]) -> str:
    """Describe the limits of each device class, and the share of time in which its devices measure; see
    :attr:`fleet_tune.base.results.Progress.device_time`."""
    texts = []
    for device_class, shares in device_time.items():
        measured = shares.get(DeviceTime.MEASURE, 0.0)
        texts.append(
            f"{_LIMITS.get(bound_by(shares), '')} on {device_class} (devices measure {measured:.0%} of the time)"
        )
    return ", ".join(texts)


def _error_of(entry: tuple[str, OutputErrors]) -> str:
    device_class, errors = entry
    largest = f"{errors.absolute:.2g} absolute, {errors.relative:.2g} relative"
    return f"on {device_class}, untuned: largest error {largest}, mean error {errors.mean:.2g} relative"


def _headline(result: TuneResult) -> Text:
    text = Text()
    for network in result.networks:
        text.append(result.network, "bold")
        text.append(f" on {network.device_class}: ")
        if network.published == "nothing":
            text.append("not published", "bold red")
        else:
            disturbed = network.on_busy_host or network.slowness >= SLOW
            text.append(format_secs(network.secs), "bold yellow" if disturbed else "bold green")
            if disturbed:
                text.append(" on a busy host" if network.on_busy_host else " in a slow moment", "yellow")
        for name, secs in ((network.framework, network.framework_secs), ("untuned", network.untuned_secs)):
            speedup = _speedup(secs, network.secs)
            if speedup is not None:
                text.append(f", {_times(speedup)} as fast as {name}")
        text.append("\n")
    if not result.networks:
        text.append(result.network, "bold")
        text.append(": no network was compiled\n")
    return text


def _transferred(what: Transferred) -> str:
    """``last/records.db: 340 candidates; 3 tasks by their own workload's, 1 task by all of them``."""
    source = "the cost model that comes with fleet-tune" if what.source in BUILTINS else what.source
    if not what.candidates:
        return f"{source}, for {plural(what.shared_tasks, 'task')}"
    counted = ((what.own_tasks, "by their own workload's"), (what.shared_tasks, "by all of them"))
    parts = [f"{plural(count, 'task')} {how}" for count, how in counted if count]
    return f"{source}: {plural(what.candidates, 'candidate')}; {', '.join(parts)}"


_CONFIRMED = "of which a few trials are enough"


def _from_store(what: FromStore, tasks: int) -> str:
    """``3 of 5 tasks known (210 records), 2 of them need no trial: /home/me/.../store.db``."""
    parts = []
    if what.known:
        settled = (
            f", {what.settled} of them {'needs' if what.settled == 1 else 'need'} no trial" if what.settled else ""
        )
        parts.append(f"{what.known} of {plural(tasks, 'task')} known ({plural(what.records, 'record')}){settled}")
    if what.confirmed:
        parts.append(f"{what.confirmed} known to other versions, {_CONFIRMED}")
    if what.seeded:
        parts.append(f"{what.seeded} with schedules of similar ones")
    if what.taught:
        verb = "learns" if what.taught == 1 else "learn"
        parts.append(f"{what.taught} {verb} from {plural(what.learned, 'candidate')} of similar ones")
    if what.shipped:
        same = f", {what.shipped_confirmed} of this processor, {_CONFIRMED}" if what.shipped_confirmed else ""
        parts.append(f"{what.shipped} with records that come with fleet-tune{same}")
    return f"{'; '.join(parts) or 'nothing of these tasks yet'}: {what.path}"


def _network_table(network: NetworkResult) -> Table:
    table = _table(network.device_class)
    _add_numbers(table, "latency", "tuned is")
    untuned = "untuned (timed before)" if network.untuned_earlier else "untuned"
    for name, secs in ((untuned, network.untuned_secs), (network.framework, network.framework_secs)):
        speedup = _speedup(secs, network.tuned_secs)
        if speedup is not None:
            style = "green" if speedup >= 1 else "yellow"
            table.add_row(cut(name), format_secs(secs), Text(f"{_times(speedup)} as fast", style))
    table.add_row(cut("tuned", "bold"), Text(format_secs(network.tuned_secs), "bold"), "")
    return table


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(cut(title))
    return table


def _add_numbers(table: Table, *titles: str) -> None:
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)


def _known_secs(tasks: Sequence[TaskProgress]) -> dict[str, float]:
    """Return by device class the sum of weight times best seconds over the tasks that have a result."""
    totals: dict[str, float] = {}
    for task in tasks:
        secs = task.weight * task.best_secs if math.isfinite(task.best_secs) else 0.0
        totals[task.device_class] = totals.get(task.device_class, 0.0) + secs
    return totals


def _speedup(peer_secs: float | None, tuned_secs: float | None) -> float | None:
    if peer_secs is None or tuned_secs is None or not math.isfinite(peer_secs):
        return None
    return peer_secs / tuned_secs


def _times(speedup: float) -> str:
    return f"{speedup:.{2 if speedup < 10 else 1 if speedup < 100 else 0}f}×"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
