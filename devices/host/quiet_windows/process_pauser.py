"""Processes of a host that are stopped while a device measures, and continued afterwards whatever happens.

Files in one folder on a local file system say which processes may be stopped, which processes are stopped, and for how
long windows were open:

- ``pausable/``: one file for each process or process group that may be stopped. Its writer holds a lock on it
  (flock(2), which the kernel releases when a process dies); without that lock the process is not stopped.
- ``paused/``: one file for each process that has stopped others. It lists them, and is written before they are stopped.
- ``ledger``: seconds for which windows were open (CLOCK_MONOTONIC). They do not count as a build's seconds.

A process that stops others may die. A guardian (:mod:`devices.host.quiet_windows.guardian`), a process outside of its
process group that holds the other end of a pipe, then continues them at once, unless another window is open by then. So
does any process that finds files in ``paused/`` while no window is open. SIGSTOP cannot be refused, and SIGKILL ends
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

from devices.host.quiet_windows.window_locks import ROOM, WindowLocks
from fleet_tune.base.processes import pid_namespace, stat_fields

_LEDGER = struct.Struct("<dd")  # seconds of all closed windows; opening time of the open one, 0 for none
_ROOT = Path(__file__).resolve().parents[3]
# A process in an uninterruptible system call (of the disk) stops only when the call returns.
_STOPPED_WITHIN_SECS = 0.05
_LOOK_EVERY_SECS = 0.0005


@dataclass(frozen=True)
class PausableProcess:
    """A process, or its whole process group."""

    pid: int
    group: bool
    """True for the whole group."""
    started: str
    """Start in ticks since boot: a process with the same id that started at another time is another process."""
    namespace: str
    """Namespace of the process id."""

    @classmethod
    def of(cls, pid: int, *, group: bool) -> PausableProcess:
        """Return a process that runs. Raises OSError."""
        return cls(pid, group, stat_fields(pid)[19], pid_namespace())

    @property
    def text(self) -> str:
        return f"{self.pid} {int(self.group)} {self.started} {self.namespace}\n"

    def send(self, number: signal.Signals) -> bool:
        """Send a signal. Returns true if the process is there. SIGCONT also reaches a group whose first process is
        gone."""
        try:
            if self.namespace != pid_namespace() or self.pid == os.getpid():
                return False
            # No process has this id, so none can have reused it: the kernel does not reuse it while the group exists.
            orphaned = self.group and number is signal.SIGCONT and not Path(f"/proc/{self.pid}").exists()
            if not orphaned and stat_fields(self.pid)[19] != self.started:
                return False
            (os.killpg if self.group else os.kill)(self.pid, number)
        except OSError:  # it has ended
            return False
        return True

    def runs(self) -> bool:
        """Return true if the process is there and not stopped."""
        try:
            return stat_fields(self.pid)[0] not in "TtZX"
        except OSError:
            return False


class PauseRegistration:
    """Permission to stop a process, until this is closed or the process that holds it ends."""

    def __init__(self, folder: Path, process: PausableProcess) -> None:
        (folder / "pausable").mkdir(exist_ok=True)
        self._path = folder / "pausable" / f"{process.pid}-{secrets.token_hex(4)}"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            os.write(self._descriptor, process.text.encode())
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Withdraw the permission. May be called twice."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1


class ProcessPauser:
    """Stops the processes that are registered in ``folder``. One at a time: the holder of the host's window."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lifeline: int | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop everything that may be stopped, for the length of the block."""
        self.resume_abandoned()  # processes that the last window left stopped
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
            resume_processes(self._folder, note)

    def resume_abandoned(self) -> None:
        """Continue processes that a process which is gone has stopped. Only to be called while no window is open."""
        if (self._folder / "paused").exists():
            for note in (self._folder / "paused").iterdir():
                resume_processes(self._folder, note)

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
        """Start a guardian if there is none. Raises RuntimeError if that fails."""
        if self._lifeline is not None:
            try:
                os.write(self._lifeline, b".")
                return
            except BrokenPipeError:
                self.close()
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        theirs, ours = os.pipe()
        with open(theirs, "rb") as lifeline:
            # It forks and ends: its child has no parent, and is not killed with this process' children.
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
            raise RuntimeError(f"the guardian of stopped processes did not start: {started.stderr.decode()[-500:]}")


def resume_processes(folder: Path, note: Path) -> None:
    """Continue the processes of a note, and remove the note. If there is no note, another window has done so."""
    if not note.exists():
        return
    try:
        for process in _listed(note):
            process.send(signal.SIGCONT)
        _close_ledger(folder)
    finally:
        note.unlink(missing_ok=True)


def resume_processes_of(folder: Path, pid: int) -> None:
    """Continue the processes that ``pid``, which is gone, has stopped.

    If another window is open by now, it has continued them and stopped them again for itself. Then this waits for its
    end, and nothing is left to do.
    """
    note = note_of(folder, pid)
    if not note.exists():
        return
    locks = WindowLocks(folder)
    room = os.open(locks.path(ROOM, locks.generation), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(room, fcntl.LOCK_SH)
        if note.exists():
            resume_processes(folder, note)
    finally:
        os.close(room)


def note_of(folder: Path, pid: int) -> Path:
    """Return the file that lists the processes that ``pid`` has stopped; it exists while they are stopped."""
    return _note(folder, pid)


def running_clock(folder: Path) -> float:
    """Return the seconds since a fixed moment, without the seconds in which pausable processes were stopped."""
    closed, opened = _read_ledger(folder)
    return (opened or time.monotonic()) - closed


def window_open_secs(folder: Path) -> float:
    """Return the seconds since the opening of the window that has stopped processes; 0 if none is open."""
    _, opened = _read_ledger(folder)
    return time.monotonic() - opened if opened else 0.0


def _note(folder: Path, pid: int) -> Path:
    return folder / "paused" / str(pid)


def _write_note(note: Path, processes: Iterable[PausableProcess]) -> None:
    """Write a note completely or not at all: its writer may be killed, or the disk may be full. Raises OSError."""
    note.parent.mkdir(exist_ok=True)
    beside = note.parent.parent / f"paused.{note.name}.new"
    try:
        beside.write_text("".join(process.text for process in processes))
        beside.rename(note)
    finally:
        beside.unlink(missing_ok=True)


def _listed(path: Path) -> list[PausableProcess]:
    """Return the processes that a file names. A damaged line is skipped: the others can be continued."""
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
    """Wait until the processes are stopped, for a short time at most."""
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
    return (closed, opened) if opened <= time.monotonic() else (closed, 0.0)  # else the machine was restarted


def _write_ledger(folder: Path, closed: float, opened: float) -> None:
    descriptor = os.open(folder / "ledger", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _LEDGER.pack(closed, opened), 0)
    finally:
        os.close(descriptor)
