"""Other processes of this machine, as ``/proc`` shows them: their identity, and whether they are stopped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_COMMAND_CHARACTERS = 60
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_STOPPED = "Tt"  # by a signal, or by a debugger
_GONE = "ZX"


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process of this machine."""

    pid: int
    started: str
    """Start time in ticks since boot. A process with the same number and another start time is another process."""
    namespace: str
    """Namespace in which the number is valid."""

    @classmethod
    def of(cls, pid: int) -> HostProcess:
        """Return the running process with this number. Raise OSError if ``/proc`` does not show it."""
        return cls(pid, stat_fields(pid)[19], pid_namespace())

    def is_there(self) -> bool:
        """Return true if the process has not ended. A process of another container cannot be seen, and counts as
        there."""
        if self.namespace != pid_namespace():
            return True
        try:
            fields = stat_fields(self.pid)
        except OSError:
            return False
        return fields[19] == self.started and fields[0] not in _GONE

    def ticks(self) -> int | None:
        """Return the processor time that the process has taken, in ticks of the clock; ``None`` if it is not known."""
        try:
            fields = stat_fields(self.pid)
        except OSError:
            return None
        return int(fields[11]) + int(fields[12]) if self.namespace == pid_namespace() else None

    def stands_still(self) -> bool:
        """Return true if somebody has stopped the process, so that it does not run until somebody continues it. A slow
        process is not stopped."""
        try:
            stopped = stat_fields(self.pid)[0] in _STOPPED or _is_frozen(self.pid)
        except OSError:
            return False
        return stopped and self.is_there() and self.namespace == pid_namespace()


def process_text(pid: int, title: str = "") -> str:
    """Describe a process: its number, its ``title`` or else its command, and whether it is stopped."""
    facts = [title or _command(pid)]
    with contextlib.suppress(OSError):
        if HostProcess.of(pid).stands_still():
            facts.append("stopped")
    told = ", ".join(filter(None, facts))
    return f"process {pid} ({told})" if told else f"process {pid}"


def holder_text(pid: int) -> str:
    """Describe the holder of a lock: its number, and how to continue it if somebody has stopped it."""
    with contextlib.suppress(OSError):
        if HostProcess.of(pid).stands_still():
            return f"process {pid}, which is stopped: kill -CONT {pid} continues it"
    return f"process {pid}"


def writers_of(files: Iterable[Path]) -> list[int]:
    """Return the numbers of the other processes that hold a write lock on one of these files, from the list of the
    kernel. It also shows the writers of a SQLite database, which write their number nowhere."""
    numbers = set()
    for file in files:
        with contextlib.suppress(OSError):
            found = file.stat()
            numbers.add(f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}")
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    held = [words for words in lines if len(words) >= 6 and words[1] != "->" and words[3] == "WRITE"]
    pids = {int(words[4]) for words in held if words[5] in numbers and words[4].isdigit()}
    return sorted(pids - {os.getpid(), 0})


def _command(pid: int) -> str:
    """Return the command of a process, shortened; empty if it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    command = " ".join(" ".join([os.path.basename(words[0]), *words[1:]]).split())
    return command if len(command) <= _COMMAND_CHARACTERS else f"{command[: _COMMAND_CHARACTERS - 1]}…"


def stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name, which may contain any characters. Raise OSError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def pid_namespace() -> str:
    """Return the namespace of the process numbers that this process sees."""
    return os.readlink("/proc/self/ns/pid")


def _is_frozen(pid: int) -> bool:
    """Return true if the control group (version 2) of a process is frozen, which the state of the process does not
    show."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            with contextlib.suppress(OSError):
                return "frozen 1" in (_CONTROL_GROUPS / path.lstrip("/") / "cgroup.events").read_text()
    return False
