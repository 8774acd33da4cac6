"""Records that a run takes from a shared store and adds to it: with the files alone."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.domain import FewerRows, Limits, Outcome, Record, Task
from fleet_tune.base.errors import RecorderLostError
from fleet_tune.base.records.sharing.maintenance import StoreMaintenance
from fleet_tune.base.records.sharing.shared import SharedReader
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import FromStore, TaskProgress
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch, Tile
from fleet_tune.runs.shared_store.efforts import SETTLED, note_efforts, tried_in
from fleet_tune.runs.shared_store.exchange import StoreSubscription, StoreUploader, take, take_speeds
from fleet_tune.runs.shared_store.lookup import look_up
from policies.analysis.cpu.fewer_rows import CONSIDERED
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task

HERE = {"board": Origin('{"kind":"llvm"}', "a processor", 2, {"apache-tvm": "0.27"})}
OTHER = {"board": dataclasses.replace(HERE["board"], versions={"apache-tvm": "0.28"})}
CONV, DENSE = make_task("conv"), make_task("dense")
LIMITS = Limits(time_budget_secs=60.0)


def record(task: Task, decision: int, cost_secs: float | None, run_id: str, revision: int = 0) -> Record:
    measured = failed() if cost_secs is None else ok(cost_secs)
    uid = f"{run_id}-{task.workload.name}-{decision}-{revision}"
    made = make_record(make_candidate(task, decision), measured, uid, device="dev", revision=revision)
    return dataclasses.replace(made, run_id=run_id)


def progress(task: Task, best_secs: float, reason: str = "") -> TaskProgress:
    name = task.workload.name
    return TaskProgress(task.id, name, "board", 1, 1e6, 1, 5, best_secs, bool(reason), "", reason)


def run(
    out: Path,
    shared: Path,
    run_id: str,
    measured: Sequence[Record] = (),
    *,
    origins: dict[str, Origin] = HERE,
    limits: Limits = LIMITS,
    elapsed_secs: float = 60.0,
    reason: str = "",
) -> tuple[FromStore, frozenset[str]]:
    """A run of both tasks that measures these, in its output folder: what it took, and what it need not tune."""
    own = out / "records.db"
    found = look_up(shared, [CONV, DENSE], origins, limits, own)
    with RecordStore(own) as store:
        for task in (CONV, DENSE):
            store.put_task(task)
        store.put_run(run_id, origins)
        take(found, own, store, origins, {"board": ["dev"]})
    with RecordStore(own) as store, RecordReader(own) as reader:
        before = reader.last_seq()
        store.append(measured)
        bests = {record.task_id: record.measurement.cost_secs for record in measured}
    progresses = [
        progress(each, bests.get(each.id, math.inf), SETTLED if each.id in found.settled else reason)
        for each in (CONV, DENSE)
    ]
    note_efforts(own, run_id, limits, progresses, elapsed_secs, len(measured), tried_in(own, before))
    StoreUploader(own, shared).give()
    return found.summary, found.settled


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "team" / "store.db"


def test_the_same_run_again_takes_the_best_and_needs_no_trial(tmp_path: Path, shared: Path) -> None:
    mine = [record(CONV, at, 1e-3 * at, "a") for at in (3, 1, 2)] + [record(DENSE, 1, 5e-4, "a")]
    assert run(tmp_path / "a", shared, "a", mine) == (FromStore(str(shared), 0, 0, 0), frozenset())
    summary, settled = run(tmp_path / "b", shared, "b")
    assert summary == FromStore(str(shared), 4, 2, 2)
    assert settled == {CONV.id, DENSE.id}
    with RecordReader(tmp_path / "b" / "records.db") as reader:
        best = reader.best(CONV.id)
        assert best is not None
        assert (best.candidate.decisions, best.run_id, best.revision) == ((1,), "a", 1)
        assert best.trace == "trace"
        assert reader.counts() == {}, "what others have measured is no trial of this folder"
    with SharedReader(tmp_path / "b" / "records.db") as own:
        assert own.run_origins() == {("a", "board"): HERE["board"], ("b", "board"): HERE["board"]}
        assert {word.run_id for word in own.last_words(CONV.id, own.numbers_of(HERE["board"]), 9)} == {"a"}
    with RecordReader(shared) as reader:
        assert len(list(reader)) == 4, "what was taken is not given back"


def test_of_a_settled_task_over_dynamic_rows_all_records_come_among_which_the_best_is_looked_for(
    tmp_path: Path, shared: Path
) -> None:
    run(tmp_path / "a", shared, "a", [record(CONV, at, 1e-3 + at * 1e-6, "a") for at in range(40)])

    def taken(task: Task) -> int:
        found = look_up(shared, [task, DENSE], HERE, LIMITS, tmp_path / "b" / "records.db")
        assert found.settled == {CONV.id}
        return len(found.records[CONV.id])

    assert taken(dataclasses.replace(CONV, fewer_rows=(FewerRows("[]", 0.5),))) > CONSIDERED > taken(CONV)


def test_a_run_that_asks_for_more_goes_on_from_there(tmp_path: Path, shared: Path) -> None:
    run(tmp_path / "a", shared, "a", [record(CONV, 1, 1e-3, "a"), record(CONV, 2, None, "a")])
    longer = Limits(time_budget_secs=600.0)
    summary, settled = run(tmp_path / "b", shared, "b", [record(CONV, 3, 5e-4, "b")], limits=longer, elapsed_secs=600.0)
    assert (summary.records, summary.known, settled) == (2, 1, frozenset())
    with RecordReader(tmp_path / "b" / "records.db") as reader:
        outcomes = [(each.candidate.decisions, each.measurement.outcome, each.revision) for each in reader]
    assert outcomes == [((1,), Outcome.OK, 1), ((2,), Outcome.BUILD_ERROR, 1), ((3,), Outcome.OK, 0)]
    again, settled = run(tmp_path / "c", shared, "c", limits=longer)
    assert (again.records, settled) == (3, {CONV.id}), "the task without a record is tuned"


def test_a_search_that_came_to_its_end_settles_a_task_for_any_limits(tmp_path: Path, shared: Path) -> None:
    mine = [record(CONV, 1, 1e-3, "a"), record(DENSE, 1, 1e-3, "a")]
    run(tmp_path / "a", shared, "a", mine, elapsed_secs=2.0, reason="converged: 64 trials gained less than 1%")
    assert run(tmp_path / "b", shared, "b", limits=Limits(3600.0, 10_000))[1] == {CONV.id, DENSE.id}


def test_what_the_runs_of_a_folder_spend_adds_up(tmp_path: Path, shared: Path) -> None:
    run(tmp_path / "a", shared, "a", [record(CONV, 1, 1e-3, "a")], elapsed_secs=20.0)
    assert run(tmp_path / "b", shared, "b", elapsed_secs=1.0)[1] == frozenset(), "it was interrupted"
    run(tmp_path / "a", shared, "a2", [record(CONV, 2, 2e-3, "a2")], elapsed_secs=20.0)
    run(tmp_path / "a", shared, "a3", [record(CONV, 3, 3e-3, "a3")], elapsed_secs=20.0)
    assert run(tmp_path / "c", shared, "c")[1] == {CONV.id}


def test_a_task_without_a_trial_in_a_run_had_nothing_spent_on_it(tmp_path: Path, shared: Path) -> None:
    """The devices of a class were gone: the best of it that another run has left settles nothing yet."""
    mine = [record(CONV, 1, 1e-3, "a"), record(DENSE, 1, 1e-3, "a")]
    run(tmp_path / "a", shared, "a", mine, elapsed_secs=1.0)
    run(tmp_path / "b", shared, "b", [record(CONV, 2, 2e-3, "b")])
    assert run(tmp_path / "c", shared, "c")[1] == {CONV.id}


def test_other_versions_settle_nothing(tmp_path: Path, shared: Path) -> None:
    run(tmp_path / "a", shared, "a", [record(CONV, 1, 1e-3, "a")], origins=OTHER)
    summary, settled = run(tmp_path / "b", shared, "b")
    assert (summary.records, summary.known, settled) == (0, 0, frozenset())


STEPS = [
    ["GetSBlock", [], ["conv", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1"]],
    ["SamplePerfectTile", ["l1"], [2, 64], ["v2", "v3"]],
]
TRACE = json.dumps([[*STEPS, ["EnterPostproc", [], [], []]], [[2, [4, 8]]]])


def traced(task: Task, decisions: tuple[int, ...], cost_secs: float, run_id: str) -> Record:
    made = make_record(make_candidate(task, *decisions), ok(cost_secs), f"{run_id}-{decisions}", trace=TRACE)
    return dataclasses.replace(made, run_id=run_id)


def described(task: Task, extent: int) -> SearchTask:
    return SearchTask(task, (Sketch(0, "tiles", json.dumps(STEPS), (Tile(extent, 2, 64),), ()),), SIMULATED_CPU)


def test_what_other_versions_have_found_is_confirmed(tmp_path: Path, shared: Path) -> None:
    mine = [traced(CONV, (at, 32 // at), 1e-3 * at, "a") for at in (1, 2, 4, 8)]
    run(tmp_path / "a", shared, "a", mine, origins=OTHER)
    found = look_up(shared, [CONV, DENSE], HERE, LIMITS, tmp_path / "b" / "records.db")
    assert found.summary == FromStore(str(shared), 0, 0, 0, 1, 0)
    entry = found.seeded(described(CONV, 32))
    assert entry.seeds == ((0, (1, 32)), (0, (2, 16)), (0, (4, 8)))
    assert entry.confirmation_trials == 3
    assert found.seeded(described(DENSE, 32)) == described(DENSE, 32)
    longer = look_up(shared, [CONV, DENSE], HERE, Limits(6000.0), tmp_path / "b" / "records.db")
    assert (longer.summary.confirmed, longer.summary.seeded) == (0, 1)
    assert longer.seeded(described(CONV, 32)).confirmation_trials == 0, (
        "more is asked for: a search that begins with them"
    )
    without_sketch = dataclasses.replace(entry, sketches=(), seeds=(), confirmation_trials=0)
    assert found.seeded(without_sketch) == without_sketch


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"versions": {"apache-tvm": "0.26", "kernels": "this"}}, "TVM 0.26 there and 0.27 here"),
        ({"versions": {"apache-tvm": "0.27", "kernels": "that"}}, "our own code that there and this here"),
        ({"machine": {"driver": "550.1", "microcode": "0x2"}}, "the GPU's driver 550.1 there and 560.2 here"),
        ({"machine": {"driver": "560.2", "microcode": "0x1"}}, "microcode 0x1 there and 0x2 here"),
    ],
    ids=["TVM", "our own code", "driver", "microcode"],
)
def test_after_each_change_the_best_of_a_task_are_confirmed_and_why_is_said(
    tmp_path: Path, shared: Path, before: dict[str, Any], said: str
) -> None:
    versions = {"apache-tvm": "0.27", "kernels": "this"}
    now = Origin('{"kind":"cuda"}', "a processor", 2, versions, {"driver": "560.2", "microcode": "0x2"})
    then = {"board": dataclasses.replace(now, **before)}
    mine = [traced(CONV, (at, 32 // at), 1e-3 * at, "a") for at in (1, 2, 4, 8)]
    run(tmp_path / "a", shared, "a", mine, origins=then)
    found = look_up(shared, [CONV, DENSE], {"board": now}, LIMITS, tmp_path / "b" / "records.db")
    assert (found.settled, found.confirmed) == (frozenset(), {CONV.id})
    entry = found.seeded(described(CONV, 32))
    assert (entry.confirmation_trials, entry.seeds) == (3, ((0, (1, 32)), (0, (2, 16)), (0, (4, 8))))
    with StoreMaintenance(shared) as reader:
        assert [each.reasons for each in reader.why(CONV, versions, {"board": now})] == [(said,)] * 4
    # One of them is right, and that is enough: it counts from now on.
    again = [traced(CONV, (1, 32), 1e-3, "b")]
    run(tmp_path / "b", shared, "b", again, origins={"board": now}, reason="confirmed: what others have found")
    with StoreMaintenance(shared) as reader:
        reasons = reader.why(CONV, versions, {"board": now})
    assert [each.reasons for each in reasons] == [(), (said,), (said,), (said,)]
    assert look_up(shared, [CONV, DENSE], {"board": now}, LIMITS, tmp_path / "c" / "records.db").settled == {CONV.id}


def test_a_search_begins_with_what_similar_workloads_have(tmp_path: Path, shared: Path) -> None:
    near, far = make_task("conv2", flop=2e6), make_task("conv3", flop=9e9)
    own = tmp_path / "a" / "records.db"
    with RecordStore(own) as store:
        for task in (near, far, DENSE):
            store.put_task(task)
        store.put_run("a", OTHER)
        store.append([traced(near, (4, 8), 1e-3, "a"), traced(near, (8, 4), 2e-3, "a")])
        store.append([traced(far, (2, 16), 1e-3, "a"), traced(DENSE, (1, 32), 1e-3, "a")])
    StoreUploader(own, shared).give()
    found = look_up(shared, [CONV], HERE, LIMITS, tmp_path / "b" / "records.db")
    assert found.summary == FromStore(str(shared), 0, 0, 0, 0, 1)
    assert found.similar == {CONV.id: [near.id, far.id]}
    entry = found.seeded(described(CONV, 64))
    assert entry.adapted == ((0, (8, 8)), (0, (16, 4)), (0, (4, 16))), "the nearest first, none of another operator"
    assert (entry.seeds, entry.confirmation_trials) == ((), 0)


def test_a_search_learns_from_more_similar_workloads_than_it_begins_with(tmp_path: Path, shared: Path) -> None:
    others = [make_task(f"conv{at}", flop=1e6 * at) for at in range(2, 30)]
    own = tmp_path / "a" / "records.db"
    with RecordStore(own) as store:
        for task in others:
            store.put_task(task)
        store.put_run("a", OTHER)
        store.append([dataclasses.replace(traced(task, (4, 8), 1e-3, "a"), uid=task.id) for task in others])
    StoreUploader(own, shared).give()
    found = look_up(shared, [CONV], HERE, LIMITS, tmp_path / "b" / "records.db")
    assert found.similar == {CONV.id: [task.id for task in others[:16]]}
    assert len(found.similar_seeds[CONV.id]) == 3


def test_a_folder_with_trials_of_its_own_goes_on_with_them(tmp_path: Path, shared: Path) -> None:
    mine = [record(CONV, 1, 1e-3, "a")]
    run(tmp_path / "a", shared, "a", mine)
    summary, settled = run(tmp_path / "a", shared, "a2")
    assert settled == frozenset()
    with RecordReader(tmp_path / "a" / "records.db") as reader:
        assert [(each.run_id, each.revision) for each in reader] == [("a", 0)], "nothing comes twice"
    assert summary.records == 1


def test_what_was_found_wrong_since_counts_where_it_is_known_already(tmp_path: Path, shared: Path) -> None:
    run(tmp_path / "a", shared, "a", [record(CONV, 1, 1e-3, "a"), record(CONV, 2, 2e-3, "a")])
    run(tmp_path / "b", shared, "b", [record(CONV, 1, 1e-3, "b", revision=4)])
    wrong = dataclasses.replace(record(CONV, 1, None, "c", revision=1), measurement=failed(Outcome.WRONG_OUTPUT))
    run(tmp_path / "c", shared, "c", [wrong])
    for _ in range(2):
        run(tmp_path / "b", shared, "b2")
        with RecordReader(tmp_path / "b" / "records.db") as reader:
            best = reader.best(CONV.id)
            assert best is not None
            assert best.candidate.decisions == (2,)
            withdrawn = [each.revision for each in reader if each.measurement.outcome is Outcome.WRONG_OUTPUT]
            assert withdrawn == [5], "after what was known, and once"


def test_what_a_killed_run_has_left_is_given_by_the_next_one(tmp_path: Path, shared: Path) -> None:
    own = tmp_path / "a" / "records.db"
    with RecordStore(own) as store:
        store.put_task(CONV)
        store.put_run("killed", HERE)
        store.append([record(CONV, 1, 1e-3, "killed")])
    run(tmp_path / "a", shared, "next")
    with RecordReader(shared) as reader:
        assert [each.run_id for each in reader] == ["killed"]


def test_seconds_of_the_store_become_those_of_a_folder_that_counts_them_otherwise(tmp_path: Path, shared: Path) -> None:
    own = tmp_path / "a" / "records.db"
    with RecordStore(own) as store:
        store.probed("dev", "zen5", 0.002)
    run(tmp_path / "a", shared, "a", [record(CONV, 1, 0.010, "a")])
    other = tmp_path / "b" / "records.db"
    with RecordStore(other) as store:
        store.probed("dev", "zen5", 0.004)
    run(tmp_path / "b", shared, "b")
    run(tmp_path / "c", shared, "c")
    with RecordReader(other) as reader:
        best = reader.best(CONV.id)
        assert best is not None
        assert best.measurement.cost_secs == pytest.approx(0.020)
    with RecordReader(tmp_path / "c" / "records.db") as reader:
        best = reader.best(CONV.id)
        assert best is not None
        assert best.measurement.cost_secs == pytest.approx(0.010)
        assert reader.speeds.unit_of("dev") == 0.002, "a new folder counts as the store does"


def test_what_people_see_in_the_store_is_what_the_last_run_has_shown(tmp_path: Path, shared: Path) -> None:
    for name, unit_secs, usual_secs in (("a", 0.002, 0.002), ("b", 0.004, 0.001)):
        own = tmp_path / name / "records.db"
        with RecordStore(own) as store:
            store.unit("dev", unit_secs)
            store.probed("dev", "board", usual_secs)
        run(tmp_path / name, shared, name, [record(CONV, 1 if name == "a" else 2, 0.010, name)])
        with SharedReader(shared) as reader, RecordReader(own) as ours:
            best, mine = reader.best(CONV.id), ours.best(CONV.id)
            assert best is not None
            assert mine is not None
            assert best.candidate.id == mine.candidate.id
            assert reader.shown_secs(best) == pytest.approx(ours.shown_secs(mine))


def test_a_run_that_measures_nothing_is_shown_at_the_speed_of_the_store(tmp_path: Path, shared: Path) -> None:
    own = tmp_path / "a" / "records.db"
    with RecordStore(own) as store:
        store.unit("dev", 0.002)
        assert store.probed("dev", "board", 0.001) == (0.002, 2.0)
    run(tmp_path / "a", shared, "a", [record(CONV, 1, 0.010, "a")])
    run(tmp_path / "b", shared, "b")
    found = look_up(shared, [CONV], HERE, LIMITS, tmp_path / "b" / "records.db")
    with RecordStore(tmp_path / "b" / "records.db") as store:
        for _ in range(2):
            take_speeds(found, store, {"board": ["dev"]})
    with RecordReader(tmp_path / "b" / "records.db") as reader:
        best = reader.best(CONV.id)
        assert best is not None
        assert reader.shown_secs(best) == pytest.approx(best.measurement.rank_secs / 2)


def test_a_giver_in_a_hurry_leaves_what_takes_too_long_to_the_next_run(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "a" / "records.db"
    run(tmp_path / "a", tmp_path / "other.db", "a", [record(CONV, at, 1e-3, "a") for at in range(5)])
    since = SharedReader.since
    monkeypatch.setattr(SharedReader, "since", lambda self, cursor, limit=2: since(self, cursor, min(limit, 2)))
    ticks = itertools.count(step=1.5)  # seconds: two pages of two records
    assert StoreUploader(own, shared, lambda: next(ticks)).give(hurry=True) == 4
    with SharedReader(shared) as reader:
        assert reader.efforts() == [], "what was spent counts once the records are there"
    assert StoreUploader(own, shared, lambda: next(ticks)).give() == 1
    with SharedReader(shared) as reader:
        assert [effort.run_id for effort, _ in reader.efforts()] == ["a"]


def test_a_giver_goes_on_where_it_was(tmp_path: Path, shared: Path) -> None:
    own = tmp_path / "a" / "records.db"
    with RecordStore(own) as store:
        store.put_task(CONV)
        store.put_run("a", HERE)
        giving = StoreUploader(own, shared)
        assert giving.give() == 0
        store.append([record(CONV, 1, 1e-3, "a")])
        assert giving.give() == 1
        store.append([record(CONV, 1, 5e-4, "a", revision=1)])
        assert (giving.give(hurry=True), giving.give()) == (1, 0)


def test_what_others_give_comes_again_where_it_could_not_be_taken(shared: Path, tmp_path: Path) -> None:
    others = StoreSubscription(shared, "ours")
    run(tmp_path / "beside", shared, "beside", [record(CONV, 1, 2.0, "beside")])
    with pytest.raises(RecorderLostError), others.new({CONV.id}, HERE) as found:
        raise RecorderLostError("the process that stores the records is gone", "run again")
    with others.new({CONV.id}, HERE) as found:
        assert len(found.records[CONV.id]) == 1
    with others.new({CONV.id}, HERE) as found:
        assert not found.records


def test_what_others_give_while_a_run_goes_on_is_taken_once_and_is_no_trial(shared: Path, tmp_path: Path) -> None:
    run(tmp_path / "earlier", shared, "earlier", [record(CONV, 1, 4.0, "earlier")])
    own = tmp_path / "ours" / "records.db"
    with RecordStore(own) as store:
        for task in (CONV, DENSE):
            store.put_task(task)
        store.put_run("ours", HERE)
        store.append([record(CONV, 2, 3.0, "ours")])
        others = StoreSubscription(shared, "ours")
        with others.new({CONV.id, DENSE.id}, HERE) as found:
            assert not found.records, "what was there before was looked up at the start"
        StoreUploader(own, shared).give()
        run(tmp_path / "beside", shared, "beside", [record(CONV, 2, 3.5, "beside"), record(CONV, 3, 2.0, "beside")])
        run(tmp_path / "elsewhere", shared, "elsewhere", [record(CONV, 4, 1.0, "elsewhere")], origins=OTHER)
        with others.new({CONV.id}, HERE) as found:
            take(found, own, store, HERE, {"board": ["dev"]})
        with others.new({CONV.id}, HERE) as found:
            assert not found.records
    with RecordReader(own) as reader:
        taken = [each for each in reader if each.run_id == "beside"]
        assert [(each.candidate.decisions[0], each.revision) for each in taken] == [(3, 1)], "2 was tried here too"
        assert reader.best(CONV.id) == taken[0]
        assert tried_in(own) == {CONV.id}
