"""The builder actor: compiles candidates in a warm worker process and hands the artifact on by object reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from devices.host.versions import Host, this_host
from devices.protocol import Artifact, BuildFailure, BuildRequest, BuildResult


class Worker(Protocol):
    """What builds: :class:`devices.builds.builder.BuildWorker`, or a simulation."""

    def start(self) -> None: ...

    def build(self, request: BuildRequest) -> BuildResult: ...

    def close(self) -> None: ...


class Builder:
    """One build at a time, by the worker that ``make_worker`` returns."""

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        self._worker = make_worker()

    def build(self, request: BuildRequest) -> tuple[BuildFailure | None, Artifact | None]:
        """Two return values, so that the scheduler learns of a failure without fetching the artifact."""
        result = self._worker.build(request)
        if isinstance(result, Artifact):
            return None, result
        return result, None

    def host(self) -> Host:
        """The machine that this process runs on."""
        return this_host()

    def warm_up(self) -> None:
        """Start the worker process, so that the first build does not wait for it."""
        self._worker.start()

    def close(self) -> None:
        self._worker.close()
