"""Progress of a run, from its first snapshot to its last."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from actors.tuning_session import TuningSession
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.domain import Limits
from fleet_tune.base.errors import FleetTuneError
from fleet_tune.base.results import Progress
from fleet_tune.base.waits import WAITS
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.progress_file import ProgressFile
from fleet_tune.runs.run_callback import RunCallback

PROGRESS_SECS = 0.5
_LOG = logging.getLogger(__name__)


class ProgressReporter:
    """Reports the snapshots of a run about twice a second, and keeps the last one.

    Args:
        limits: when the run ends.
        on_progress: is called with every snapshot. Only its first error is logged; an error does not end the run.
        callbacks: get the snapshots of the tuning, and each phase, too.
        file: keeps the snapshots for other processes. None if they are not kept.
    """

    def __init__(
        self,
        limits: Limits,
        on_progress: Callable[[Progress], None] | None,
        callbacks: Sequence[RunCallback] = (),
        file: ProgressFile | None = None,
    ) -> None:
        self.started = time.monotonic()
        self.last: Progress | None = None
        """The last snapshot of the tuning or of the steps after it. None before the tuning begins."""
        self.syncs_with = ""
        """Name of the team's store during its first synchronization; empty otherwise."""
        self.finishing_secs: float | None = None
        """Expected seconds from the end of the time budget to the end of the command. None while not known."""
        self.tuning_began: float | None = None
        """Seconds from the start of the run to the start of its tuning. None before the first snapshot."""
        self._limits = limits
        self._on_progress = on_progress
        self._callbacks = callbacks
        self._file = file
        self._waits_for = ""
        self._callback_failed = False

    @property
    def elapsed_secs(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def close(self) -> None:
        """Remove the file of the snapshots."""
        if self._file is not None:
            self._file.close()

    def announce(self, waits_for: str = "") -> None:
        """Report that the run has not begun to tune yet. ``waits_for``: what it waits for; empty for nothing."""
        self._waits_for = waits_for
        self._announce(waits_for)

    def _announce(self, waits_for: str) -> None:
        doing = waits_for or ACTIVITY.text or "importing the network, starting the devices"
        if self.syncs_with:
            doing += f", synchronizing the store {self.syncs_with}"
        # The time budget counts from the start of the tuning.
        begun = (self.elapsed_secs, None, self._limits.trials)
        self._pass_on(Progress("starting", *begun, 0, 0, {}, 0.0, {}, {}, (), doing=doing))

    async def announce_waiting(self) -> None:
        """Report again and again what the run does or waits for, with the elapsed time, until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_SECS)
            self._announce(self._waits_for or _waits())

    async def follow(self, session: TuningSession) -> None:
        """Report the snapshots of a session until cancelled."""
        while True:
            await self.report(session)
            await asyncio.sleep(PROGRESS_SECS)

    async def report(self, session: TuningSession) -> None:
        """Report one snapshot of a session."""
        await self._report(session.progress())

    async def report_last(self, session: TuningSession) -> None:
        """Report the snapshot of a session whose tuning is over."""
        await self._report(session.last_progress())

    async def _report(self, snapshot: Awaitable[Progress]) -> None:
        with contextlib.suppress(FleetTuneError):  # the stream of records raises the error of a lost scheduler
            self.update(await snapshot)

    def update(self, progress: Progress) -> None:
        """Report this snapshot, whose times count from the start of the tuning."""
        if self.tuning_began is None:
            self.tuning_began = max(0.0, self.elapsed_secs - progress.elapsed_secs)
        progress = progress.later(self.tuning_began)
        if self.finishing_secs is not None and progress.time_budget_secs is not None:
            progress = dataclasses.replace(progress, done_secs=progress.time_budget_secs + self.finishing_secs)
        self.last = progress
        self._enter(progress.phase)
        for callback in self._callbacks:
            callback.on_progress(progress)
        self._pass_on(progress)

    def show(self, phase: str, compiling: CompileProgress | None = None) -> None:
        """Report the last snapshot with another phase and the progress of compiling. After the tuning there are no
        actors that could be asked for a snapshot."""
        if self.last is None:
            return
        self._enter(phase)
        self.last = dataclasses.replace(self.last, phase=phase)
        if compiling is not None:
            self.last = dataclasses.replace(
                self.last, elapsed_secs=compiling.elapsed_secs, doing=compiling.doing, notices=compiling.notices
            )
        self._pass_on(self.last)

    async def show_compiling(self, compiling: CompileProgress, phase: str = "compiling") -> None:
        """Report the progress of compiling until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_SECS)
            self.show(phase, compiling)

    async def show_waits(self) -> None:
        """Report what this command waits for after the tuning, until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_SECS)
            waits = _waits()
            if waits and self.last is not None:
                self._pass_on(dataclasses.replace(self.last, doing=waits))

    def _pass_on(self, progress: Progress) -> None:
        if self._file is not None:
            self._file.write(progress)
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
        except Exception:  # an error of the caller's code, say an experiment server that is not reachable for a moment
            if not self._callback_failed:
                _LOG.exception("the progress callback failed: the run goes on, and calls it with each snapshot")
            self._callback_failed = True

    def _enter(self, phase: str) -> None:
        for callback in self._callbacks:
            callback.on_phase(phase)

    def compile_progress(self) -> CompileProgress:
        """Return the progress of compiling, which continues the time and the notices of the last snapshot."""
        return CompileProgress(self.elapsed_secs, () if self.last is None else self.last.notices)

    def warn(self, text: str) -> None:
        """Add a notice to the last snapshot. A run without a snapshot only logs it."""
        if self.last is None:
            _LOG.warning("%s", text)
            return
        notices = self.compile_progress()
        notices.warn(text)
        self.last = dataclasses.replace(self.last, notices=notices.notices)


def _waits() -> str:
    """Return what this command waits for, in words; empty if it waits for nothing."""
    return " and ".join(f"waits for {wait.text_so_far}" for wait in WAITS.waits)
