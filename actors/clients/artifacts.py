"""The built artifacts of a run, by what they are of, on their way from a builder to a device.

They travel packed: who hands them on need not look into them, and a small one is cheaper in a message than as an object
of Ray's store, of which every process that has it keeps an account."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from actors.clients.calls import fetch
from devices.protocol import Artifact

_FETCH_SECS = 30.0
_SMALL_BYTES = 64 * 1024


def packed(artifact: Artifact) -> bytes:
    """Pack an artifact for its way between processes of a run: Ray pickles everything else."""
    return pickle.dumps(artifact, pickle.HIGHEST_PROTOCOL)


def unpacked(sent: Any) -> Artifact:
    """The artifact of what :class:`Artifacts` hands out. Raises what calls raise where it is not to be had."""
    content = sent if isinstance(sent, bytes) else fetch(sent, _FETCH_SECS, "fetch an artifact")
    artifact: Artifact = content if isinstance(content, Artifact) else pickle.loads(content)
    return artifact


class Artifacts:
    """Packed artifacts by candidate id, and by task id for its oracle. A forgotten one leaves this process, and the
    object store."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}

    def put(self, name: str, artifact: bytes) -> None:
        """``artifact``: packed."""
        self._sent[name] = artifact if len(artifact) <= _SMALL_BYTES else _stored(artifact)

    def __getitem__(self, name: str) -> Any:
        """The packed artifact, or the object reference of a large one."""
        return self._sent[name]

    def reference(self, name: str) -> Any:
        """The object reference of what many may ask for, and few need; None where it is not there."""
        sent = self._sent.get(name)
        if isinstance(sent, bytes):
            self._sent[name] = sent = _stored(sent)
        return sent

    def forget(self, names: Iterable[str]) -> None:
        """These are not wanted any more; one that is not there is none."""
        for name in names:
            self._sent.pop(name, None)


def _stored(artifact: bytes) -> Any:
    import ray

    return ray.put(artifact)
