"""An object on the head node of a Ray cluster, where the runs of jobs have their output folders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from actors.clients.calls import LOST, fetch, first_line, remote_actor
from actors.clusters.cluster import connected
from devices.host.children.child import without_torch
from fleet_tune.base.errors import ClusterError

_HEAD = "node:__internal_head__"
"""Resource that Ray gives to the head node alone."""
_START_SECS = 120.0
_CALL_SECS = 600.0


class HeadNodeActor:
    """The actor. It makes the object at the first call, so that an error of making it becomes the answer to that
    call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        without_torch()
        self._make = make
        self._object: Any = None

    def ready(self) -> None:
        """Answer: the process has started."""

    def call(self, method: str) -> Any:
        """Return what a method of the object returns."""
        if self._object is None:
            self._object = self._make()
        return getattr(self._object, method)()


@contextlib.contextmanager
def on_head_node(address: str, make: Callable[[], Any]) -> Iterator[Callable[[str], Any]]:
    """Make an object on the head node of the cluster at ``address``, until the block is left. Yields a function that
    calls a method of the object by its name.

    Raises :class:`ClusterError` if the cluster cannot be reached or the actor is lost, and the object's own errors.
    """
    import ray

    with connected(address):
        # A share of the head node's resource: the scheduler can place the actor nowhere else.
        actor = remote_actor(HeadNodeActor, resources={_HEAD: 0.001}).remote(make)

        def ask(reference: Any, secs: float) -> Any:
            try:
                return fetch(reference, secs, "the head node")
            except LOST as error:
                raise ClusterError(first_line(error), "look at the cluster ('ray status'), then try again") from error

        ask(actor.ready.remote(), _START_SECS)
        try:
            yield lambda method: ask(actor.call.remote(method), _CALL_SECS)
        finally:
            with contextlib.suppress(Exception):
                ray.kill(actor)
