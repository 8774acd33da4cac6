"""The store of a team and the copy of it on this machine.

Runs and commands use the copy, which is a store like any other, and synchronize it with the server before and after:
new records of the server come to the copy, and new records of the copy go to the server. While the server does not
answer, everything goes on with the copy. Nothing is lost, and new records go to the server at the next synchronization.
Records are identified by their ids: a record that is sent twice is stored once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fleet_tune.base.errors import StoreUnreachableError
from fleet_tune.base.records.sharing.postgres import TeamStore
from fleet_tune.base.records.sharing.shared import SharedReader, copy_records, shared_store
from fleet_tune.base.records.sharing.store_place import StorePlace
from fleet_tune.base.records.stores.store import RecordStore

_HURRY_SECS = 3.0
_LOG = logging.getLogger(__name__)


def sync_team(place: StorePlace) -> Team | None:
    """Return the team of whose store this place is the copy, after a synchronization; ``None`` if it is no copy. If the
    server does not answer, log a warning: the copy is used as it is. Raise :class:`RecordStoreError` if the server
    refuses."""
    if not place.server:
        return None
    team = Team(place)
    try:
        team.sync()
    except StoreUnreachableError as error:
        team.is_away = True
        _LOG.warning(
            "%s: the copy of its records on this machine is used, and what is new goes there when it answers again",
            error.problem,
        )
    return team


@dataclass(frozen=True)
class SyncResult:
    """Result of a synchronization: numbers of records."""

    taken: int
    """Records that went from the server to the copy."""
    given: int
    """Records that went from the copy to the server."""


class Team:
    """The server of a ``place`` and its copy.

    Every method raises :class:`StoreUnreachableError` if the server does not answer, :class:`RecordStoreError`; the
    copy is sound whatever happens. ``is_away``: true if the server did not answer :func:`sync_team`.
    """

    is_away = False

    def __init__(self, place: StorePlace, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._warned = False

    def sync(self, *, hurry: bool = False, with_efforts: bool = True) -> SyncResult:
        """Take new records from the server, then give it those of the copy. ``hurry``: leave what takes long to the
        next synchronization. ``with_efforts``: exchange the efforts of runs too. They count when a run begins, and are
        known when it ends."""
        deadline = self._clock() + _HURRY_SECS if hurry else float("inf")
        with TeamStore(self._place.server, hurry=hurry) as server, shared_store(self._place.path) as copy:
            taken = self._take(server, copy, with_efforts)
            return SyncResult(taken, self._give(server, copy, lambda: self._clock() > deadline, with_efforts))

    def remove(self, uids: Collection[str]) -> int:
        """Remove records from the server."""
        with TeamStore(self._place.server) as server:
            return server.remove(uids)

    def _take(self, server: TeamStore, copy: RecordStore, with_efforts: bool) -> int:
        with SharedReader(self._place.path) as reader:
            taken, given = self._cursors(reader, server)
            before = reader.last_seq()
            if self._is_older(reader, server):
                taken = given = 0
                _LOG.warning(
                    "the store %s is older than when it was synchronized last, as after a restored backup: it is"
                    " read anew, and gets what it lacks of the records here",
                    self._place.shown,
                )
            source = server.since(taken)
            copied = copy_records(source, copy, taken, with_efforts=with_efforts)
            if given == before and reader.last_seq() == before + copied.records:
                given = before + copied.records  # all new records of the copy are from the server
        self._note(copy, server, copied.cursor, given)
        self._warn(len(source.unreadable))
        return copied.records

    def _warn(self, wrong: int) -> None:
        """Warn once of wrong rows: those that are no records are found again at each synchronization."""
        if wrong and not self._warned:
            self._warned = True
            _LOG.warning("of the store %s %d wrong rows are set aside", self._place.shown, wrong)

    def _give(self, server: TeamStore, copy: RecordStore, is_late: Callable[[], bool], with_efforts: bool) -> int:
        with SharedReader(self._place.path) as reader:
            taken, given = self._cursors(reader, server)
            copied = copy_records(reader, server, given, is_late, with_efforts=with_efforts)
        self._note(copy, server, taken, copied.cursor)
        return copied.records

    @staticmethod
    def _cursors(reader: SharedReader, server: TeamStore) -> tuple[int, int]:
        """Return the ``seq`` up to which the copy has the server's records, and the ``seq`` up to which the server has
        the copy's."""
        meta = reader.meta()
        return int(meta.get(f"taken from {server.id}", 0)), int(meta.get(f"given to {server.id}", 0))

    @staticmethod
    def _is_older(reader: SharedReader, server: TeamStore) -> bool:
        """Return true if the server has lost the record that was its last one at the last synchronization."""
        seq, _, uid = reader.meta().get(f"last seen at {server.id}", "").partition(" ")
        return seq not in ("", "0") and not server.has(int(seq), uid)

    @staticmethod
    def _note(copy: RecordStore, server: TeamStore, taken: int, given: int) -> None:
        seq, uid = server.last()
        copy.annotate(
            {
                f"taken from {server.id}": str(taken),
                f"given to {server.id}": str(given),
                f"last seen at {server.id}": f"{seq} {uid}",
            }
        )
