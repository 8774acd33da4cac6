"""Whose fault it is that a builder gives no result."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.clients.artifacts import Artifacts
from actors.clients.builder import BuilderClient
from actors.clients.calls import ActorLostError, ActorTimeoutError
from actors.scheduling.builder_pool import BuilderPool
from devices.builds.builder import BuilderStartError
from devices.host.quiet_windows.quiet_window import QuietTimeoutError
from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.errors import UserError
from policies.runs.commands import Build
from policies.runs.events import BuilderLossCause, BuilderLost, Built
from tests.helpers.tasks import make_candidate, make_task


class Failing:
    """A builder that raises, or tells of a failure, while it ``lacks`` something."""

    def __init__(self, error: Exception | Measurement) -> None:
        self._error = error
        self.lacks = True

    async def build(self, _request: Any) -> Any:
        if not self.lacks:
            return b"artifact"
        if isinstance(self._error, Measurement):
            return self._error
        raise self._error


async def build_with(error: Exception | Measurement) -> Any:
    pool = BuilderPool({0: cast("BuilderClient", Failing(error))}, cast("Artifacts", None))
    task = make_task("matmul")
    return await pool.build(Build(0, task, make_candidate(task), 10.0))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (BuilderStartError("the build process did not start"), BuilderLossCause.NOT_BEGUN),
        (QuietTimeoutError("it was not free within 900 s"), BuilderLossCause.NOT_BEGUN),
        (ActorTimeoutError("build: no answer within 910 s"), BuilderLossCause.JOB),
        (ActorLostError("build: its process ended"), BuilderLossCause.OUTSIDE),  # no candidate is compiled in it
        (KeyError("status"), BuilderLossCause.JOB),  # an answer that we do not understand
    ],
)
async def test_whose_fault_a_lost_builder_is(error: Exception, cause: BuilderLossCause) -> None:
    answer = await build_with(error)
    assert isinstance(answer, BuilderLost)
    assert (answer.builder, answer.cause) == (0, cause)
    assert str(error.args[0]) in answer.detail


@pytest.mark.parametrize(
    ("outcome", "cause"), [(Outcome.KILLED, BuilderLossCause.OUTSIDE), (Outcome.BUILD_ERROR, None)]
)
async def test_a_build_child_that_was_killed_is_no_answer_to_the_job(
    outcome: Outcome, cause: BuilderLossCause | None
) -> None:
    answer = await build_with(Measurement(outcome, detail="how"))
    assert isinstance(answer, Built if cause is None else BuilderLost)
    assert getattr(answer, "cause", None) is cause


class Coming:
    """A builder whose process is lost, until it is ``there`` again."""

    def __init__(self) -> None:
        self.there = False
        self.asked = 0

    async def is_there(self) -> None:
        if not self.there:
            raise ActorLostError("a sign of life: its process ended")

    async def build(self, _request: Any) -> Any:
        self.asked += 1
        if not self.there:
            raise ActorLostError("build: its process ended")
        return Measurement(Outcome.BUILD_ERROR)


async def test_a_lost_builder_is_given_nothing_before_another_process_is_in_its_place() -> None:
    builder = Coming()
    pool = BuilderPool({0: cast("BuilderClient", builder)}, cast("Artifacts", None))
    task = make_task("matmul")
    causes = []
    for there in (False, False, False, True, True):
        builder.there = there
        answer = await pool.build(Build(0, task, make_candidate(task), 10.0))
        causes.append(answer.cause if isinstance(answer, BuilderLost) else None)
    assert causes == [BuilderLossCause.OUTSIDE, BuilderLossCause.ABSENT, BuilderLossCause.ABSENT, None, None]
    assert builder.asked == 3


async def test_what_the_user_can_mend_is_raised() -> None:
    with pytest.raises(UserError, match="install a linker"):
        await build_with(UserError("no linker", "install a linker"))


async def test_what_one_machine_lacks_ends_no_run_in_which_others_build() -> None:
    builder = Failing(UserError("no linker", "install a linker"))
    builder.lacks = False
    pool = BuilderPool({0: cast("BuilderClient", builder)}, Artifacts())
    task = make_task("matmul")
    assert isinstance(await pool.build(Build(0, task, make_candidate(task), 10.0)), Built)
    builder.lacks = True
    answer = await pool.build(Build(0, task, make_candidate(task, 2), 10.0))
    assert isinstance(answer, BuilderLost)
    assert answer.cause is BuilderLossCause.NOT_BEGUN
    assert "install a linker" in answer.detail
