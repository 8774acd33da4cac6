"""Lock of a team's store: one service alone keeps networks tuned with it, on whatever machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from fleet_tune.base.errors import StoreUnreachableError
from fleet_tune.base.records.sharing.postgres import TeamStore

# A server notices within half a minute that a connection is cut, and lets go of what that held.
_CUT_SECS = 120.0


class TeamLock:
    """Lock of that service, held by a connection to the server at ``url`` for as long as that lasts, and taken again if
    it was lost."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._store: TeamStore | None = None
        self._lost_at: float | None = None

    def other(self) -> str:
        """The key with which another service has the place; empty where it is ours. A place that was ours is only
        another one's when it has been so for two minutes: the server may not know yet that our connection was cut.
        Raises :class:`StoreUnreachableError` while the server does not answer, :class:`RecordStoreError`."""
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
        """Leave the place to others. May be called twice."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
