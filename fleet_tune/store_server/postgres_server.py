"""The process of a team's PostgreSQL server, which ends with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from devices.host.children.parent import end_with_parent
from fleet_tune.base.errors import RecordStoreError, ServerError
from fleet_tune.base.records.files.lock_file import release_lock
from fleet_tune.base.records.sharing.postgres import TeamStore
from fleet_tune.store_server.keys import make_database
from fleet_tune.store_server.server_folder import OWNER, PostgresUser, ServerFolder, postgres_user, programs

_START_SECS = 60.0
_END_SECS = 30.0
_POLL_SECS = 0.1
LOG = "server.log"


class PostgresServer:
    """A running server of ``folder``, which is made if there is none. It listens on ``port`` of ``bind`` and of
    127.0.0.1. ``host``: the name by which others reach it; empty: ``bind``. The server ends when the block is left, or
    when this process is killed.

    Raises :class:`ServerError` if PostgreSQL is missing or does not start, or the folder is served already,
    :class:`RequestError` without psycopg.
    """

    def __init__(self, folder: Path, bind: str = "127.0.0.1", port: int = 5432, host: str = "") -> None:
        self.folder = ServerFolder(folder.absolute())
        self._by: PostgresUser = postgres_user()
        binaries = programs()
        self.folder.prepare()
        self._held = contextlib.ExitStack()
        try:
            self._held.callback(release_lock, self.folder.take())
            self.folder.make(self._by, binaries)
            self.folder.note_address(host or bind, port)
            self._log = self.folder.path / LOG
            self._process = self._started(binaries, bind, port)
            self._held.callback(self._end)
            self._wait()
            make_database(self.folder)
        except BaseException:
            self.close()
            raise

    def _started(self, binaries: Path, bind: str, port: int) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": bind if bind in ("127.0.0.1", "*", "0.0.0.0") else f"127.0.0.1,{bind}",
            "port": str(port),
            "unix_socket_directories": "",  # none: their paths may be too long, and nobody needs one
            "ssl": "on" if self.folder.encrypts else "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        ours = os.getpid()

        def with_parent() -> None:
            """Have the server get SIGINT, PostgreSQL's fast shutdown, when this process ends."""
            end_with_parent(signal.SIGINT)
            if os.getppid() != ours:
                os._exit(0)

        kept: Any = self._by.options
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(self.folder.data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the server
                preexec_fn=with_parent,
                **kept,
            )

    def _wait(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + _START_SECS
        address = self.folder.key_of(OWNER).rpartition("/")[0] + "/postgres"
        while True:
            try:
                TeamStore.probe(address)
                return
            except RecordStoreError as error:  # a refusal comes from another server at this port
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise ServerError(
                        f"PostgreSQL does not start: {self._last_line()}", f"look at {self._log}"
                    ) from error
                time.sleep(_POLL_SECS)

    def _last_line(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if "FATAL" in line]
        return lines[-1].partition("FATAL:")[2].strip() if lines else "it says nothing"

    def wait(self) -> int:
        """Wait until the server ends, and return its exit status."""
        return self._process.wait()

    def ask_to_end(self) -> None:
        """Ask the server to end, so that :meth:`wait` returns. May be called in a signal handler."""
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGINT)

    def close(self) -> None:
        """End the server. Committed records are safe. May be called twice."""
        self._held.close()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_END_SECS)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)  # ends at once, and recovers at its next start
                self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
