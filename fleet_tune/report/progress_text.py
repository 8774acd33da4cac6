"""The state of a run in words, for its own live view, ``fleet-tune watch`` and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from fleet_tune.base.results import Progress
from fleet_tune.report.run import cut, format_bounds, format_clock, notice_line, plural

_NOTICES = 3  # number of the last notices that are shown
_OTHER_SPEED = 0.05
"""Smallest deviation of a device's speed that is shown."""
_GOOD_STATES = ("good", "idle", "busy", "measuring")


def heading(progress: Progress) -> str:
    """Return the phase, and what is done in it: ``starting: importing the network``."""
    return f"{progress.phase}: {progress.doing}" if progress.doing else progress.phase


def left_text(progress: Progress) -> str:
    """Return what is left of the budgets: ``2:10 left (done in about 2:40) or 12 trials left``. Empty without one."""
    texts = []
    if progress.time_budget_secs is not None:
        texts.append(f"{format_clock(progress.time_budget_secs - progress.elapsed_secs)} left")
        if progress.done_secs is not None:
            texts[-1] += f" (done in about {format_clock(progress.done_secs - progress.elapsed_secs)})"
    if progress.trial_limit is not None:
        texts.append(f"{plural(max(0, progress.trial_limit - progress.trials), 'trial')} left")
    return " or ".join(texts)


def behind_text(progress: Progress) -> str:
    """Return the devices on which it is another run's turn, each with that run and how long this one has waited."""
    return ", ".join(
        f"device {name} for {title}, {format_clock(max(0.0, progress.elapsed_secs - since))} so far"
        for name, (title, since) in progress.behind.items()
    )


def silent_text(progress: Progress) -> str:
    """Return the processes that are gone or hang, each with the time since then."""
    return ", ".join(
        f"{name} for {format_clock(max(0.0, progress.elapsed_secs - since))}" for name, since in progress.silent.items()
    )


def _speed_text(progress: Progress, device: str) -> str:
    """Return the speed of a device that noise or heat slows down: `` at 80% of its speed``. Empty at its usual one."""
    speed = progress.vitals.get(device, {}).get("speed", 1.0)
    return f" at {speed:.0%} of its speed" if abs(speed - 1) >= _OTHER_SPEED else ""


def state_rows(progress: Progress) -> Iterator[tuple[str, Text]]:
    """Yield labels and texts: devices, what the run waits for, what limits it, and its last notices."""
    devices = cut("")
    for name, state in progress.devices.items():
        devices.append(", " if devices else "")
        devices.append(f"{name} ")
        devices.append(state, "green" if state in _GOOD_STATES else "yellow")
        devices.append(_speed_text(progress, name), "yellow")
    if progress.devices:
        yield "devices", devices
    if progress.behind:
        yield "waits", cut(behind_text(progress), "yellow")
    if progress.silent:
        yield "silent", cut(silent_text(progress), "yellow")
    if progress.device_time:
        yield "limited by", cut(format_bounds(progress.device_time))
    for notice in progress.notices[-_NOTICES:]:
        yield "noticed", cut(notice_line(notice), "yellow")
