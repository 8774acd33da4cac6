"""The lock files of a host's quiet windows, their holders, and the next generation of files if a holder does not move.

- ``room``: work that a window must not disturb holds it shared, a measurement holds it exclusively;
- ``turnstile``: everybody passes it before entering the room. A measurement stays in it while it waits and measures, so
  workers that come later queue behind it, and a steady stream of them cannot starve it;
- ``holders/``: one file for each process that holds one of the locks, which says which process it is.

The kernel releases flock(2) when a process dies, however it dies. It does not release it if somebody stops the process
(SIGSTOP, a debugger, a frozen control group). A waiting process checks the holders every second. If all of them were
stopped and took no processor time in :data:`STILL_LOOKS` checks in a row, it passes them over: it makes the lock files
of the next *generation*, and from then on everybody uses these. A holder that is only slow is never passed over. A
holder that wakes up finds the next generation. Its window is lost, and its measurements do not count.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet_tune.base.processes import HostProcess, process_text
from fleet_tune.base.waits import WAITS

ROOM = "room"
TURNSTILE = "turnstile"
LOOK_SECS = 1.0
STILL_LOOKS = 10
_HOLDERS = "holders"
_WHAT = "the quiet window of this machine"


class QuietTimeoutError(TimeoutError):
    """The window was not free within the deadline: some process holds it for longer than it should."""


@dataclass(frozen=True, slots=True)
class WindowHolder:
    """A process that holds a lock."""

    path: Path
    """Its file."""
    process: HostProcess
    generation: int
    title: str

    @property
    def is_this_process(self) -> bool:
        """True for a thread of this process."""
        return self.process.pid == os.getpid()

    @property
    def text(self) -> str:
        """The holder in words."""
        return process_text(self.process.pid, self.title)


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """The locks of a process that has entered the room."""

    generation: int
    leave_turnstile: Callable[[], None]
    """Lets the next one through the turnstile. May be called twice."""


class WindowLocks:
    """The lock files in ``folder``. ``title``: name of this process for others; empty for its command."""

    def __init__(self, folder: Path, title: str = "") -> None:
        self.folder = folder
        self.title = title

    @property
    def generation(self) -> int:
        """The number of the lock files that are in use now."""
        prefix = f"{TURNSTILE}."
        numbers = (name.removeprefix(prefix) for name in os.listdir(self.folder) if name.startswith(prefix))
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def path(self, name: str, generation: int) -> Path:
        """The lock file of this name."""
        return self.folder / (f"{name}.{generation}" if generation else name)

    @contextlib.contextmanager
    def entered(self, mode: int, timeout_secs: float) -> Iterator[HeldLocks]:
        """Pass the turnstile and enter the room, shared or exclusively. Raises QuietTimeoutError."""
        with contextlib.ExitStack() as stack:
            yield self._enter(mode, timeout_secs, stack)

    def holders(self) -> list[WindowHolder]:
        """The processes that hold locks of this generation."""
        generation = self.generation
        found = []
        for path in (self.folder / _HOLDERS).glob("*"):
            holder = _read_holder(path)
            if holder is None:
                continue
            if not holder.process.is_there():
                path.unlink(missing_ok=True)
            elif holder.generation == generation:
                found.append(holder)
        return found

    def _enter(self, mode: int, timeout_secs: float, stack: contextlib.ExitStack) -> HeldLocks:
        deadline = time.monotonic() + timeout_secs
        with WAITS.entered(_WHAT) as wait_for:
            watch = _HolderWatch(self, deadline, timeout_secs, wait_for)
            while True:
                generation = self.generation
                with contextlib.ExitStack() as attempt:
                    turnstile = watch.locked(TURNSTILE, fcntl.LOCK_EX, generation)
                    if turnstile is None:
                        continue
                    leave_turnstile = attempt.push(contextlib.ExitStack())
                    leave_turnstile.callback(os.close, turnstile)
                    watch.own = attempt.enter_context(self._noted(generation))
                    room = watch.locked(ROOM, mode, generation)
                    if room is None:
                        continue
                    attempt.callback(os.close, room)
                    if self.generation == generation:
                        stack.push(attempt.pop_all())
                        return HeldLocks(generation, leave_turnstile.close)

    @contextlib.contextmanager
    def _noted(self, generation: int) -> Iterator[Path]:
        """Write a file that says that this process holds a lock. Yield its path."""
        process = HostProcess.of(os.getpid())
        path = self.folder / _HOLDERS / f"{process.pid}-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # on a full disk nobody learns of the holder
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{process.pid} {process.started} {process.namespace} {generation}\n{self.title}\n")
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def pass_over(self, generation: int, holders: Sequence[WindowHolder]) -> None:
        """Make the lock files of the next generation. If several processes do so at the same time, only one
        succeeds."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path(TURNSTILE, generation + 1), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            who = " and ".join(holder.text for holder in holders)
            WAITS.add_line(
                f"{_WHAT} is taken from {who}: it has not moved for {STILL_LOOKS * LOOK_SECS:.0f} s, and what it "
                "measured in it does not count"
            )
            for name in (TURNSTILE, ROOM):  # whoever still opens one of these finds that it does not count
                if generation > 1:
                    self.path(name, generation - 1).unlink(missing_ok=True)


