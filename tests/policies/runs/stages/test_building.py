"""The queue of builds, and lost builders."""

from __future__ import annotations

from fleet_tune.base.domain import Outcome
from policies.runs.events import BuilderLossCause
from policies.runs.plan import InFlightLimits
from policies.runs.stages.building import BuildStage
from policies.runs.tasks import OracleBuild
from policies.runs.times.timers import Timers
from tests.helpers.tasks import make_task


def stage(builders: int, *names: str) -> BuildStage:
    made = BuildStage(range(builders), InFlightLimits(), Timers(), lambda _job: 10.0)
    for name in names:
        made.add(OracleBuild(make_task(name)))
    return made


def started(stage: BuildStage) -> list[str]:
    return [command.task.workload.name for command in stage.start(0.0)]


def test_a_job_whose_builder_fails_by_itself_waits_behind_the_others() -> None:
    builds = stage(1, "first", "second")
    for expected in ("first", "second", "first", "second"):
        assert started(builds) == [expected]
        assert builds.lost(0, "it does not start", BuilderLossCause.NOT_BEGUN) is None
        builds.rested(0)
    assert builds.hopeless
    assert builds.waiting == 2


def test_a_job_over_which_builders_are_lost_is_blamed_and_the_builders_are_not() -> None:
    builds = stage(2, "poison", "good")
    assert started(builds) == ["poison", "good"]
    assert builds.lost(0, "no answer within 910 s", BuilderLossCause.JOB) is None
    assert builds.ended(1, 1.0) is not None
    assert started(builds) == ["poison"]
    blamed = builds.lost(1, "no answer within 910 s", BuilderLossCause.JOB)
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
            assert builds.lost(0, f"killed by SIGKILL ({number})", BuilderLossCause.OUTSIDE) is None
            builds.rested(0)
    assert started(builds) == ["unlucky"]
    given_up = builds.lost(0, "killed by SIGKILL", BuilderLossCause.OUTSIDE)
    assert given_up is not None
    job, failure = given_up
    assert (job.task.workload.name, failure.outcome) == ("unlucky", Outcome.KILLED)
    assert failure.detail == "the process that built it was ended from outside 3 times: killed by SIGKILL"
    assert builds.idle
    assert not builds.hopeless  # builders do their work


def test_a_job_given_to_a_builder_that_is_not_there_is_the_next_to_be_built_and_counts_nothing() -> None:
    builds = stage(1, "first", "second")
    assert started(builds) == ["first"]
    assert (
        builds.lost(0, "its process ended", BuilderLossCause.OUTSIDE) is None
    )  # with its machine, and nobody knows yet
    rests = []
    for _ in range(2 * InFlightLimits().max_kills):
        builds.rested(0)
        assert started(builds) == ["second"]
        assert builds.lost(0, "it is not there", BuilderLossCause.ABSENT) is None
        rests.append(builds.rest_secs(0))
    assert rests[:3] == [1.0, 2.0, 4.0]
    assert max(rests) == InFlightLimits().max_absent_backoff_secs
    builds.rested(0)
    for expected in ("second", "first"):
        assert started(builds) == [expected]
        assert builds.ended(0, 1.0) is not None
    assert builds.idle


def test_as_many_builders_work_as_are_needed_and_always_the_same() -> None:
    builds = stage(8)
    for at_a_time, expected in ((1, [0]), (2, [0, 1]), (5, [1, 0, 2, 3, 4]), (1, [4]), (1, [4])):
        for at in range(at_a_time):
            builds.add(OracleBuild(make_task(f"job {at}")))
        given = [command.builder for command in builds.start(0.0)]
        assert given == expected
        for builder in given:
            assert builds.ended(builder, 1.0) is not None
    builds.add(OracleBuild(make_task("lost")))
    [command] = builds.start(2.0)
    assert builds.lost(command.builder, "killed", BuilderLossCause.OUTSIDE) is None
    builds.rested(command.builder)
    assert [command.builder for command in builds.start(3.0)] == [3], "one that was lost comes after all others"


def test_builders_that_are_all_gone_for_minutes_end_the_run() -> None:
    builds = stage(1, "first")
    secs = 0.0
    while not builds.hopeless:
        assert started(builds) == ["first"]
        assert builds.lost(0, "it is not there", BuilderLossCause.ABSENT) is None
        secs += builds.rest_secs(0)
        builds.rested(0)
    assert 120 < secs < 180
    assert started(builds) == ["first"]
    assert builds.ended(0, 1.0) is not None
    assert not builds.hopeless


def test_builders_join_and_leave_and_what_one_worked_on_is_built_next() -> None:
    builds = stage(2, "first", "second", "third", "fourth")
    assert started(builds) == ["first", "second"]
    builds.remove_builder(0)
    assert builds.builders == 1
    assert builds.ended(0, 1.0) is None, "its answer comes too late"
    assert builds.lost(0, "its process ended", BuilderLossCause.OUTSIDE) is None
    assert builds.waiting == 3
    builds.add_builders([2, 3])
    builds.add_builders([3])  # told twice
    assert [(each.builder, each.task.workload.name) for each in builds.start(2.0)] == [(2, "first"), (3, "third")]
    assert builds.room == InFlightLimits().waiting_per_builder * 3 - 1
    assert builds.ended(2, 3.0) is not None


def test_a_builder_that_rests_and_leaves_does_not_come_back() -> None:
    builds = stage(2, "first", "second")
    assert started(builds) == ["first", "second"]
    for builder in (0, 1):
        assert builds.lost(builder, "it does not start", BuilderLossCause.NOT_BEGUN) is None
        builds.remove_builder(builder)
        builds.rested(builder)
    assert started(builds) == []
    assert not builds.hopeless, "another machine may come"
    builds.add_builders([2])
    assert started(builds) == ["first"]
