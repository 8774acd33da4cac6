"""The keys of a team's server: PostgreSQL's roles with their passwords, limits of connections and quotas of records."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet_tune.base.errors import ServerError
from fleet_tune.base.records.sharing.postgres import IS_THERE, TeamStore
from fleet_tune.store_server.server_folder import DATABASE, OWNER, ServerFolder

if TYPE_CHECKING:
    import psycopg

_END_SECS = 10.0
_POLL_SECS = 0.05
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


@dataclass(frozen=True)
class StoreKey:
    """``records``: number of records in the store that the key added; ``most_records``: number that it may add, None
    for any number; ``connections``: number of connections that it may have at a time, None for any number."""

    name: str
    records: int
    most_records: int | None
    connections: int | None


def make_database(folder: ServerFolder) -> None:
    """Make the database of a server with its tables, if they are missing. Nobody can connect without a key."""
    with _owner(folder, "postgres") as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone():
            connection.execute(f"CREATE DATABASE {DATABASE}")
            connection.execute(f"REVOKE ALL ON DATABASE {DATABASE} FROM PUBLIC")
    TeamStore(folder.key_of(OWNER)).close()


def put_key(folder: ServerFolder, name: str, most_records: int | None, connections: int | None) -> Path:
    """Make a key, or change its limits. Return its file. Raises :class:`ServerError`."""
    from psycopg import sql

    if not _NAME.fullmatch(name) or name in (OWNER, "postgres", "public") or name.startswith("pg_"):
        raise ServerError(f"{name!r} is no name of a key", "give one of small letters, digits and _")
    role, limit = sql.Identifier(name), sql.Literal(-1 if connections is None else connections)
    with _owner(folder, DATABASE) as connection, connection.transaction():
        path = folder.keys / f"{name}.key"
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone():
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
            connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(DATABASE), role))
        if not path.exists():
            password = secrets.token_urlsafe(24)
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(password)))
            folder.write_key(name, password)
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN CONNECTION LIMIT {}").format(role, limit))
        connection.execute("DELETE FROM fleet_tune.quotas WHERE role = %s", (name,))
        if most_records is not None:
            connection.execute("INSERT INTO fleet_tune.quotas VALUES (%s, %s)", (name, most_records))
    return path


def remove_key(folder: ServerFolder, name: str) -> None:
    """Remove a key: nobody can connect with it any more; its records stay. Raises :class:`ServerError`."""
    from psycopg import sql

    role = sql.Identifier(name)
    with _owner(folder, DATABASE) as connection:
        if name == OWNER or not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone():
            raise ServerError(f"there is no key {name}", "'fleet-tune store keys' lists them")
        # Before the sessions are ended, so that no new one begins meanwhile. Sessions are found by their role, which
        # must therefore still exist.
        connection.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(role))
        _end_sessions(connection, name)
        with connection.transaction():
            connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM {}").format(sql.Identifier(DATABASE), role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
            connection.execute("DELETE FROM fleet_tune.quotas WHERE role = %s", (name,))
    (folder.keys / f"{name}.key").unlink(missing_ok=True)


def _end_sessions(connection: psycopg.Connection[Any], name: str) -> None:
    """End the sessions of a role, and wait until they are over, for :data:`_END_SECS` at most."""
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
    deadline = time.monotonic() + _END_SECS
    while connection.execute(query, (name,)).fetchall() and time.monotonic() < deadline:
        time.sleep(_POLL_SECS)


def keys(folder: ServerFolder) -> list[StoreKey]:
    """Return the keys, sorted by name. Raises :class:`ServerError`."""
    query = (
        f"SELECT rolname, (SELECT count(*) FROM fleet_tune.records WHERE added_by = rolname AND {IS_THERE}),"
        " (SELECT records FROM fleet_tune.quotas WHERE role = rolname), rolconnlimit"
        " FROM pg_roles WHERE rolcanlogin AND NOT rolsuper ORDER BY rolname"
    )
    with _owner(folder, DATABASE) as connection:
        rows = connection.execute(query).fetchall()
    return [StoreKey(name, count, most, None if limit < 0 else limit) for name, count, most, limit in rows]


@contextmanager
def _owner(folder: ServerFolder, database: str) -> Iterator[psycopg.Connection[Any]]:
    """Connect as the owner of the tables. Raises :class:`ServerError` if the server does not run."""
    import psycopg

    address = folder.key_of(OWNER).rpartition("/")[0]
    try:
        with psycopg.connect(f"{address}/{database}", autocommit=True, connect_timeout=5) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise ServerError(
            f"the server of {folder.path} does not answer: {str(error).strip().splitlines()[-1]}",
            f"start it: fleet-tune store serve {folder.path}",
        ) from error
