"""What is measured again: shoot-outs at the end of a run, stored and not repeated by a run that resumes; records of a
device that drifts, marked and left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from actors.calls import ask
from devices.simulated.simulated import Drift
from fleet_tune.domain import Record, StopRule
from fleet_tune.records.store import RecordReader
from fleet_tune.results import Progress
from policies.measuring.shootout import MAX_FINALISTS, ROUND_BATCHES, ROUNDS
from tests.actors.conftest import Fleet, search_task, trials

DEADLINE_SECS = 120.0


async def run(made: Fleet, trials_: int) -> Progress:
    scheduler = made.start(trials=trials_)
    await ask(scheduler.run.remote(), DEADLINE_SECS, "run")
    return await ask(scheduler.progress.remote(), 60.0, "progress")


def revisions(made: Fleet) -> list[Record]:
    with RecordReader(made.store) as reader:
        return [record for record in reader if record.revision]


async def test_the_best_few_meet_at_the_end_and_only_once(fleet: Callable[..., Fleet]) -> None:
    # Measured with 8 % of noise, many of 60 candidates may be the best.
    first = fleet(run_id="one", noise=0.08)
    progress = await run(first, 60)
    first.stop()
    met = revisions(first)
    assert progress.trials == progress.new_trials == len(trials(first.store)) == 60
    by_task = Counter(record.task_id for record in met)
    assert by_task
    assert all(2 <= count <= MAX_FINALISTS for count in by_task.values())
    for record in met:
        assert record.revision == 1
        assert record.measurement.verified
        assert record.measurement.stopped == "shoot-out"
        assert len(record.measurement.run_secs) == ROUNDS * ROUND_BATCHES
    with RecordReader(first.store) as reader:
        for task in progress.tasks:
            best = reader.best(task.task_id)
            assert best is not None
            assert best.measurement.cost_secs == task.best_secs
    # Nothing is left to try, and what was decided stands.
    second = fleet(run_id="two", noise=0.08)
    assert (await run(second, 60)).new_trials == 0
    second.stop()
    later = [record for record in revisions(second) if record.run_id == "two"]
    # A finalist that fell behind may have made room for another: only such a new meeting is held.
    decided = {record.candidate.id for record in met}
    assert not later or {record.candidate.id for record in later} - decided


async def test_a_run_that_resumes_holds_the_shoot_out_that_the_last_one_did_not_come_to(
    fleet: Callable[..., Fleet],
) -> None:
    # The first one collects, and holds none.
    first = fleet(run_id="one", noise=0.08, rule=StopRule(race_factor=math.inf))
    await run(first, 60)
    first.stop()
    assert revisions(first) == []
    # Its artifacts are gone: the finalists and their oracles are built again.
    second = fleet(run_id="two", noise=0.08)
    assert (await run(second, 60)).new_trials == 0
    assert revisions(second)


async def test_what_a_drifting_device_measured_is_uncertain_and_stays_verified(fleet: Callable[..., Fleet]) -> None:
    # After some batches it slows down, and goes on slowing down, so that this does not become what is usual; its
    # probe runs before nearly every batch.
    drift = Drift(9.0, settles_secs=5.0, begins_secs=0.6)
    made = fleet(tasks=(search_task("large", extent=4096),), drift=drift, check_every_secs=0.01)
    await run(made, 120)
    with RecordReader(made.store) as reader:
        records = list(reader)
        marked = [record for record in records if record.measurement.speed != 1.0]
        assert marked
        for record in marked:
            assert record.measurement.speed < 1 / 1.2
            assert record.measurement.error > 0
        for entry in made.tasks:
            assert reader.best(entry.task.id) is not None
    # What was stored before the check that found it is stored again, marked.
    again = [record for record in marked if record.revision]
    assert again
    trials_by_id = {record.candidate.id: record for record in trials(made.store)}
    for record in again:
        if record.measurement.stopped != "shoot-out":
            assert record.measurement.run_secs == trials_by_id[record.candidate.id].measurement.run_secs
            assert trials_by_id[record.candidate.id].measurement.verified == record.measurement.verified
