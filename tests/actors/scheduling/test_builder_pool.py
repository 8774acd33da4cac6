"""Whose fault it is that a builder gives no result."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.clients.builder import BuilderClient
from actors.clients.calls import ActorLostError, ActorTimeoutError
from actors.scheduling.artifacts import Artifacts
from actors.scheduling.builder_pool import BuilderPool
from devices.builds.builder import BuilderStartError
from devices.host.quiet import QuietTimeoutError
from fleet_tune.errors import UserError
from policies.runs.commands import Build
from policies.runs.events import BuilderLost
from tests.helpers.tasks import make_candidate, make_task


class Failing:
    """A builder that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def build(self, _request: Any) -> Any:
        raise self._error


async def build_with(error: Exception) -> Any:
    pool = BuilderPool([cast("BuilderClient", Failing(error))], cast("Artifacts", None))
    task = make_task("matmul")
    return await pool.build(Build(0, task, make_candidate(task), 10.0))


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (BuilderStartError("the build process did not start"), True),
        (QuietTimeoutError("it was not free within 900 s"), True),
        (ActorTimeoutError("build: no answer within 910 s"), False),
        (ActorLostError("build: its process ended"), False),
        (KeyError("status"), False),  # an answer that we do not understand
    ],
)
async def test_only_what_comes_before_the_candidate_is_the_builders_own_fault(error: Exception, ours: bool) -> None:
    answer = await build_with(error)
    assert isinstance(answer, BuilderLost)
    assert (answer.builder, answer.ours) == (0, ours)
    assert str(error.args[0]) in answer.detail


async def test_a_builder_that_the_run_ended_for_its_silence_is_no_jobs_fault_and_the_next_loss_counts() -> None:
    failing = Failing(ActorLostError("build: its process ended"))
    pool = BuilderPool([cast("BuilderClient", failing)] * 2, cast("Artifacts", None))
    task = make_task("matmul")
    pool.ends(0)
    lost = [await pool.build(Build(number, task, make_candidate(task), 10.0)) for number in (1, 0, 0)]
    assert [(each.builder, each.ours) for each in lost if isinstance(each, BuilderLost)] == [
        (1, False),
        (0, True),
        (0, False),
    ]


async def test_what_the_user_can_mend_is_raised() -> None:
    with pytest.raises(UserError, match="install a linker"):
        await build_with(UserError("no linker", "install a linker"))
