"""Results on disk by a hash of their inputs: nothing is made twice.

A key is a hash of everything that decides the result, the versions of TVM and of this package's own code included. So a
folder may be shared by processes and runs, and nothing in it is ever out of date, only unused. A damaged file counts as
absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fleet_tune.base.records.files.atomic_file import write_atomically

DEFAULT_BYTES = 1 << 30
_DIGEST_BYTES = 16
# Share of the limit that eviction leaves, and share of the limit that may be added between two checks.
_KEPT_SHARE = 0.8
_CHECKED_SHARE = 0.1

_log = logging.getLogger(__name__)


def user_folder() -> Path:
    """Return the folder in the user's cache, for results that runs share, and for machines on which a run's own folder
    is not visible.

    For a user without a home folder, return a path that cannot be made: nothing is kept, and the log says so.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        cache = Path(os.devnull)
    return cache / "fleet-tune" / "artifacts"


class FileCache:
    """A cache of byte strings, for several processes and threads at a time.

    If the disk is full or not writable, results are not kept. The log gets one warning, and nothing fails.

    Args:
        folder: created when the first bytes are stored.
        suffix: ending of the names of the files.
        what: what the files hold, for the log.
        limit_bytes: size above which the least recently used files are removed.
    """

    def __init__(self, folder: Path, suffix: str, what: str, limit_bytes: int = DEFAULT_BYTES) -> None:
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes must be at least 1, got {limit_bytes}")
        self._folder = folder
        self._suffix = suffix
        self._what = what
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._unchecked_bytes: float = limit_bytes  # files that exist already are measured at the first addition
        self._writable = True

    def find(self, key: str) -> bytes | None:
        """Return the bytes stored under ``key``; ``None`` if there are none."""
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)  # used now
        except OSError:
            return None
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return body

    def store(self, key: str, body: bytes) -> None:
        """Keep ``body`` under ``key``: all of it or, if this process ends meanwhile, nothing."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A partial file after a crash of the machine is recognised by its digest.
            write_atomically(path, hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body, durable=False)
        except OSError as error:
            self._give_up(error)
            return
        with self._lock:
            self._unchecked_bytes += len(body)
            if self._unchecked_bytes >= self._limit_bytes * _CHECKED_SHARE:
                self._unchecked_bytes = 0
                self._evict()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}{self._suffix}"

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return time of last use, size and path of every file, those of a killed writer included."""
        files = []
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(OSError):  # another process may remove it right now
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        return files

    def _evict(self) -> None:
        files = sorted(self._files(), key=lambda file: file[0])
        total = sum(size for _used, size, _path in files)
        if total <= self._limit_bytes:
            return
        for _used, size, path in files:
            if total <= self._limit_bytes * _KEPT_SHARE:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size

    def _give_up(self, error: OSError) -> None:
        if self._writable:
            self._writable = False
            _log.warning("cannot keep %s in %s (%s)", self._what, self._folder, error.strerror or error)


def key_of(parts: Iterable[str]) -> str:
    """Return the key of a result that depends on ``parts``."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


@cache
def source_digest() -> str:
    """Return a hash of this package's own code: any line of it may change a result."""
    digest = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def tvm_versions() -> dict[str, str]:
    """Return the versions of TVM's packages by name."""
    return {name: importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
