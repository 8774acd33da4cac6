"""Processes of a host that stand still while a device measures, and go on afterwards whatever happens.

Files in one folder on a local file system say which processes may be stopped, which are, and for how long all of them
together have been:

- ``pausable/``: one file for each process or process group that may be stopped. Whoever put it there holds a lock on it
  (flock(2), which the kernel releases when a process dies), and what nobody holds is not stopped.
- ``paused/``: one file for each process that has stopped others, with those that it is about to stop, written before.
- ``ledger``: seconds for which windows were open (CLOCK_MONOTONIC), by which a build's seconds are counted.

Who stops others may die. A guardian (:mod:`devices.host.quiet_windows.guardian`), a process outside of its process
group that holds the other end of a pipe, then lets them go on at once, unless another window is open by then; and
whoever finds files in ``paused/`` while no window is open does the same. SIGSTOP cannot be refused, and SIGKILL ends
stopped processes too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOM = "room"
"""The file that a window holds locked while it is open (see :mod:`devices.host.quiet_windows.quiet_window`)."""
_LEDGER = struct.Struct("<dd")  # seconds of the windows that are closed; when the open one was opened, 0 for none
_ROOT = Path(__file__).resolve().parents[3]
# A process in a call of the kernel that cannot be interrupted (the disk) stops when it returns.
_STOPPED_WITHIN_SECS = 0.05
_LOOK_EVERY_SECS = 0.0005


@dataclass(frozen=True)
class PausableProcess:
    """A process, or its whole ``group``. ``started``: when, in ticks since boot: a process of the same number that
    started at another time is another one. ``namespace``: in which the number counts."""

    pid: int
    group: bool
    started: str
    namespace: str

    @classmethod
    def of(cls, pid: int, *, group: bool) -> PausableProcess:
        """A process that runs. Raises OSError."""
        return cls(pid, group, _started(pid), _namespace())

    @property
    def text(self) -> str:
        return f"{self.pid} {int(self.group)} {self.started} {self.namespace}\n"

    def send(self, number: signal.Signals) -> bool:
        """Whether it is there to be signalled. A group goes on also where its first process is gone meanwhile."""
        try:
            if self.namespace != _namespace() or self.pid == os.getpid():
                return False
            # No process has the number, and so none got it again: the kernel keeps it while there is a group of it.
            orphaned = self.group and number is signal.SIGCONT and not Path(f"/proc/{self.pid}").exists()
            if not orphaned and _started(self.pid) != self.started:
                return False
            (os.killpg if self.group else os.kill)(self.pid, number)
        except OSError:  # it has ended
            return False
        return True

    def runs(self) -> bool:
        """Whether it is there, and not stopped."""
        try:
            return _state(self.pid) not in "TtZX"
        except OSError:
            return False


class PauseRegistration:
    """A process may be stopped, until this is closed or the process that holds this ends."""

    def __init__(self, folder: Path, process: PausableProcess) -> None:
        (folder / "pausable").mkdir(exist_ok=True)
        self._path = folder / "pausable" / f"{process.pid}-{secrets.token_hex(4)}"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.write(self._descriptor, process.text.encode())

    def close(self) -> None:
        """May be called twice."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1


