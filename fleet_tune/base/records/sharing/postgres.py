"""The store of a team on a PostgreSQL server: a source and a target of copied records.

A record has the encoding of a run's own store, with its trace, and is deflated. Writers take turns (they hold an
advisory lock until they commit), so that a later commit has higher ``seq``: a reader that has read up to a number has
missed no record before it. Every role that may connect to the database can read, add, and change tasks and efforts;
only the role that made the tables can remove records. psycopg is an optional dependency.
"""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fleet_tune.base.domain import Record, Task
from fleet_tune.base.errors import RecordStoreError, RequestError, StoreUnreachableError, UnreadableRecordError
from fleet_tune.base.records.sharing.store_place import shown
from fleet_tune.base.records.sharing.validation import checked_effort, checked_task, checked_unit
from fleet_tune.base.records.stores.codec import decode_record, encode_record
from fleet_tune.base.records.stores.origin import Effort, Origin, decode_origin, encode_origin
from fleet_tune.base.records.stores.reader import split_task_id
from fleet_tune.base.records.stores.store import class_unit
from fleet_tune.base.records.stores.stored_speeds import UNIT
from fleet_tune.base.waits import WAITS

if TYPE_CHECKING:
    import psycopg

_Read = TypeVar("_Read")

SCHEMA_VERSION = 1
_QUOTA_STATE = "FT001"
_LOCK = 0x666C656574  # of the store's writers, and of its creation
_SERVICE_LOCK = 0x726574756E65  # of the service that keeps networks tuned
_PAGE_RECORDS = 1000
_FAILED = " failed: "
_MOST_BYTES = 4 * 2**20  # of a record, deflated or not
_MOST_REASON = 200
_AT_ONCE = 200  # records of a statement: some hundred kilobytes
_REMOVED_AT_ONCE = 5000  # of one statement: the server ends it after _ANSWER_SECS
_ANSWER_SECS = 30
_HURRY_SECS = 3
_STOPPED_SECS = 10
"""Seconds without a statement in a turn to write after which the server ends the client. Somebody has stopped it, and
others wait for their turn."""

IS_THERE = "octet_length(body) > 0"
"""SQL condition on a row of the table of records: it was not removed."""

