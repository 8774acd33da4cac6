"""What waits for a builder, and what becomes of it where builders are lost."""

from __future__ import annotations

from fleet_tune.domain import Outcome
from policies.runs.building import BuildStage, Job
from policies.runs.plan import Flow
from policies.runs.timers import Timers
from tests.helpers.tasks import make_task


def stage(builders: int, *names: str) -> BuildStage:
    made = BuildStage(builders, Flow(), Timers(), lambda _job: 10.0)
    for name in names:
        made.add(Job(make_task(name), None))
    return made


def started(stage: BuildStage) -> list[str]:
    return [command.task.workload.name for command in stage.start(0.0)]


def test_a_job_whose_builder_fails_by_itself_waits_behind_the_others() -> None:
    builds = stage(1, "first", "second")
    for expected in ("first", "second", "first", "second"):
        assert started(builds) == [expected]
        assert builds.lost(0, "it does not start", ours=True) is None
        builds.rested(0)
    assert builds.hopeless
    assert builds.waiting == 2


def test_a_job_over_which_builders_are_lost_is_blamed_and_the_builders_are_not() -> None:
    builds = stage(2, "poison", "good")
    assert started(builds) == ["poison", "good"]
    assert builds.lost(0, "no answer within 910 s", ours=False) is None
    assert builds.ended(1, 1.0) is not None
    assert started(builds) == ["poison"]
    blamed = builds.lost(1, "no answer within 910 s", ours=False)
    assert blamed is not None
    job, failure = blamed
    assert (job.task.workload.name, failure.outcome) == ("poison", Outcome.BUILD_ERROR)
    assert failure.detail == "no answer within 910 s"
    assert builds.idle
    assert not builds.hopeless
