"""What waits for a builder, and what becomes of it where builders are lost."""

from __future__ import annotations

from fleet_tune.domain import Outcome
from policies.runs.building import BuildStage, Job
from policies.runs.events import Cause
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
        assert builds.lost(0, "it does not start", Cause.NOT_BEGUN) is None
        builds.rested(0)
    assert builds.hopeless
    assert builds.waiting == 2


def test_a_job_over_which_builders_are_lost_is_blamed_and_the_builders_are_not() -> None:
    builds = stage(2, "poison", "good")
    assert started(builds) == ["poison", "good"]
    assert builds.lost(0, "no answer within 910 s", Cause.JOB) is None
    assert builds.ended(1, 1.0) is not None
    assert started(builds) == ["poison"]
    blamed = builds.lost(1, "no answer within 910 s", Cause.JOB)
    assert blamed is not None
    job, failure = blamed
    assert (job.task.workload.name, failure.outcome) == ("poison", Outcome.BUILD_ERROR)
    assert failure.detail == "no answer within 910 s"
    assert builds.idle
    assert not builds.hopeless


def test_a_job_whose_processes_are_killed_is_given_up_without_blame_and_behind_all_others() -> None:
    builds = stage(1, "unlucky", "good")
    for number, expected in enumerate(("unlucky", "good", "unlucky")):
        assert started(builds) == [expected]
        if expected == "good":
            assert builds.ended(0, 1.0) is not None
        else:
            assert builds.lost(0, f"killed by SIGKILL ({number})", Cause.OUTSIDE) is None
            builds.rested(0)
    assert started(builds) == ["unlucky"]
    given_up = builds.lost(0, "killed by SIGKILL", Cause.OUTSIDE)
    assert given_up is not None
    job, failure = given_up
    assert (job.task.workload.name, failure.outcome) == ("unlucky", Outcome.KILLED)
    assert failure.detail == "the process that built it was ended from outside 3 times: killed by SIGKILL"
    assert builds.idle
    assert not builds.hopeless  # builders do their work
