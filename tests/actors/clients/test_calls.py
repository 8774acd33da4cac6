"""Deadlines and errors of calls between actors, on a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import Any

import pytest
import ray

from actors.clients.calls import ActorLostError, ActorTimeoutError, ByValue, ask, fetch, remote_actor
from fleet_tune.base.errors import DiskFullError

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Helper:
    """An actor that answers, fails, hangs or dies."""

    def __init__(self, shared: ByValue[Any] | None = None) -> None:
        self.value = None if shared is None else shared.get()

    def size(self) -> int:
        assert self.value is not None
        return len(self.value)

    def fail(self) -> None:
        raise DiskFullError("no space left", "free some")

    def niceness(self) -> int:
        return os.nice(0)

    def hang(self) -> None:
        threading.Event().wait()

    def die(self) -> None:
        os._exit(1)


@pytest.fixture
def helper() -> Any:
    actor = remote_actor(Helper).remote()
    yield actor
    ray.kill(actor)


async def test_an_actors_own_error_arrives_as_it_was_raised(helper: Any) -> None:
    with pytest.raises(DiskFullError) as caught:
        await ask(helper.fail.remote(), 60.0, "fail")
    assert (caught.value.problem, caught.value.next_step) == ("no space left", "free some")
    with pytest.raises(DiskFullError):
        fetch(helper.fail.remote(), 60.0, "fail")


async def test_a_hanging_actor_is_given_up_at_the_deadline(helper: Any) -> None:
    with pytest.raises(ActorTimeoutError, match="hang"):
        await ask(helper.hang.remote(), 0.2, "hang")
    with pytest.raises(ActorTimeoutError, match="hang"):
        fetch(helper.hang.remote(), 0.2, "hang")


async def test_a_dead_actor_is_lost(helper: Any) -> None:
    with pytest.raises(ActorLostError, match="die"):
        await ask(helper.die.remote(), 60.0, "die")


async def test_an_actor_runs_with_the_priority_of_its_driver(helper: Any) -> None:
    """Ray's own choice is a niceness of 15, and kernels would be timed behind everything else on the host."""
    assert await ask(helper.niceness.remote(), 60.0, "niceness") == os.nice(0)


async def test_a_shared_value_reaches_an_actor_and_its_restarted_self() -> None:
    length = 1000
    shared = ByValue(os.urandom(length))
    actor = remote_actor(Helper, restarts=1).remote(shared)
    assert await ask(actor.size.remote(), 60.0, "size") == length
    with pytest.raises(ActorLostError):
        await ask(actor.die.remote(), 60.0, "die")
    async with asyncio.timeout(60.0):
        while True:
            with contextlib.suppress(ActorLostError):  # Ray may still be starting it again
                assert await ask(actor.size.remote(), 60.0, "size") == length
                break
    ray.kill(actor)
