"""The built artifacts of a run on their way from a builder to a device, by the id of their candidate or task.

They travel packed, since the processes that pass them on need not look into them. A small artifact is cheaper in a
message than as an object of Ray's store, for which every process that holds it keeps an account."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from actors.clients.calls import fetch
from devices.protocol import Artifact

_FETCH_SECS = 30.0
_SMALL_BYTES = 64 * 1024


def packed(artifact: Artifact) -> bytes:
    """Pickle an artifact that travels between processes of a run. Ray pickles everything else."""
    return pickle.dumps(artifact, pickle.HIGHEST_PROTOCOL)


def unpacked(sent: Any) -> Artifact:
    """Return the artifact that belongs to a value from :class:`Artifacts`. Raise the errors of calls if it cannot be
    fetched."""
    content = sent if isinstance(sent, bytes) else fetch(sent, _FETCH_SECS, "fetch an artifact")
    artifact: Artifact = content if isinstance(content, Artifact) else pickle.loads(content)
    return artifact


class Artifacts:
    """Packed artifacts: those of candidates by candidate id, oracles by task id. A forgotten artifact is freed in this
    process and in the object store."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}

    def put(self, name: str, artifact: bytes) -> None:
        """Keep a packed artifact, a large one in the object store."""
        self._sent[name] = artifact if len(artifact) <= _SMALL_BYTES else _stored(artifact)

    def __getitem__(self, name: str) -> Any:
        """Return the packed artifact, or the object reference of a large one."""
        return self._sent[name]

    def reference(self, name: str) -> Any:
        """Return the object reference of an artifact that many processes receive and few need; None if it is
        unknown."""
        sent = self._sent.get(name)
        if isinstance(sent, bytes):
            self._sent[name] = sent = _stored(sent)
        return sent

    def forget(self, names: Iterable[str]) -> None:
        """Drop these artifacts. Unknown names are ignored."""
        for name in names:
            self._sent.pop(name, None)


def _stored(artifact: bytes) -> Any:
    import ray

    return ray.put(artifact)
