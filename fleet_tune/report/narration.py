"""Messages of a command while it works: their level of detail, and their log file."""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fleet_tune.base.errors import RequestError
from fleet_tune.base.results import Progress
from fleet_tune.report.words import format_secs


class Detail(enum.IntEnum):
    """Level of detail of the messages of a command. Errors and the result are printed at every level."""

    QUIET = 0  # only warnings
    NORMAL = 1  # the progress as a whole
    VERBOSE = 2  # each task's new best too


@dataclass(frozen=True)
class Narration:
    """Settings of the messages of a command.

    Args:
        detail: level of the messages on stderr.
        log_file: the file that gets all messages, with the time of each line; None for no file.
    """

    detail: Detail = Detail.NORMAL
    log_file: Path | None = None

    def open_log(self) -> LogFile | None:
        """Open the log file to append to it; None without one. Raises RequestError if it cannot be written."""
        return None if self.log_file is None else LogFile(self.log_file)


class LogFile:
    """A file of lines, each with its time. Raises RequestError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", buffering=1)
        except OSError as error:
            raise RequestError(
                f"--log-file: {path} cannot be written ({error.strerror})", "name a file in a folder that is there"
            ) from error

    def write(self, line: str) -> None:
        """Append a line. If the disk is full, the line is lost: this must not end the run."""
        with contextlib.suppress(OSError):
            self._file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class NewBests:
    """Finds in each snapshot the tasks that have a faster kernel than in the one before."""

    def __init__(self) -> None:
        self._best_secs: dict[str, float] = {}
        self._finished: set[str] = set()

    def lines(self, progress: Progress) -> Iterator[str]:
        """Yield a line for each task with a new best, and for each that gets no more trials."""
        for task in progress.tasks:
            before = self._best_secs.get(task.task_id, math.inf)
            if task.best_secs < before:
                self._best_secs[task.task_id] = task.best_secs
                was = f" instead of {format_secs(before)}" if math.isfinite(before) else ""
                rule = f", {task.best_rule}" if task.best_rule else ""
                yield f"{task.name} on {task.device_class}: {format_secs(task.best_secs)}{was}{rule}"
            if task.finished and task.finish_reason and task.task_id not in self._finished:
                self._finished.add(task.task_id)
                yield f"{task.name} on {task.device_class} is finished: {task.finish_reason}"
