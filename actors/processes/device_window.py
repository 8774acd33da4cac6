"""The quiet window of a device that shares the cores of its host with builders."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from actors.clusters.nodes import Windows
from devices.host.quiet_windows.quiet_window import QuietTimeoutError, QuietWindow

_LOOK_SECS = 1.0
"""Interval between checks for windows that nobody closes."""


class DeviceWindow:
    """The quiet windows in which a device measures.

    Args:
        windows: the quiet windows of the hosts; None if nothing disturbs measurements on them.
        shares_host: true for a device that shares the cores of its host; the others measure at any time.
        title: names the process that owns the device to processes that wait for it.
    """

    def __init__(self, windows: Windows | None, shares_host: bool, title: str) -> None:
        self._windows = windows
        self._shares_host = shares_host
        self._title = title
        self._window: QuietWindow | None = None
        """Made when it is first needed, on the host of the device."""
        self._closed = threading.Event()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Keep the host quiet during the block. Raises WindowLostError at the end if another process took the window
        meanwhile: then no measurement in it counts."""
        window = self.of_host() if self._shares_host else None
        if window is None:
            yield
            return
        with window.quiet():
            yield
            window.check()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Use the device without a quiet window. Measurements of other processes on its host wait meanwhile."""
        window = self.of_host() if self._shares_host else None
        with contextlib.nullcontext() if window is None else window.working():
            yield

    def of_host(self) -> QuietWindow | None:
        """Return the window of this host, which stops the processes that run beside the device; None if the host has
        none."""
        if self._window is None and self._windows is not None:
            self._window = self._windows.here(self._title)
            threading.Thread(target=self._continue_abandoned, args=(self._window,), name="window", daemon=True).start()
        return self._window

    def check(self) -> None:
        """Raise WindowLostError if another process has taken the window of this block."""
        if self._shares_host and self._window is not None:
            self._window.check()

    def close(self) -> None:
        """End the guardian of the window, and the checks for abandoned windows."""
        self._closed.set()
        if self._window is not None:
            self._window.close()

    def _continue_abandoned(self, window: QuietWindow) -> None:
        """Continue the host's builders and searchers if the process that has stopped them stands still itself."""
        while not self._closed.wait(_LOOK_SECS):
            with contextlib.suppress(QuietTimeoutError, OSError):
                window.continue_abandoned()
