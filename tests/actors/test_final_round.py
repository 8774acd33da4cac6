"""What is measured again: shoot-outs at the end of a run, stored and not repeated by a run that resumes; records of a
device whose speed changes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from actors.clients.calls import ask
from devices.simulated.simulated import Landscape, SpeedSteps
from fleet_tune.base.domain import Outcome, Record, StopRule
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Progress
from policies.measuring.duel import LEAST_PAIRS
from policies.measuring.shootout import MAX_FINALISTS
from tests.actors.conftest import Fleet, search_task, trials

DEADLINE_SECS = 120.0
FLAT = Landscape(steepness=0.02)  # with 8 % of noise many of 60 candidates may be the best


async def run(made: Fleet, trials_: int) -> Progress:
    scheduler = made.start(trials=trials_)
    await ask(scheduler.run.remote(), DEADLINE_SECS, "run")
    return await ask(scheduler.progress.remote(), 60.0, "progress")


def revisions(made: Fleet) -> list[Record]:
    with RecordReader(made.store) as reader:
        return [record for record in reader if record.revision]


async def test_the_best_few_meet_at_the_end_and_only_once(fleet: Callable[..., Fleet]) -> None:
    first = fleet(run_id="one", noise=0.08, landscape=FLAT)
    progress = await run(first, 60)
    first.stop()
    met = revisions(first)
    assert progress.trials == progress.new_trials == len(trials(first.store)) == 60
    by_task = Counter(record.task_id for record in met)
    assert by_task
    assert all(1 <= count < MAX_FINALISTS for count in by_task.values())  # the incumbent stays as it is
    for record in met:
        assert record.revision == 1
        assert record.measurement.verified
        assert record.measurement.stopped == "duel"
        assert record.measurement.comparison is not None
        assert record.measurement.comparison.runs == len(record.measurement.run_secs) >= 2 * LEAST_PAIRS
    with RecordReader(first.store) as reader:
        for task in progress.tasks:
            best = reader.best(task.task_id)
            assert best is not None
            assert reader.shown_secs(best) == task.best_secs
    # Nothing is left to try, and what was decided stands.
    second = fleet(run_id="two", noise=0.08, landscape=FLAT)
    assert (await run(second, 60)).new_trials == 0
    second.stop()
    # A finalist that fell behind may have made room for another: only such a new meeting is held.
    decided = who_met(met)
    later = [record for record in revisions(second) if record.run_id == "two"]
    for task_id in {record.task_id for record in later}:
        assert who_met(record for record in later if record.task_id == task_id) - decided


def who_met(records: Iterable[Record]) -> set[str]:
    """The candidates of these duels, those that kept their place included: they have no record of it."""
    duels = [(record.candidate.id, record.measurement.comparison) for record in records]
    return {name for name, _ in duels} | {duel.against for _, duel in duels if duel is not None}


async def test_a_run_that_resumes_holds_the_shoot_out_that_the_last_one_did_not_come_to(
    fleet: Callable[..., Fleet],
) -> None:
    # The first one collects, and holds none.
    first = fleet(run_id="one", noise=0.08, landscape=FLAT, rule=StopRule(race_factor=math.inf))
    await run(first, 60)
    first.stop()
    assert revisions(first) == []
    # Its artifacts are gone: the finalists and their oracles are built again.
    second = fleet(run_id="two", noise=0.08, landscape=FLAT)
    assert (await run(second, 60)).new_trials == 0
    assert revisions(second)


@pytest.mark.parametrize(
    "speeds",
    [
        SpeedSteps(((0.4, 0.5),)),  # twice as fast after its first window
        SpeedSteps(((0.4, 2.0),)),
        SpeedSteps(((0.0, 1.0), (1.0, 1.4)), period_secs=2.0),  # now this, now that
    ],
)
async def test_a_device_that_changes_its_speed_loses_nothing(fleet: Callable[..., Fleet], speeds: SpeedSteps) -> None:
    made = fleet(tasks=(search_task("large", extent=4096),), drift=speeds, noise=0.01)
    progress = await run(made, 120)
    landscape = Landscape()
    with RecordReader(made.store) as reader:
        records = list(reader)
        best = reader.best(made.tasks[0].task.id)
        assert best is not None
        assert reader.shown_secs(best) == progress.tasks[0].best_secs
    assert all(record.measurement.outcome is Outcome.OK for record in records)
    # Nothing is withdrawn: revisions are what the final round found.
    assert {record.measurement.stopped for record in records if record.revision} <= {"duel"}
    assert {record.measurement.speed for record in records} != {1.0}
    # Whenever they were measured, costs can be compared; where they cannot, they say so.
    ratios = {record.uid: record.measurement.cost_secs / landscape.run_secs(record.candidate) for record in records}
    middle = statistics.median(ratios.values())
    for record in records:
        if record.measurement.stopped == "duel":
            continue  # pairs need no speed
        distance = abs(math.log(ratios[record.uid] / middle))
        assert distance < 0.05 + 2 * record.measurement.error
    certain = [record for record in records if record.measurement.error < 0.2]
    assert len(certain) > 0.9 * len(records)
