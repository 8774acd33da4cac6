"""How the building of networks is ended from another thread than its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from fleet_tune.base.errors import FleetTuneError


class CancelledBuildError(FleetTuneError):
    """The networks are not wanted any more."""


class Closable(Protocol):
    def close(self) -> None:
        """From any thread, also while another one uses it; more than once."""


class Cancellation:
    """Once :meth:`cancel` has returned, nothing is published any more, and what was owned is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came = False
        self._owned = contextlib.ExitStack()

    @property
    def came(self) -> bool:
        return self._came

    def own(self, what: Closable) -> None:
        """Close it when the building is cancelled. Raises :class:`CancelledBuildError` where it is already."""
        with self._lock:
            self._owned.callback(what.close)
            came = self._came
        if came:
            self._owned.close()
            raise CancelledBuildError

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """A block that is carried out as a whole: who cancels waits for its end. Raises :class:`CancelledBuildError`
        where that came first."""
        with self._lock:
            if self._came:
                raise CancelledBuildError
            yield

    def cancel(self) -> None:
        """May be called more than once."""
        with self._lock:
            self._came = True
        self._owned.close()
