"""Built kernels on disk, by what they are made of: a candidate that was built before is not built again.

The key is a hash of all that decides the bytes: the workload, the sketch and its decisions, the target, the versions of
TVM and of this package's own code, the options of code generation and the linker. So a folder may be shared by builders
and runs, and nothing in it is ever out of date, only unused. A file that is damaged counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from devices.protocol import Artifact, BuildRequest, TensorSpec
from fleet_tune.records.atomic_file import write_atomically

DEFAULT_BYTES = 1 << 30
_SUFFIX = ".artifact"
_DIGEST_BYTES = 16
# The folder is measured, and emptied to this share of its limit, once so many bytes were added.
_KEPT_SHARE = 0.8
_CHECKED_SHARE = 0.1

_log = logging.getLogger(__name__)


def folder_here(folder: Path) -> Path:
    """``folder`` where the folder that it lies in exists on this machine, else one in the user's cache: builders on
    other hosts of a cluster do not see the run's output folder."""
    if folder.parent.is_dir():
        return folder
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleet-tune" / "artifacts"


class ArtifactCache:
    """Artifacts in ``folder``, which is made when the first one is stored; those not used for longest go when all
    together exceed ``limit_bytes``.

    For several processes and threads at a time. A disk that is full or cannot be written costs the caching, said once
    in the log, and never a build.
    """

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_BYTES) -> None:
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes must be at least 1, got {limit_bytes}")
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._unchecked_bytes: float = limit_bytes  # what is there already is measured with the first addition
        self._writable = True

    def find(self, key: str, request: BuildRequest) -> Artifact | None:
        """The artifact stored under ``key`` (see :func:`artifact_key`), as the answer to ``request``."""
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
        return _decode(msgpack.unpackb(body), request)

    def store(self, key: str, artifact: Artifact) -> None:
        """Keep ``artifact`` under ``key``: all of it or, if this process ends meanwhile, nothing."""
        body: bytes = msgpack.packb(_encode(artifact), use_bin_type=True)
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A partial one, after a crash of the machine, shows by its digest.
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
        return self._folder / key[:2] / f"{key}{_SUFFIX}"

    def _files(self) -> list[tuple[float, int, Path]]:
        """Time of last use, bytes and path of every file, those of a writer that was killed among them."""
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
            _log.warning("cannot keep built kernels in %s (%s)", self._folder, error.strerror or error)


def artifact_key(request: BuildRequest, built_by: str) -> str:
    """Key of what ``request`` asks for. ``built_by``: all that the result depends on beside the request."""
    task, candidate = request.task, request.candidate
    parts = [built_by, source_digest(), task.workload.hash, task.workload.module, task.device_class.target]
    if candidate is not None:
        parts += [candidate.sketch_id, ",".join(map(str, candidate.decisions))]
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


@cache
def source_digest() -> str:
    """Hash of this package's own code: what it makes of a candidate may change with any line of it."""
    digest = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _encode(artifact: Artifact) -> dict[str, Any]:
    """What belongs to the kernel; task and candidate are the request's (their names may differ from run to run)."""
    fields = asdict(artifact)
    del fields["task_id"], fields["candidate"]
    return fields


def _decode(fields: dict[str, Any], request: BuildRequest) -> Artifact:
    return Artifact(
        task_id=request.task.id,
        candidate=request.candidate,
        library=fields["library"],
        args=_specs(fields["args"]),
        original_args=_specs(fields["original_args"]),
        outputs=tuple(fields["outputs"]),
        packed=tuple(fields["packed"]),
        trace=fields["trace"],
        build_secs=fields["build_secs"],
    )


def _specs(listed: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(each["shape"]), each["dtype"]) for each in listed)
