"""Lock of a team's store: only one service, on any machine, keeps networks tuned with it."""

from __future__ import annotations

import time
from collections.abc import Callable

from fleet_tune.base.errors import StoreUnreachableError
from fleet_tune.base.records.sharing.postgres import TeamStore

# A server notices within half a minute that a connection is cut, and then frees the locks of that connection.
_CUT_SECS = 120.0


class TeamLock:
    """Lock of that service. A connection to the server at ``url`` holds it for as long as the connection lasts. A lost
    lock is taken again."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._store: TeamStore | None = None
        self._lost_at: float | None = None

    def other(self) -> str:
        """Return the key (role) of another service that holds the lock; empty if this one holds it. For two minutes
        after a cut connection the lock counts as ours even if it cannot be taken again: the server may not know yet
        that our connection was cut. Raise :class:`StoreUnreachableError` while the server does not answer,
        :class:`RecordStoreError`."""
        if self._store is not None:
            try:
                self._store.last()
                return ""
            except StoreUnreachableError:
                self.close()
                self._lost_at = self._clock()
        store = TeamStore(self._url, hurry=True)
        try:
            other = store.be_the_service()
        except BaseException:
            store.close()
            raise
        if not other:
            self._store, self._lost_at = store, None
            return ""
        store.close()
        is_ours_perhaps = self._lost_at is not None and self._clock() < self._lost_at + _CUT_SECS
        return "" if is_ours_perhaps else other

    def close(self) -> None:
        """Free the lock. May be called twice."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