class _HolderWatch:
    """Waits for locks, and meanwhile checks which processes hold them."""

    def __init__(
        self, locks: WindowLocks, deadline: float, timeout_secs: float, wait_for: Callable[[str], None]
    ) -> None:
        self._locks = locks
        self._deadline = deadline
        self._timeout_secs = timeout_secs
        self._wait_for = wait_for
        self._looks: dict[Path, tuple[int, int | None]] = {}
        """By holder: the number of checks in a row at which it was stopped, and its processor time."""
        self._looked_at = 0.0
        self.own: Path | None = None
        """The file of this waiter, which may hold the turnstile."""

    def locked(self, name: str, mode: int, generation: int) -> int | None:
        """Return the descriptor of a lock file, locked; closing it unlocks. ``None`` if the generation is over."""
        path = self._locks.path(name, generation)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        # flock has no timeout, and polling would disturb the measurement that holds the lock: a thread waits.
        waiter = _Waiter(descriptor, mode)
        while True:
            left_secs = self._deadline - time.monotonic()
            if waiter.wait(min(LOOK_SECS, left_secs)):
                return descriptor
            if left_secs <= LOOK_SECS:
                waiter.abandon()
                raise QuietTimeoutError(f"{path} was not free within {self._timeout_secs:g} s")
            holders = [holder for holder in self._locks.holders() if holder.path != self.own]
            # People are not told of a thread of this process.
            others = [holder for holder in holders if not holder.is_this_process]
            if others or not holders:
                self._wait_for(" and ".join(holder.text for holder in others) or "another process")
            if self._stand_still(holders):
                self._locks.pass_over(generation, holders)
            if self._locks.generation != generation:
                waiter.abandon()
                return None

    def _stand_still(self, holders: Sequence[WindowHolder]) -> bool:
        """Return true if all holders have stood still at each of the last checks. Checks from before a time in which
        this process itself was stopped do not count."""
        now = time.monotonic()
        if now - self._looked_at > 3 * LOOK_SECS:
            self._looks.clear()
        self._looked_at = now
        looks = {}
        for holder in holders:
            count, ticks_before = self._looks.get(holder.path, (0, None))
            ticks = holder.process.ticks()
            moves = not holder.process.stands_still() or (count > 0 and ticks != ticks_before)
            looks[holder.path] = 0 if moves else count + 1, ticks
        self._looks = looks
        return bool(looks) and all(count >= STILL_LOOKS for count, _ in looks.values())


class _Waiter:
    """A thread blocked in flock; once it is abandoned, it releases the lock as soon as it gets it."""

    def __init__(self, descriptor: int, mode: int) -> None:
        self._descriptor = descriptor
        self._mode = mode
        self._state = threading.Lock()
        self._locked = threading.Event()
        self._abandoned = False
        threading.Thread(target=self._run, name="quiet-window", daemon=True).start()

    def _run(self) -> None:
        try:
            fcntl.flock(self._descriptor, self._mode)
        finally:
            with self._state:
                if self._abandoned:
                    os.close(self._descriptor)
                else:
                    self._locked.set()

    def wait(self, timeout_secs: float) -> bool:
        """Return true if the lock was obtained in time."""
        return self._locked.wait(max(0.0, timeout_secs))

    def abandon(self) -> None:
        """Leave the descriptor to the thread, or close it if the lock was obtained meanwhile."""
        with self._state:
            self._abandoned = True
            if self._locked.is_set():
                os.close(self._descriptor)


def _read_holder(path: Path) -> WindowHolder | None:
    """Read a holder's file; ``None`` if the file is gone, or is being written."""
    try:
        first, title = path.read_text(errors="replace").split("\n")[:2]
        pid, started, namespace, generation = first.split(" ")
        return WindowHolder(path, HostProcess(int(pid), started, namespace), int(generation), title)
    except (FileNotFoundError, ValueError):
        return None
