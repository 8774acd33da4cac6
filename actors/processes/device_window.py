"""The quiet window of a device that shares the cores of its host with builders."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from actors.clusters.nodes import Windows
from devices.host.quiet_windows.quiet_window import QuietTimeoutError, QuietWindow

_LOOK_SECS = 1.0
"""Interval of the looks for windows that nobody closes."""


class DeviceWindow:
    """The windows that a device measures in.

    Args:
        windows: of the hosts; None where nothing that is measured on them is disturbed.
        shares_host: true for a device that shares the cores of its host; the others measure at any time.
        title: what the process that owns the device is for others that wait for it.
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
        """Have the host for the block. Raises WindowLostError at the end where others took the window meanwhile: then
        nothing that was measured counts."""
        window = self.of_host() if self._shares_host else None
        if window is None:
            yield
            return
        with window.quiet():
            yield
            window.check()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Use the device without a window of its own, and let the measurements of others on its host wait meanwhile."""
        window = self.of_host() if self._shares_host else None
        with contextlib.nullcontext() if window is None else window.working():
            yield

    def of_host(self) -> QuietWindow | None:
        """Return the window of this host, in which what runs beside the device stands still; None where the host has
        none."""
        if self._window is None and self._windows is not None:
            self._window = self._windows.here(self._title)
            threading.Thread(target=self._continue_abandoned, args=(self._window,), name="window", daemon=True).start()
        return self._window

    def check(self) -> None:
        """Raises WindowLostError where others have taken the window of this block."""
        if self._shares_host and self._window is not None:
            self._window.check()

    def close(self) -> None:
        """End the guardian of the window, and the looks."""
        self._closed.set()
        if self._window is not None:
            self._window.close()

    def _continue_abandoned(self, window: QuietWindow) -> None:
        """Continue the host's builders and searchers where a process that does not move has stopped them."""
        while not self._closed.wait(_LOOK_SECS):
            with contextlib.suppress(QuietTimeoutError, OSError):
                window.continue_abandoned()
