"""Candidates in the stages of a run: numbers, times and waits."""

from __future__ import annotations

from actors.scheduling.stage_clock import StageClock
from fleet_tune.base.domain import Candidate, Incumbent, Measurement, Outcome
from fleet_tune.base.stages import DURATION_BOUNDS, StageProgress
from policies.runs.commands import Build, Measure, ProbeDevice, Propose
from policies.runs.events import BatchLost, BatchMeasured, Built, ProposalLost, Proposed
from tests.helpers.tasks import make_candidate, make_task


class Clock:
    def __init__(self) -> None:
        self.secs = 0.0

    def __call__(self) -> float:
        return self.secs


def numbers(progress: StageProgress) -> tuple[int, int, int, int]:
    return progress.begun, progress.in_progress, progress.done, progress.failed


def bucket_of(secs: float) -> int:
    return next(at for at, bound in enumerate(DURATION_BOUNDS) if secs <= bound)


def measure(*candidates: Candidate) -> Measure:
    return Measure("d", 1, candidates, {"w": Incumbent()}, 60.0)


def test_a_candidate_goes_through_the_stages() -> None:
    now = Clock()
    clock, task = StageClock(now), make_task("w")
    one, two, three = (make_candidate(task.id, number) for number in (1, 2, 3))

    proposed = clock.begin(Propose(task.id, 4, 0))
    assert numbers(clock.progress["search"]) == (4, 4, 0, 0)
    now.secs = 0.3
    proposed(Proposed(task.id, 1, (one, two, three), exhausted=True, predicted_gain=0.0))
    assert numbers(clock.progress["search"]) == (4, 0, 3, 0)

    now.secs = 1.0  # each has waited 0.7 s
    built = [clock.begin(Build(0, task, each, 60.0)) for each in (one, two, three)]
    assert numbers(clock.progress["build"]) == (3, 3, 0, 0)
    now.secs = 1.4
    built[0](Built(0))
    built[1](Built(0))
    built[2](Built(0, Measurement(Outcome.BUILD_ERROR)))
    build = clock.progress["build"]
    assert numbers(build) == (3, 0, 2, 1)
    assert build.waits.counts[bucket_of(0.7)] == 3
    assert build.durations.counts[bucket_of(0.4)] == 3

    now.secs = 2.0
    measured = clock.begin(measure(one, two))
    now.secs = 4.0
    measured(BatchMeasured("d", 1, {one.id: Outcome.OK, two.id: Outcome.RUN_ERROR}))
    progress = clock.progress["measure"]
    assert numbers(progress) == (2, 0, 1, 1)
    assert progress.durations.counts[bucket_of(2.0)] == 1
    assert progress.durations.total_secs == 2.0


def test_candidates_that_were_not_tried_wait_again() -> None:
    now = Clock()
    clock, one, two = StageClock(now), make_candidate("w@zen5", 1), make_candidate("w@zen5", 2)
    measured = clock.begin(measure(one, two))
    measured(BatchMeasured("d", 1, {one.id: Outcome.OK}))
    assert numbers(clock.progress["measure"]) == (2, 0, 1, 0)
    measured = clock.begin(measure(two))
    now.secs = 7.0
    measured(BatchLost("d", 2, "it is gone"))
    assert numbers(clock.progress["measure"]) == (3, 0, 1, 0)
    now.secs = 17.0
    clock.begin(measure(two))
    assert clock.progress["measure"].waits.counts[bucket_of(10.0)] == 1
    assert numbers(clock.progress["measure"]) == (4, 1, 1, 0)


def test_what_is_dropped_is_not_waited_for() -> None:
    now = Clock()
    clock, task = StageClock(now), make_task("w")
    candidate = make_candidate(task.id, 1)
    clock.begin(Propose(task.id, 1, 0))(Proposed(task.id, 1, (candidate,), False, 0.0))
    clock.forget([candidate.id, "unknown"])
    now.secs = 5.0
    clock.begin(Build(0, task, candidate, 60.0))
    assert sum(clock.progress["build"].waits.counts) == 0


def test_lost_proposals_fail_and_oracles_and_probes_do_not_count() -> None:
    clock, task = StageClock(Clock()), make_task("w")
    clock.begin(Propose(task.id, 4, 0))(ProposalLost(task.id, "gone"))
    assert numbers(clock.progress["search"]) == (4, 0, 0, 4)
    clock.begin(Build(0, task, None, 60.0))(Built(0))
    clock.begin(ProbeDevice("d"))(None)
    assert numbers(clock.progress["build"]) == (0, 0, 0, 0)


def test_commits_count_records() -> None:
    now = Clock()
    clock = StageClock(now)
    clock.begin_commit(3, 0.04)
    assert numbers(clock.progress["store"]) == (3, 3, 0, 0)
    now.secs = 0.2
    clock.end_commit(3, 0.0)
    store = clock.progress["store"]
    assert numbers(store) == (3, 0, 3, 0)
    assert store.waits.counts[bucket_of(0.04)] == 3
    assert store.durations.counts[bucket_of(0.2)] == 1
