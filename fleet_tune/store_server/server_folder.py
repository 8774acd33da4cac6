"""Folder of a PostgreSQL server of our own: made by PostgreSQL's ``initdb``, with its owner's key in a file that only
its user reads, and TLS if openssl can make a certificate."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fleet_tune.base.errors import ServerError
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.records.files.lock_file import LockedError, take_lock

OWNER = "fleet_tune"
DATABASE = "fleet_tune"
POSTGRES_VARIABLE = "FLEET_TUNE_POSTGRES_DIR"
"""The environment variable that names the folder of PostgreSQL's programs."""
_PROGRAMS = ("initdb", "postgres")
_DEBIAN = Path("/usr/lib/postgresql")
_USERS = ("postgres", "nobody")
_MAKING_SECS = 120
_ENDING_SECS = 10.0
_POLL_SECS = 0.01
_MAKING = ".making-"
LOCK = "lock"
_OURS = ("keys", "server.json", LOCK)

# The owner of the tables connects from this machine only. Every other key is accepted for this database only.
_ACCESS = f"""\
host all {OWNER} 127.0.0.1/32 scram-sha-256
host all {OWNER} ::1/128 scram-sha-256
host all {OWNER} all reject
host {DATABASE} all all scram-sha-256
"""


@dataclass(frozen=True)
class PostgresUser:
    """The user that runs PostgreSQL's programs, which refuse to run as root. ``user``: its name, None for the present
    user."""

    user: str | None

    @property
    def options(self) -> dict[str, object]:
        """Return options of :class:`subprocess.Popen`."""
        if self.user is None:
            return {}
        entry = pwd.getpwnam(self.user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give a file or folder to that user."""
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)


def postgres_user() -> PostgresUser:
    """Return the present user, or an unprivileged one if that is root. Raises :class:`ServerError` if there is none."""
    if os.geteuid() != 0:
        return PostgresUser(None)
    for name in _USERS:
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            return PostgresUser(name)
    raise ServerError("PostgreSQL does not run as root, and there is no user postgres or nobody", "run as another user")


def programs() -> Path:
    """Return the folder of PostgreSQL's programs: the one that :data:`POSTGRES_VARIABLE` names, else that of the newest
    Debian package, else one in PATH. Raises :class:`ServerError` if there are none."""
    named = os.environ.get(POSTGRES_VARIABLE)
    places = [Path(named)] if named else _installed()
    for place in places:
        if all(os.access(place / name, os.X_OK) for name in _PROGRAMS):
            return place
    raise ServerError(
        "PostgreSQL's programs initdb and postgres were not found" + (f" in {named}" if named else ""),
        f"install them (Debian, Ubuntu: apt-get install postgresql), or name their folder in {POSTGRES_VARIABLE}",
    )


def _installed() -> list[Path]:
    versions = [each for each in _DEBIAN.glob("*/bin") if each.parent.name.isdigit()]
    found = shutil.which("initdb")
    in_path = [] if found is None else [Path(found).resolve().parent]
    return [*sorted(versions, key=lambda each: -int(each.parent.name)), *in_path]


class ServerFolder:
    """The folder ``path`` of a server. ``data`` belongs to PostgreSQL; ``keys`` has a file of mode 600 for each key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.keys = path / "keys"
        self._about = path / "server.json"

    @property
    def is_made(self) -> bool:
        """True if the folder has a server."""
        return (self.data / "PG_VERSION").is_file()

    def prepare(self) -> None:
        """Make the folder if it is missing. Raises :class:`ServerError` if it has other files and no server."""
        with _told(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            left = {*self._left_over()}
            others = [each for each in self.path.iterdir() if each.name not in _OURS and each not in left]
            if others and not self.is_made:
                raise ServerError(f"{self.path} has other files and no server", "give an empty folder, or a new one")

    def take(self) -> int:
        """Lock the folder, which one process serves at a time. Return the descriptor for :func:`release_lock`. Raises
        :class:`ServerError`."""
        try:
            with _told(self.path):
                return take_lock(self.path / LOCK)
        except LockedError as error:
            raise ServerError(
                f"{self.path} is served already, by {error.who}", "end that one, or give another folder"
            ) from error

    def _left_over(self) -> list[Path]:
        """Return the leftovers of a server that was killed."""
        return [*self.path.glob(f"{_MAKING}*"), *self.path.glob(f".{self._about.name}.*.part")]

    def make(self, by: PostgresUser, binaries: Path) -> None:
        """Make the server if there is none, as a whole or not at all. The caller has locked the folder (:meth:`take`).
        Raises :class:`ServerError`."""
        for each in self._left_over():
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)
        if self.is_made:
            return
        with _told(self.path):
            by.own(self.path)
            self.path.chmod(0o700)
            self.keys.mkdir(mode=0o700, exist_ok=True)
            password = secrets.token_urlsafe(24)
            with tempfile.TemporaryDirectory(dir=self.path, prefix=_MAKING) as text:
                making = Path(text)
                by.own(making)
                (making / "password").write_text(password)
                by.own(making / "password")
                initdb = [binaries / "initdb", "-D", making / "data", "-U", OWNER, "--pwfile", making / "password"]
                options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums"]
                self._run([*map(str, initdb), *options], by)
                (making / "data" / "pg_hba.conf").write_text(_ACCESS)
                self._certify(making / "data", by)
                self.write_key(OWNER, password)
                os.rename(making / "data", self.data)

    def _run(self, command: Sequence[str], by: PostgresUser) -> None:
        # The command and its children are a process group: all of them end before the folder they write is removed.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
            **by.options,  # type: ignore[call-overload]
        )
        try:
            out, errors = process.communicate(timeout=_MAKING_SECS)
        except BaseException:
            _end_group(process)
            raise
        if process.returncode:
            last = (errors.strip() or out.strip() or "no message").splitlines()[-1]
            raise ServerError(f"{Path(command[0]).name} failed: {last}", f"look at {self.path}: its user must reach it")

    def _certify(self, data: Path, by: PostgresUser) -> None:
        """Make a self-signed certificate, so that connections are encrypted. Make none if openssl is missing."""
        openssl = shutil.which("openssl")
        if openssl is None:
            return
        names = ["-keyout", str(data / "server.key"), "-out", str(data / "server.crt")]
        request = ["req", "-new", "-x509", "-nodes", "-days", "3650", "-newkey", "rsa:2048", "-subj", "/CN=fleet-tune"]
        self._run([openssl, *request, *names], by)
        (data / "server.key").chmod(0o600)

    @property
    def encrypts(self) -> bool:
        """True if the server has a certificate."""
        return (self.data / "server.crt").is_file()

    def write_key(self, name: str, password: str) -> Path:
        """Write the file of a key, and return its path. It contains the address that people give with ``--store``."""
        path = self.keys / f"{name}.key"
        host, port = self.address
        shown = "127.0.0.1" if name == OWNER else host
        write_atomically(path, f"postgresql://{name}:{quote(password)}@{shown}:{port}/{DATABASE}\n".encode())
        path.chmod(0o600)
        return path

    def key_of(self, name: str) -> str:
        """Return the address with the key of ``name``. Raises :class:`ServerError` if there is none."""
        with _told(self.path):
            return (self.keys / f"{name}.key").read_text().strip()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port by which others reach the server, as noted last."""
        try:
            about = json.loads(self._about.read_bytes())
            return str(about["host"]), int(about["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return "127.0.0.1", 5432

    def note_address(self, host: str, port: int) -> None:
        """Note the host and port by which others reach the server, and write them into the files of the keys."""
        with _told(self.path):
            before = self.address
            write_atomically(self._about, json.dumps({"host": host, "port": port}).encode())
            if before == (host, port):
                return
            for file in self.keys.glob("*.key"):
                head, _, _ = file.read_text().strip().rpartition("@")
                shown = "127.0.0.1" if file.stem == OWNER else host
                write_atomically(file, f"{head}@{shown}:{port}/{DATABASE}\n".encode())
                file.chmod(0o600)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it has started, and wait until they have ended."""
    deadline = time.monotonic() + _ENDING_SECS
    with contextlib.suppress(ProcessLookupError):  # raised when the last of them is gone
        while time.monotonic() < deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            time.sleep(_POLL_SECS)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ServerError(f"{path} cannot be used: {error.strerror or error}", "choose another folder") from error
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{error.cmd[0]} did not end", "look at the machine's disk") from error
