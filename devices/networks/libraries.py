"""Loading of torch and TVM. It may end the process.

Native code ends it without a Python error: a library calls ``exit`` because something is missing, an instruction that
this CPU lacks raises SIGILL, or the operating system kills a process that needs too much memory. So a small process
watches (:mod:`devices.networks.library_watch`). It tells the user what happened and what to do.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

from devices.error_text import last_line
from devices.host.current_folder import enter_replaced_folder, leave_current_folder_in_thread
from devices.host.garbage_collection import garbage_collection_paused
from fleet_tune.base.errors import UserError

# TVM loads torch if it can. Torch is loaded first, so that a failure names the right library.
_LIBRARIES = ("torch", "tvm")
_WATCH = Path(__file__).with_name("library_watch.py")


class LibraryError(UserError):
    """A library that every run needs cannot be loaded: install it again."""


class LoadingWatch:
    """A process that tells the user if this process ends while it loads libraries. If it cannot be started, nothing
    watches."""

    _open: ClassVar[list[LoadingWatch]] = []

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        with contextlib.suppress(OSError):
            command = [sys.executable, "-I", "-S", str(_WATCH)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        self._open.append(self)

    def begin_loading(self, name: str) -> None:
        """Tell the watch which library is loaded from now on. Empty: loading is over."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # the watch was killed, or is closed
                self._process.stdin.write(f"{name}\n")
                self._process.stdin.flush()

    def close(self) -> None:
        """End the watch: this process lives on, or ends on purpose. May be called twice."""
        self.begin_loading("")
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.communicate()

    @classmethod
    def close_all(cls) -> None:
        """Close the watches of threads that still load something, before this process ends."""
        for watch in cls._open:
            watch.close()


def load_libraries() -> None:
    """Load torch and TVM, unless this process has them already. Raises :class:`LibraryError`, and
    :class:`devices.host.current_folder.CurrentFolderError`."""
    missing = [name for name in _LIBRARIES if name not in sys.modules]
    if not missing:
        return
    enter_replaced_folder()
    # Modules stay: looking for garbage among them takes a sixth of the time.
    with contextlib.closing(LoadingWatch()) as watch, garbage_collection_paused():
        for name in missing:
            watch.begin_loading(name)
            _load(name)


def _load(name: str) -> None:
    """Import a module in a thread that no change of the current folder reaches."""
    failures: list[BaseException] = []

    def load() -> None:
        leave_current_folder_in_thread()
        try:
            importlib.import_module(name)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=load, name=f"load {name}", daemon=True)
    thread.start()
    thread.join()
    for failure in failures:
        if not isinstance(failure, Exception):
            raise failure
        raise LibraryError(f"{name} cannot be loaded: {last_line(failure)}", _next_step(failure)) from failure


def _next_step(failure: Exception) -> str:
    again = f"install the versions of requirements.lock again for {sys.executable}"
    if isinstance(failure, MemoryError) or "cannot allocate memory" in str(failure).lower():
        return "free some memory, or raise the limit of this process (ulimit -v, ulimit -d), and run again"
    if "GLIBC" in str(failure):
        return f"it was built for a newer system: {again}, on a system that they support"
    return again
