"""Cancellation of a compilation, from another thread than the one that compiles."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from fleet_tune.base.errors import FleetTuneError


class CancelledBuildError(FleetTuneError):
    """Compiling was cancelled."""


class Closable(Protocol):
    def close(self) -> None:
        """Close the object. May be called more than once, and from any thread, also while another thread uses it."""


class Cancellation:
    """Cancels a compilation. After :meth:`cancel` has returned, nothing is published any more, and everything that it
    owns is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came = False
        self._owned = contextlib.ExitStack()

    @property
    def came(self) -> bool:
        return self._came

    def own(self, what: Closable) -> None:
        """Close ``what`` when the compilation is cancelled. Raises :class:`CancelledBuildError` if it is cancelled
        already."""
        with self._lock:
            self._owned.callback(what.close)
            came = self._came
        if came:
            self._owned.close()
            raise CancelledBuildError

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Guard a block that must run as a whole: :meth:`cancel` waits for its end. Raises
        :class:`CancelledBuildError` if :meth:`cancel` was called before."""
        with self._lock:
            if self._came:
                raise CancelledBuildError
            yield

    def cancel(self) -> None:
        """Cancel compiling. May be called more than once."""
        with self._lock:
            self._came = True
        self._owned.close()
