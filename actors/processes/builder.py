"""The builder actor: compiles candidates in a warm worker process and hands the artifact on by object reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from actors.clients.calls import remote_actor
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
        self._make_worker = make_worker
        self._made: Worker | None = None

    @property
    def _worker(self) -> Worker:
        """Made when first asked for, so that what is wrong with it is the answer of a call, not a dead actor."""
        if self._made is None:
            self._made = self._make_worker()
        return self._made

    def build(self, request: BuildRequest) -> tuple[BuildFailure | None, Artifact | None]:
        """Two return values, so that the scheduler learns of a failure without fetching the artifact."""
        result = self._worker.build(request)
        if isinstance(result, Artifact):
            return None, result
        return result, None

    def host(self) -> Host:
        """The machine that this process runs on."""
        return this_host()

    def beat(self) -> None:
        """A sign of life; called beside the others, in a thread of its own."""

    def warm_up(self) -> None:
        """Start the worker process, so that the first build does not wait for it."""
        self._worker.start()

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def builder_actor(**options: Any) -> Any:
    """The Ray class of :class:`Builder`: Ray starts it again when its process ends, and it gives signs of life
    (``beat``) while it builds."""
    return remote_actor(Builder, restarts=-1, groups={"beat": 1}, **options)