_WHO_HAS_IT = (
    "SELECT usename FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND ((classid::bigint << 32) | objid::bigint) = %s"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
# The function has its owner's rights, so that its search path must be fixed. If pg_temp were not named in it, it would
# come first.
_QUOTA_PATH = "pg_catalog, fleet_tune, pg_temp"
_QUOTA = f"""
CREATE OR REPLACE FUNCTION fleet_tune.check_quota() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {_QUOTA_PATH} AS $$
DECLARE most bigint;
BEGIN
    SELECT quotas.records INTO most FROM fleet_tune.quotas WHERE role = session_user;
    IF FOUND AND (SELECT count(*) FROM fleet_tune.records WHERE added_by = session_user AND {IS_THERE}) > most THEN
        RAISE EXCEPTION 'the key % may have % records', session_user, most USING ERRCODE = '{_QUOTA_STATE}';
    END IF;
    RETURN NULL;
END $$;
"""
_QUOTA_IS_OLD = f"""
SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_proc WHERE oid = to_regprocedure('fleet_tune.check_quota()')
    AND pg_has_role(proowner, 'USAGE')
    AND (proconfig IS DISTINCT FROM ARRAY['search_path={_QUOTA_PATH}'] OR strpos(prosrc, '{IS_THERE}') = 0)
)
"""
_SCHEMA = f"""
CREATE SCHEMA fleet_tune;
SET LOCAL search_path TO fleet_tune;
CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE workloads (hash text PRIMARY KEY, name text NOT NULL, flop float8 NOT NULL, module text NOT NULL);
CREATE TABLE tasks (
    place bigint GENERATED ALWAYS AS IDENTITY, workload text NOT NULL REFERENCES workloads, device_class text NOT NULL,
    target text NOT NULL, weight bigint NOT NULL, PRIMARY KEY (workload, device_class)
);
CREATE TABLE run_origins (
    run_id text NOT NULL, device_class text NOT NULL, origin text NOT NULL, PRIMARY KEY (run_id, device_class)
);
CREATE TABLE efforts (
    workload text NOT NULL, device_class text NOT NULL, run_id text NOT NULL, secs float8 NOT NULL,
    trials float8 NOT NULL, PRIMARY KEY (workload, device_class, run_id)
);
CREATE TABLE records (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, uid text NOT NULL UNIQUE, workload text NOT NULL,
    device_class text NOT NULL, body bytea NOT NULL, added_by text NOT NULL DEFAULT session_user
);
CREATE INDEX records_by_adder ON records (added_by);
CREATE TABLE quotas (role text PRIMARY KEY, records bigint NOT NULL);
{_QUOTA}CREATE TRIGGER quota AFTER INSERT ON records FOR EACH STATEMENT EXECUTE FUNCTION check_quota();
GRANT USAGE ON SCHEMA fleet_tune TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA fleet_tune TO PUBLIC;
GRANT INSERT ON workloads, tasks, run_origins, efforts TO PUBLIC;
GRANT UPDATE (name) ON workloads TO PUBLIC;
GRANT UPDATE (target, weight) ON tasks TO PUBLIC;
GRANT UPDATE (secs, trials) ON efforts TO PUBLIC;
GRANT SELECT ON SEQUENCE records_seq_seq TO PUBLIC;
GRANT INSERT (uid, workload, device_class, body) ON records TO PUBLIC;
GRANT INSERT ON meta TO PUBLIC;
"""


class TeamStore:
    """The store at ``url`` (``postgresql://user:password@host:port/database``). It is created if the database has none.

    ``hurry``: wait only a short time for a slow server. The store is a target of
    :func:`fleet_tune.base.records.sharing.shared.copy_records`; :meth:`since` returns a source. The constructor and
    every method raise :class:`StoreUnreachableError` if the server does not answer, :class:`RecordStoreError` if it
    refuses; the constructor also if the schema is newer, and :class:`RequestError` without psycopg."""

    def __init__(self, url: str, *, hurry: bool = False) -> None:
        self._connect(url, _HURRY_SECS if hurry else _ANSWER_SECS)
        with contextlib.ExitStack() as undo:
            undo.callback(self._connection.close)
            self._make()
            undo.pop_all()

    def _connect(self, url: str, answer_secs: int) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise RequestError(
                "a store on a server needs psycopg, which is not installed", "pip install 'fleet-tune[postgres]'"
            ) from error
        self._shown = shown(url)
        self._errors = psycopg
        with self._told():
            self._connection: psycopg.Connection[Any] = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=min(answer_secs, 5),
                options=f"-c statement_timeout={answer_secs * 1000} -c lock_timeout={answer_secs * 1000}"
                f" -c idle_in_transaction_session_timeout={_STOPPED_SECS * 1000}",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=answer_secs * 1000,
                application_name="fleet-tune",
            )

    @classmethod
    def probe(cls, url: str) -> None:
        """Raise as the constructor does if the server at ``url`` does not answer. Tables are not read."""
        probing = cls.__new__(cls)
        probing._connect(url, _ANSWER_SECS)
        probing.close()

    def _make(self) -> None:
        """Create the tables if there are none, and check their version."""
        if self._one("SELECT to_regclass('fleet_tune.meta') IS NOT NULL") != (True,):
            with self._turn() as connection:
                if self._one("SELECT to_regclass('fleet_tune.meta') IS NOT NULL") != (True,):
                    connection.execute(_SCHEMA)
                    made = [("schema_version", str(SCHEMA_VERSION)), ("id", uuid.uuid4().hex)]
                    connection.cursor().executemany("INSERT INTO fleet_tune.meta VALUES (%s, %s)", made)
        meta = dict(self._rows("SELECT key, value FROM fleet_tune.meta WHERE key IN ('schema_version', 'id')"))
        version = meta.get("schema_version", "")
        if not version.isdigit() or int(version) > SCHEMA_VERSION:
            raise RecordStoreError(
                f"the store {self._shown} has schema version {version or 'none'} and this fleet-tune reads up to"
                f" version {SCHEMA_VERSION}",
                "use the newer fleet-tune that made it, or another store",
            )
        if self._one(_QUOTA_IS_OLD) == (True,):  # the function is of an earlier version, and we own it
            with self._turn() as connection:
                connection.execute(_QUOTA)
        self.id: str = meta.get("id", "")
        """Unique id of the store, from its creation."""

    # -- a source ------------------------------------------------------------------------------------------------------

    def since(self, cursor: int) -> TeamStoreChanges:
        """Return the additions after ``cursor``, as a source of records."""
        return TeamStoreChanges(self._rows, cursor)

    def last(self) -> tuple[int, str]:
        """Return the ``seq`` and ``uid`` of the last record, removed ones included; 0 and an empty text if there is
        none."""
        rows = self._rows("SELECT seq, uid FROM fleet_tune.records ORDER BY seq DESC LIMIT 1")
        return rows[0] if rows else (0, "")

    def has(self, seq: int, uid: str) -> bool:
        """Return true if ``seq`` is the number of the record with this ``uid``, even if that was removed.

        A store that was restored from an older backup has another record at this number, or none, and so for all later
        numbers. Otherwise numbers keep their records: new records get higher numbers, and no row is deleted.
        """
        return bool(self._rows("SELECT 1 FROM fleet_tune.records WHERE seq = %s AND uid = %s", seq, uid))

    # -- a target ------------------------------------------------------------------------------------------------------

    def put_task(self, task: Task) -> None:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.put_task`."""
        workload = task.workload
        with self._turn() as connection:
            known = connection.execute(
                "SELECT name FROM fleet_tune.workloads WHERE hash = %s", (workload.hash,)
            ).fetchone()
            if known is None:
                connection.execute(
                    "INSERT INTO fleet_tune.workloads VALUES (%s, %s, %s, %s)",
                    (workload.hash, workload.name, workload.flop, workload.module),
                )
            elif known[0] == f"workload {workload.hash[:8]}":
                connection.execute(
                    "UPDATE fleet_tune.workloads SET name = %s WHERE hash = %s", (workload.name, workload.hash)
                )
            connection.execute(
                "INSERT INTO fleet_tune.tasks (workload, device_class, target, weight) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (workload, device_class) DO UPDATE SET target=excluded.target, weight=excluded.weight",
                (workload.hash, task.device_class.name, task.device_class.target, task.weight),
            )

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.put_run`."""
        rows = [(run_id, name, encode_origin(origin)) for name, origin in origins.items()]
        self._many("INSERT INTO fleet_tune.run_origins VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", rows)

    def lacking(self, efforts: Sequence[Effort]) -> list[Effort]:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.lacking`."""
        query = "SELECT workload, device_class, run_id, secs, trials FROM fleet_tune.efforts WHERE run_id = ANY(%s)"
        rows = self._rows(query, sorted({each.run_id for each in efforts})) if efforts else []
        known = {(f"{workload}@{name}", *others) for workload, name, *others in rows}
        return [each for each in efforts if (each.task_id, each.run_id, each.secs, each.trials) not in known]

    def put_efforts(self, efforts: Iterable[Effort]) -> None:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.put_efforts`."""
        self._many(
            "INSERT INTO fleet_tune.efforts VALUES (%s, %s, %s, %s, %s) ON CONFLICT (workload, device_class, run_id)"
            " DO UPDATE SET secs=excluded.secs, trials=excluded.trials",
            [(*split_task_id(each.task_id), each.run_id, each.secs, each.trials) for each in efforts],
        )

    def unit(self, name: str, secs: float) -> float:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.unit`. Return ``secs`` if the stored value is no
        unit."""
        with self._turn() as connection:
            given = (UNIT + name, repr(secs))
            connection.execute("INSERT INTO fleet_tune.meta VALUES (%s, %s) ON CONFLICT DO NOTHING", given)
            row = connection.execute("SELECT value FROM fleet_tune.meta WHERE key = %s", given[:1]).fetchone()
            assert row is not None  # it was inserted, or was there before
            try:
                return checked_unit(row[0])
            except ValueError:
                return secs

    def add(self, records: Sequence[Record]) -> int:
        """See :meth:`fleet_tune.base.records.stores.store.RecordStore.add`."""
        added = 0
        for start in range(0, len(records), _AT_ONCE):
            some = {each.uid: each for each in records[start : start + _AT_ONCE]}
            query = "SELECT uid FROM fleet_tune.records WHERE uid = ANY(%s)"
            with self._turn() as connection:
                known = {uid for (uid,) in connection.execute(query, (list(some),))}
                rows = [_row(each) for uid, each in some.items() if uid not in known]
                if rows:
                    places = ", ".join(["(%s, %s, %s, %s)"] * len(rows))
                    insert = f"INSERT INTO fleet_tune.records (uid, workload, device_class, body) VALUES {places}"
                    # One statement, so that the quota is checked once.
                    connection.execute(insert, [value for row in rows for value in row])
            added += len(rows)
        return added

    def remove(self, uids: Collection[str]) -> int:
        """Remove these records and return the number of those that were there.

        Only the role that made the tables may do so. The ``seq`` and ``uid`` of each record stay (see :meth:`has`), so
        that no client that has a copy of the record adds it again.
        """
        query = f"UPDATE fleet_tune.records SET body = '' WHERE uid = ANY(%s) AND {IS_THERE}"
        ordered, removed = list(uids), 0
        for begin in range(0, len(ordered), _REMOVED_AT_ONCE):
            with self._turn() as connection:
                removed += connection.execute(query, (ordered[begin : begin + _REMOVED_AT_ONCE],)).rowcount
        return removed

    def be_the_service(self) -> str:
        """Become the one service that keeps networks tuned with this store, for as long as this connection lasts.
        Return an empty text if this succeeds, else the key (role) of the service that has the place."""
        # The server only notices by keepalive probes that a connection was cut. By default that takes hours.
        for name, value in (("idle", 10), ("interval", 5), ("count", 3)):
            self._rows(f"SELECT set_config('tcp_keepalives_{name}', '{value}', false)")
        if self._one("SELECT pg_try_advisory_lock(%s)", _SERVICE_LOCK) == (True,):
            return ""
        rows = self._rows(_WHO_HAS_IT, _SERVICE_LOCK)
        return str(rows[0][0]) if rows else "somebody"

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- statements ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a transaction during which nobody else writes."""
        with self._told(), self._connection.transaction():
            with WAITS.entered(f"the turn to write to the store {self._shown}", "another client"):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            yield self._connection

    def _many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            with self._turn() as connection:
                connection.cursor().executemany(statement, rows)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._told():
            return self._connection.execute(query, values).fetchall()

    def _one(self, query: str, *values: Any) -> Any:
        return self._rows(query, *values)[0]

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the errors of psycopg into ours."""
        psycopg = self._errors
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            raise RecordStoreError(
                f"the store {self._shown} refuses this: {_reason(error)}",
                "ask who runs the server: only the role that has made the tables makes and removes",
            ) from error
        except psycopg.Error as error:
            if error.diag.sqlstate == _QUOTA_STATE:
                raise RecordStoreError(
                    f"the quota of the store {self._shown} is used up: {_reason(error)}",
                    "ask who runs the server for more, or prune it",
                ) from error
            reason = _reason(error)
            if "password" in reason or "authentication" in reason or "no pg_hba.conf entry" in reason:
                raise RecordStoreError(
                    f"the store {self._shown} refuses this key: {reason}", "look at user and password, or ~/.pgpass"
                ) from error
            if isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
                raise StoreUnreachableError(
                    f"the store {self._shown} has given the turn of this process to others: it was stopped",
                    "run the command again; a run or a service tries it again by itself",
                ) from error
            if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                raise StoreUnreachableError(
                    f"the store {self._shown} does not answer: {reason}", "look whether the server runs"
                ) from error
            raise RecordStoreError(f"the store {self._shown} refuses: {reason}", "look at the server's log") from error


class TeamStoreChanges:
    """Additions to a team's store after a cursor: a source of
    :func:`fleet_tune.base.records.sharing.shared.copy_records`.

    Every key may add to the store, so that rows may be wrong; these are skipped. ``rows``: the function of a
    :class:`TeamStore` that returns the rows of a query. ``unreadable``: the skipped rows, each with its reason.
    """

    def __init__(self, rows: Callable[..., list[Any]], cursor: int) -> None:
        self._rows = rows
        self._cursor = cursor
        self.unreadable: list[str] = []

    def tasks(self, only: Collection[str] | None = None) -> list[Task]:
        """Return all tasks. ``only``: those of these ids."""
        query = (
            "SELECT hash, name, flop, module, device_class, target, weight FROM fleet_tune.tasks"
            " JOIN fleet_tune.workloads ON hash = workload{} ORDER BY place"
        )
        if only is None:
            rows = self._rows(query.format(""))
        else:
            workloads = sorted({split_task_id(each)[0] for each in only})
            rows = self._rows(query.format(" WHERE workload = ANY(%s)"), workloads)
            rows = [row for row in rows if f"{row[0]}@{row[4]}" in only]
        return [task for row in rows for task in self._right(f"task {row[0]}@{row[4]}", checked_task, *row)]

    def run_origins(self, only: Collection[str] | None = None) -> dict[tuple[str, str], Origin]:
        """Return the origins of the records of each run and device class. ``only``: of these runs."""
        query = "SELECT run_id, device_class, origin FROM fleet_tune.run_origins"
        rows = self._rows(query) if only is None else self._rows(f"{query} WHERE run_id = ANY(%s)", sorted(only))
        found = {}
        for run_id, name, body in rows:
            with contextlib.suppress(UnreadableRecordError):
                found[run_id, name] = decode_origin(body)
        return found

    def efforts(self) -> list[tuple[Effort, Origin]]:
        """Return the efforts of runs, with the origins of their records."""
        origins = self.run_origins()
        rows = self._rows("SELECT workload, device_class, run_id, secs, trials FROM fleet_tune.efforts")
        found = []
        for workload, name, run_id, secs, trials in rows:
            # With an "@" in its hash the id would be of another device class.
            if (run_id, name) in origins and "@" not in workload:
                what = f"what {run_id} has spent on {workload}@{name}"
                for effort in self._right(what, checked_effort, f"{workload}@{name}", run_id, secs, trials):
                    found.append((effort, origins[run_id, name]))
        return found

    def unit_secs(self, device_id: str, device_class: str) -> float | None:
        """Return the unit of a device, or else of its class: seconds of the probe at speed 1. ``None`` if the store has
        neither."""
        keys = [UNIT + device_id, UNIT + class_unit(device_class)]
        found = dict(self._rows("SELECT key, value FROM fleet_tune.meta WHERE key = ANY(%s)", keys))
        units = (unit for key in keys if key in found for unit in self._right(key, checked_unit, found[key]))
        return next(units, None)

    def pages(self, cursor: int = 0) -> Iterator[list[Record]]:
        """Yield the records, many at a time."""
        cursor = max(cursor, self._cursor)
        query = (
            "SELECT seq, CASE WHEN octet_length(body) <= %s THEN body END FROM fleet_tune.records"
            f" WHERE seq > %s AND {IS_THERE} ORDER BY seq LIMIT %s"
        )
        while rows := self._rows(query, _MOST_BYTES, cursor, _PAGE_RECORDS):
            page = []
            for seq, body in rows:
                page += self._right(f"record {seq}", _record, seq, body)
            if page:
                yield page
            cursor = rows[-1][0]

    def _right(self, what: str, read: Callable[..., _Read], *values: Any) -> list[_Read]:
        """Return the result of ``read`` on ``values`` in a list. The list is empty if the values are wrong, or of a
        newer version."""
        try:
            return [read(*values)]
        except (ValueError, RecordStoreError, zlib.error) as error:
            self.unreadable.append(f"{what}: {error}"[:_MOST_REASON])
            return []


def _record(seq: int, body: bytes | None) -> Record:
    inflating = zlib.decompressobj()
    content = b"" if body is None else inflating.decompress(body, _MOST_BYTES)
    if not inflating.eof:
        raise ValueError("it is torn, or too large")
    return decode_record(content, seq)


def _row(record: Record) -> tuple[str, str, str, bytes]:
    return (record.uid, *split_task_id(record.task_id), zlib.compress(encode_record(record)))


def _reason(error: psycopg.Error) -> str:
    """Return the server's message in one line, or the reason why it cannot be reached."""
    lines = (error.diag.message_primary or str(error)).strip().splitlines() or [type(error).__name__]
    # Libpq writes "connection to server at ... failed: why" for each address, and then questions to the user.
    return next((line for line in reversed(lines) if _FAILED in line), lines[0]).rpartition(_FAILED)[2].strip()
