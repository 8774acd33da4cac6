"""Cache of built kernels on disk (:mod:`devices.host.file_cache`).

The key is a hash of everything that the built bytes depend on: the workload, the sketch and its decisions, the target,
the versions of TVM and of this package's code, the options of code generation and the linker.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from devices.host.file_cache import DEFAULT_BYTES, FileCache, key_of, source_digest, user_folder
from devices.protocol import Artifact, BuildRequest, decode_check_plan, decode_specs


def usable_folder(folder: Path) -> Path:
    """Return ``folder`` if its parent exists on this machine, else a folder in the user's cache: builders on other
    hosts of a cluster do not see the run's output folder."""
    return folder if folder.parent.is_dir() else user_folder()


class ArtifactCache:
    """Artifacts in ``folder``, at most ``limit_bytes`` of them; see :class:`devices.host.file_cache.FileCache`."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_BYTES) -> None:
        self._files = FileCache(folder, ".artifact", "built kernels", limit_bytes)

    def find(self, key: str, request: BuildRequest) -> Artifact | None:
        """Return the artifact stored under ``key`` (see :func:`artifact_key`) as the answer to ``request``; None if
        there is none."""
        body = self._files.find(key)
        return None if body is None else _decode(msgpack.unpackb(body), request)

    def store(self, key: str, artifact: Artifact) -> None:
        """Store ``artifact`` under ``key``."""
        self._files.store(key, msgpack.packb(_encode(artifact), use_bin_type=True))


def artifact_key(request: BuildRequest, built_by: str) -> str:
    """Return the key of the artifact that ``request`` asks for. ``built_by``: everything that the artifact depends on
    besides the request."""
    task, candidate = request.task, request.candidate
    parts = [built_by, source_digest(), task.workload.hash, task.workload.module, task.device_class.target]
    if candidate is not None:
        parts += [candidate.sketch_id, ",".join(map(str, candidate.decisions))]
    return key_of(parts)


def _encode(artifact: Artifact) -> dict[str, Any]:
    """Return the fields that depend on the kernel only. Task and candidate come from each request, because their names
    may differ between runs."""
    fields = asdict(artifact)
    del fields["task_id"], fields["candidate"], fields["flop"], fields["program"]
    return fields


def _decode(fields: dict[str, Any], request: BuildRequest) -> Artifact:
    return Artifact(
        task_id=request.task.id,
        candidate=request.candidate,
        library=fields["library"],
        args=decode_specs(fields["args"]),
        original_args=decode_specs(fields["original_args"]),
        outputs=tuple(fields["outputs"]),
        packed=tuple(fields["packed"]),
        trace=fields["trace"],
        build_secs=fields["build_secs"],
        check=decode_check_plan(fields["check"]),
        flop=request.task.workload.flop,
        program=request.task.workload.module if request.candidate is None else "",
    )
