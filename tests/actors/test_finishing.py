"""When a task is finished, when a run must end, and what becomes of candidates that are lost on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from actors.clients.calls import ask
from actors.clients.recorder import RecorderClient
from actors.processes.recorder import make_record
from actors.processes.searcher import Searcher
from devices.simulated.simulated import Faults
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.errors import DevicesLostError
from fleet_tune.base.records.stores.codec import encode_record
from fleet_tune.base.records.stores.pages import pack_page
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch
from policies.measuring.ranking import Ranking
from policies.search.bandits import CONVERGENCE_TRIALS, has_converged
from policies.search.methods import method_named
from policies.search.search import Proposal, TaskSearch
from tests.actors.conftest import Fleet, search_task
from tests.actors.scheduling.test_scheduler import DEADLINE_SECS, run


async def test_a_task_without_decisions_is_measured_once(fleet: Callable[..., Fleet]) -> None:
    entry = search_task("fixed")
    fixed = dataclasses.replace(entry, sketches=(Sketch(0, "loops", "nothing is open", (), (), "a toy"),))
    made = fleet(tasks=(fixed, search_task("small", extent=4)))
    progress = await run(made.start(time_budget_secs=DEADLINE_SECS))
    assert {task.name: task.trials for task in progress.tasks} == {"fixed": 1, "small": 18}
    reasons = {task.name: task.finish_reason for task in progress.tasks}
    assert reasons["fixed"] == "exhausted: all its candidates are measured (1)"
    assert reasons["small"] == "exhausted: all its candidates are measured (18)"
    assert progress.elapsed_secs < DEADLINE_SECS / 2


async def test_a_converged_task_gets_no_more_trials(fleet: Callable[..., Fleet]) -> None:
    made = fleet(tasks=(search_task("a", extent=4096),), method="fleet")
    progress = await run(made.start(trials=2000))
    [task] = progress.tasks
    assert task.finish_reason.startswith("converged")
    ranking, bests = Ranking(), list[float]()
    with RecordReader(made.store) as reader:
        for record in reader:
            ranking.add(record)
            if record.revision == 0:
                bests.append(ranking.best_secs)
    assert CONVERGENCE_TRIALS < len(bests) < 2000
    converged = [count for count in range(1, len(bests) + 1) if has_converged(bests[:count], 0.0)]
    # Those that were under way then came later, and one of them may have been better.
    assert converged
    assert len(bests) - converged[-1] < 100


@pytest.mark.parametrize("time_budget_secs", [None, 1000.0])
async def test_a_run_whose_device_never_answers_again_says_so_and_ends_with_an_error(
    fleet: Callable[..., Fleet], time_budget_secs: float | None
) -> None:
    # Runs of an incumbent beside its challengers count too: a record may take a dozen.
    made = fleet(device_faults=(Faults(lost_after=100),), device_patience_secs=0.1)
    scheduler = made.start(trials=200, time_budget_secs=time_budget_secs)
    with pytest.raises(DevicesLostError, match=r"no device of class simulated has answered.*resumes"):
        await ask(scheduler.run.remote(), DEADLINE_SECS, "run")
    assert len(list(RecordReader(made.store))) >= 5
    progress = await ask(scheduler.progress.remote(), 60.0, "progress")
    assert progress.devices == {"device-0": "lost"}
    [told] = [each.text for each in progress.notices if "no device of class" in each.text]
    assert "device-0 is lost); the run ends in 0 s unless one comes back" in told


async def test_a_time_budget_that_ends_before_the_patience_ends_such_a_run_in_good_order(
    fleet: Callable[..., Fleet],
) -> None:
    made = fleet(device_faults=(Faults(lost_after=5),))
    progress = await run(made.start(trials=60, time_budget_secs=4.0))
    assert progress.phase == "finished"
    assert progress.devices == {"device-0": "lost"}


class _Recorder:
    """Stands in for the recorder's actor: holds records and answers ``follow`` as it does."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._more = asyncio.Event()
        self.follow = self

    def append(self, record: Record) -> None:
        self._records.append(dataclasses.replace(record, seq=len(self._records) + 1))
        self._more.set()

    async def remote(self, cursor: int, wait_secs: float, traces: bool) -> list[bytes]:
        assert not traces
        if cursor == len(self._records) and wait_secs > 0:
            self._more.clear()
            await self._more.wait()
        return [pack_page([(record.seq, encode_record(record)) for record in self._records[cursor:]])]


SMALL = search_task("small", extent=4)  # 18 candidates


class _Given:
    """Stands in for a shared value: hands out the very object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value


class _Known:
    """A roster of tasks that are described."""

    def __init__(self, *entries: SearchTask) -> None:
        self._entries = {entry.task.id: entry for entry in entries}

    def find(self, task_id: str) -> SearchTask | None:
        return self._entries.get(task_id)


def searcher_of(recorder: Any, entry: SearchTask = SMALL, method: str = "random") -> Searcher:
    given: Any = _Given(RecorderClient(recorder))
    roster: Any = _Known(entry)
    return Searcher(roster, method_named(method), 0, given, None, None)


async def test_candidates_of_an_offer_that_was_lost_are_offered_again() -> None:
    searcher, task_id = searcher_of(_Recorder()), SMALL.task.id
    first = await searcher.propose(task_id, 10, 0)
    assert (first.number, len(first.candidates), first.exhausted) == (1, 10, False)
    second = await searcher.propose(task_id, 18, 1)
    assert (second.number, len(second.candidates), second.exhausted) == (2, 8, True)
    # The second one never arrived.
    third = await searcher.propose(task_id, 18, 1)
    assert third.number == 3
    assert {each.id for each in third.candidates} == {each.id for each in second.candidates}
    # This one did: nothing is left.
    fourth = await searcher.propose(task_id, 18, 3)
    assert (fourth.candidates, fourth.exhausted) == ((), True)


async def test_a_batch_is_planned_at_once_and_handed_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    class Counting(TaskSearch):
        def propose(self, count: int) -> list[Proposal]:
            planned.append(count)
            return super().propose(count)

    monkeypatch.setattr("actors.processes.searcher.TaskSearch", Counting)
    entry, seen = search_task("large", extent=4096), set[str]()
    searcher = searcher_of(_Recorder(), entry, "ansor")
    for number in range(9):
        # A round of Ansor is 64 candidates.
        offer = await searcher.propose(entry.task.id, 8, number)
        seen |= {each.id for each in offer.candidates}
        assert planned == [64] * (1 + number // 8)
    assert len(seen) == 72


async def test_a_searcher_that_was_restarted_goes_on_counting() -> None:
    assert (await searcher_of(_Recorder()).propose(SMALL.task.id, 3, 41)).number == 42


async def test_a_recorded_loss_of_the_device_frees_the_candidate() -> None:
    recorder = _Recorder()
    searcher = searcher_of(recorder)
    offer = await searcher.propose(SMALL.task.id, 18, 0)
    assert offer.exhausted
    lost = offer.candidates[7]
    recorder.append(make_record(lost, "", Measurement(Outcome.DEVICE_LOST, detail="unplugged"), "run", "device"))
    deadline = time.monotonic() + 60.0
    again: tuple[Candidate, ...] = ()
    while not again and time.monotonic() < deadline:
        offer = await searcher.propose(SMALL.task.id, 18, offer.number)
        again = offer.candidates
    assert [each.id for each in again] == [lost.id]