class ProcessPauser:
    """Stops what is registered in ``folder``. One at a time: whoever has the host's window."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lifeline: int | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Everything that may be stopped stands still."""
        self.let_all_go_on()  # what the last one could not
        processes = list(self._registered())
        if not processes:
            yield
            return
        self._guarded()
        note = _note(self._folder, os.getpid())
        _write_note(note, processes)
        try:
            _open_ledger(self._folder)
            _wait_stopped([process for process in processes if process.send(signal.SIGSTOP)])
            yield
        finally:
            let_go_on(self._folder, note)

    def let_all_go_on(self) -> None:
        """Let go on what somebody has stopped that is gone. Only where no window is open."""
        if (self._folder / "paused").exists():
            for note in (self._folder / "paused").iterdir():
                let_go_on(self._folder, note)

    def close(self) -> None:
        """End the guardian."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _registered(self) -> Iterator[PausableProcess]:
        if not (self._folder / "pausable").exists():
            return
        for path in (self._folder / "pausable").iterdir():
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()  # whoever held it is gone
                except BlockingIOError:
                    yield from _listed(path)
                finally:
                    os.close(descriptor)

    def _guarded(self) -> None:
        """Have a guardian. Raises RuntimeError where none can be had."""
        if self._lifeline is not None:
            try:
                os.write(self._lifeline, b".")
                return
            except BrokenPipeError:
                self.close()
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        theirs, ours = os.pipe()
        with open(theirs, "rb") as lifeline:
            # It forks and ends: its child is nobody's, and not killed with this process' children.
            started = subprocess.run(
                [sys.executable, "-m", "devices.host.quiet_windows.guardian", str(self._folder), str(os.getpid())],
                stdin=lifeline,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
                check=False,
            )
        self._lifeline = ours
        if started.returncode:
            self.close()
            raise RuntimeError(f"what watches over stopped processes did not start: {started.stderr.decode()[-500:]}")


def let_go_on(folder: Path, note: Path) -> None:
    """Let the processes of a note go on, and remove it."""
    try:
        for process in _listed(note):
            process.send(signal.SIGCONT)
        _close_ledger(folder)
    finally:
        note.unlink(missing_ok=True)


def let_go_on_for(folder: Path, pid: int) -> None:
    """Let go on what the process ``pid`` has stopped, which is gone. Where another window is open by now, that has let
    them go on, and stopped them anew for itself: it is waited for, and nothing is left to do."""
    note = note_of(folder, pid)
    if not note.exists():
        return
    room = os.open(folder / ROOM, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(room, fcntl.LOCK_SH)
        if note.exists():
            let_go_on(folder, note)
    finally:
        os.close(room)


def note_of(folder: Path, pid: int) -> Path:
    """Where it says what the process ``pid`` has stopped; the file is there while it does."""
    return _note(folder, pid)


def running_clock(folder: Path) -> float:
    """Seconds since some moment, without those in which what may be stopped stood still."""
    closed, opened = _read_ledger(folder)
    return (opened or time.monotonic()) - closed


def _note(folder: Path, pid: int) -> Path:
    return folder / "paused" / str(pid)


def _write_note(note: Path, processes: Iterable[PausableProcess]) -> None:
    """Whole or not at all: its writer may be killed, and the disk full. Raises OSError."""
    note.parent.mkdir(exist_ok=True)
    beside = note.parent.parent / f"paused.{note.name}.new"
    try:
        beside.write_text("".join(process.text for process in processes))
        beside.rename(note)
    finally:
        beside.unlink(missing_ok=True)


def _listed(path: Path) -> list[PausableProcess]:
    """The processes that a file names. A line that is not whole is left out: the others can be let go on."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    processes = []
    for line in lines:
        with contextlib.suppress(ValueError):
            pid, group, started, namespace = line.split(" ")
            processes.append(PausableProcess(int(pid), bool(int(group)), started, namespace))
    return processes


def _wait_stopped(processes: Iterable[PausableProcess]) -> None:
    """Until they stand still, or for as long as anybody waits for that."""
    deadline = time.monotonic() + _STOPPED_WITHIN_SECS
    waited_for = list(processes)
    while time.monotonic() < deadline and (waited_for := [each for each in waited_for if each.runs()]):
        time.sleep(_LOOK_EVERY_SECS)


def _open_ledger(folder: Path) -> None:
    closed, _ = _read_ledger(folder)
    _write_ledger(folder, closed, time.monotonic())


def _close_ledger(folder: Path) -> None:
    closed, opened = _read_ledger(folder)
    if opened:
        _write_ledger(folder, closed + time.monotonic() - opened, 0.0)


def _read_ledger(folder: Path) -> tuple[float, float]:
    try:
        closed, opened = _LEDGER.unpack((folder / "ledger").read_bytes())
    except (FileNotFoundError, struct.error):
        return 0.0, 0.0
    return (closed, opened) if opened <= time.monotonic() else (closed, 0.0)  # else the machine was started anew


def _write_ledger(folder: Path, closed: float, opened: float) -> None:
    descriptor = os.open(folder / "ledger", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _LEDGER.pack(closed, opened), 0)
    finally:
        os.close(descriptor)


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _started(pid: int) -> str:
    return _stat(pid)[19]


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` behind the name, which may hold anything. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
