"""Stores that several runs share: what goes from one to another, and what of it counts for whom."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from fleet_tune.base.domain import Comparison, Outcome, Record
from fleet_tune.base.errors import RecordStoreError, UnreadableRecordError
from fleet_tune.base.records.sharing.shared import (
    STORE_VARIABLE,
    SharedReader,
    check_shared,
    copy_records,
    default_place,
    last_word,
    rescaled,
    shared_store,
)
from fleet_tune.base.records.sharing.store_place import StorePlace
from fleet_tune.base.records.stores.origin import Effort, Origin, decode_origin, encode_origin
from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.records import named_record
from tests.helpers.tasks import make_task

HERE = Origin('{"kind":"llvm"}', "a processor", 2, {"apache-tvm": "0.27", "kernels": "abc"})
ELSEWHERE = dataclasses.replace(HERE, versions={"apache-tvm": "0.28", "kernels": "abc"})
TASK = make_task("w1", "zen5")


def of_run(run_id: str, uid: str, cost_secs: float | None = 1e-3, decision: int = 1, **more: object) -> Record:
    record = named_record(uid, cost_secs, decisions=(decision,), **more)  # type: ignore[arg-type]
    return dataclasses.replace(record, run_id=run_id)


def write_run(path: Path, run_id: str, *records: Record, origin: Origin | None = HERE, unit: float = 0.0) -> None:
    """A run's own store. ``unit``: seconds of its device's probe."""
    with RecordStore(path) as store:
        store.put_task(TASK)
        if origin is not None:
            store.put_run(run_id, {"zen5": origin})
        if unit:
            store.probed("dev", "zen5", unit)
        store.append(records)


def copy(source: Path, target: Path, cursor: int = 0) -> tuple[int, int, int]:
    with SharedReader(source) as reader, shared_store(target) as store:
        copied = copy_records(reader, store, cursor)
    return copied.records, copied.cursor, copied.left_out


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "team" / "store.db"


def test_records_of_runs_meet_in_a_shared_store_once_each(tmp_path: Path, shared: Path) -> None:
    write_run(tmp_path / "a" / "records.db", "a", of_run("a", "1", 3e-3, 1), of_run("a", "2", None, 2))
    write_run(tmp_path / "b" / "records.db", "b", of_run("b", "3", 1e-3, 3))
    assert copy(tmp_path / "a" / "records.db", shared) == (2, 2, 0)
    assert copy(tmp_path / "b" / "records.db", shared) == (1, 1, 0)
    assert copy(tmp_path / "a" / "records.db", shared) == (0, 2, 0)
    assert copy(tmp_path / "a" / "records.db", shared, cursor=2) == (0, 2, 0)
    with SharedReader(shared) as reader:
        assert [(record.uid, record.run_id, record.trace) for record in reader] == [
            ("1", "a", "[]"),
            ("2", "a", "[]"),
            ("3", "b", "[]"),
        ]
        assert [task.id for task in reader.tasks()] == [TASK.id]
        assert reader.run_origins() == {("a", "zen5"): HERE, ("b", "zen5"): HERE}
        words = reader.last_words(TASK.id, reader.numbers_of(HERE), 10)
        assert [(word.uid, word.measurement.outcome) for word in words] == [
            ("3", Outcome.OK),
            ("1", Outcome.OK),
            ("2", Outcome.BUILD_ERROR),
        ]
        assert [word.uid for word in reader.last_words(TASK.id, reader.numbers_of(HERE), 1)] == ["3"]


def test_what_depends_on_other_versions_does_not_count_here(tmp_path: Path, shared: Path) -> None:
    write_run(tmp_path / "a.db", "a", of_run("a", "1", 1e-3, 1), origin=ELSEWHERE)
    write_run(tmp_path / "b.db", "b", of_run("b", "2", 2e-3, 1))
    copy(tmp_path / "a.db", shared)
    copy(tmp_path / "b.db", shared)
    with SharedReader(shared) as reader:
        assert [word.uid for word in reader.last_words(TASK.id, reader.numbers_of(HERE), 9)] == ["2"]
        assert [word.uid for word in reader.last_words(TASK.id, reader.numbers_of(ELSEWHERE), 9)] == ["1"]
        nowhere = dataclasses.replace(HERE, threads=64)
        assert reader.last_words(TASK.id, reader.numbers_of(nowhere), 9) == []
    assert ELSEWHERE.differences(HERE) == ("TVM 0.28 there and 0.27 here",)
    assert HERE.differences(HERE) == ()
    assert len(dataclasses.replace(HERE, target="{}", cpu_model="b", threads=1, versions={}).differences(HERE)) == 5


def test_records_of_runs_that_do_not_say_what_they_depend_on_are_left_out(tmp_path: Path, shared: Path) -> None:
    write_run(tmp_path / "a.db", "a", of_run("a", "1"), origin=None)
    assert copy(tmp_path / "a.db", shared) == (0, 1, 1)


def test_seconds_are_counted_at_one_unit_for_each_class(tmp_path: Path, shared: Path) -> None:
    """A probe of 2 ms at speed 1 in one run and of 4 ms in the other: the same kernel has cost 10 ms and 20 ms."""
    write_run(tmp_path / "a.db", "a", of_run("a", "1", 0.010, 1), unit=0.002)
    sync_team = Comparison("x", 0.022, 0.9, 0.01, 6, True)
    second = of_run("b", "2", 0.020, 2)
    second = dataclasses.replace(second, measurement=dataclasses.replace(second.measurement, comparison=sync_team))
    write_run(tmp_path / "b.db", "b", second, unit=0.004)
    copy(tmp_path / "a.db", shared)
    copy(tmp_path / "b.db", shared)
    with SharedReader(shared) as reader:
        first, second = reader
        assert first.measurement.cost_secs == pytest.approx(0.010)
        assert second.measurement.cost_secs == pytest.approx(0.010)
        assert second.measurement.rank_secs == pytest.approx(0.011 * 0.9)
        assert second.measurement.run_secs == (0.020,), "what was measured stays as it was"
        assert reader.unit_secs("dev", "zen5") == 0.002


def test_the_last_word_of_a_candidate() -> None:
    trial, sync_team = of_run("a", "1", 2e-3), of_run("a", "2", 1e-3, revision=1)
    other, unchecked = of_run("b", "3", 4e-3), of_run("a", "9", 5e-3, revision=2, verified=False)
    wrong = of_run("a", "4", None, outcome=Outcome.WRONG_OUTPUT, revision=2)
    lost = of_run("a", "5", None, outcome=Outcome.DEVICE_LOST)
    assert last_word([trial, sync_team, other]) == sync_team, "no trial undoes a revision"
    assert last_word([trial, sync_team, unchecked]) == sync_team, "what was not compared takes nothing from what was"
    assert last_word([unchecked, sync_team]) == sync_team
    assert last_word([trial, of_run("b", "10", None)]) == trial, "whichever comes first"
    assert last_word([trial, other]) == other, "of two trials the later one"
    assert last_word([trial, wrong, other]) == wrong, "wrong once is wrong"
    wrong_trial = of_run("b", "7", None, outcome=Outcome.WRONG_OUTPUT)
    assert last_word([wrong_trial, trial]) == wrong_trial, "and so is the output of a trial"
    assert last_word([of_run("b", "8", None), trial]) == trial, "a crash may have been of something else"
    assert last_word([lost]) is None
    assert last_word([]) is None
    failure = of_run("a", "6", None)
    assert rescaled(failure, 2.0) == failure


def test_what_was_withdrawn_counts_for_nobody(tmp_path: Path, shared: Path) -> None:
    wrong = of_run("b", "2", None, 1, outcome=Outcome.WRONG_OUTPUT, revision=1)
    write_run(tmp_path / "b.db", "b", wrong)
    write_run(tmp_path / "a.db", "a", of_run("a", "1", 1e-3, 1), of_run("a", "3", 2e-3, 2))
    copy(tmp_path / "b.db", shared)
    copy(tmp_path / "a.db", shared)
    with SharedReader(shared) as reader:
        words = reader.last_words(TASK.id, reader.numbers_of(HERE), 9)
    assert [(word.uid, word.measurement.outcome) for word in words] == [
        ("3", Outcome.OK),
        ("2", Outcome.WRONG_OUTPUT),
    ]


def test_what_is_worth_less_in_the_end_takes_the_place_of_nothing_better(tmp_path: Path) -> None:
    """Candidates 0 to 19 were lucky or wrong: 20 is the best, then 21."""
    lucky = [of_run("a", f"t{at}", 1e-6, at) for at in range(20)]
    sync_team = [of_run("a", f"m{at}", 1.0 + at, at, revision=1) for at in range(10)]
    wrong = [of_run("a", f"w{at}", None, at, outcome=Outcome.RUN_ERROR, revision=1) for at in range(10, 20)]
    good = [of_run("a", f"g{at}", 1e-4 * at, at) for at in (21, 20)]
    never = [of_run("a", f"n{at}", None, at) for at in (30, 31)]
    write_run(tmp_path / "a.db", "a", *never, *lucky, *sync_team, *wrong, *good)
    with SharedReader(tmp_path / "a.db") as reader:
        here = reader.numbers_of(HERE)
        for most in (1, 2, 3, 12):
            expected = ["g20", "g21", *(f"m{at}" for at in range(10))][:most]
            assert [word.uid for word in reader.last_words(TASK.id, here, most)] == expected
        assert len(reader.last_words(TASK.id, here, 13)) == 13
        assert len(reader.last_words(TASK.id, here, 99)) == 24
        assert {word.uid for word in reader.found_wrong(TASK.id, here)} == {f"w{at}" for at in range(10, 20)}
        assert reader.found_wrong(TASK.id, []) == []


def test_the_best_of_a_store_is_that_of_a_folder(tmp_path: Path) -> None:
    """What met others is compared in its first run; older versions wrote revisions that were not, of devices that had
    drifted: these take nothing from what was verified, and give nothing."""
    trials = [of_run("a", f"t{at}", 1e-3 * (1 + at), at) for at in range(40)]
    drifted = [of_run("a", f"d{at}", secs, at, revision=1, verified=False) for at, secs in ((39, 1e-4), (0, 1.0))]
    write_run(tmp_path / "a.db", "a", *trials, *drifted)
    with SharedReader(tmp_path / "a.db") as reader:
        (word,) = reader.last_words(TASK.id, reader.numbers_of(HERE), 1)
        best = reader.best(TASK.id)
        assert best is not None
        assert word.uid == best.uid == "t0"
    write_run(tmp_path / "a.db", "a", of_run("a", "m0", 0.5, 0, revision=2), of_run("a", "m38", 1e-5, 38, revision=1))
    with SharedReader(tmp_path / "a.db") as reader:
        words = reader.last_words(TASK.id, reader.numbers_of(HERE), 40)
        best = reader.best(TASK.id)
        assert best is not None
        assert words[0].uid == best.uid == "m38"
        assert words[-1].uid == "m0"


def test_some_of_the_records_of_a_task_are_spread_over_all_of_them(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "s.db") as store:
        store.put_task(TASK)
        store.append([named_record(f"r{at}", task_id=TASK.id, decisions=(at,)) for at in range(1200)])
    with SharedReader(tmp_path / "s.db") as reader:
        found = [record.candidate.decisions[0] for record in reader.some_of(TASK.id, 600)]
        assert found == list(range(0, 1200, 2))
        assert len(reader.some_of(TASK.id, 1100)) == 1100
        assert [record.candidate.decisions[0] for record in reader.some_of(TASK.id, 4)] == [0, 300, 600, 900]
        assert len(reader.some_of(TASK.id, 5000)) == 1200
        assert reader.some_of("w9@zen5", 5) == []


def test_efforts_go_along_and_the_last_of_a_run_counts(tmp_path: Path, shared: Path) -> None:
    write_run(tmp_path / "a.db", "a", of_run("a", "1"))
    with RecordStore(tmp_path / "a.db") as store:
        store.put_efforts([Effort(TASK.id, "a", 10.0, 5.0)])
    copy(tmp_path / "a.db", shared)
    with RecordStore(tmp_path / "a.db") as store:
        store.put_efforts([Effort(TASK.id, "a", 20.0, math.inf)])
    copy(tmp_path / "a.db", shared, cursor=1)
    with SharedReader(shared) as reader:
        assert reader.efforts() == [(Effort(TASK.id, "a", 20.0, math.inf), HERE)]


def _give(source: Path, target: Path) -> None:
    copy(source, target)


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, shared: Path) -> None:
    sources = []
    for name in "abc":
        sources.append(tmp_path / f"{name}.db")
        records = [of_run(name, f"{name}{at}", 1e-3, at) for at in range(30)]
        write_run(sources[-1], name, *records)
    spawning = multiprocessing.get_context("spawn")
    processes = [spawning.Process(target=_give, args=(source, shared)) for source in sources]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    with SharedReader(shared) as reader:
        records = list(reader)
        assert len(records) == 90
        assert [record.seq for record in records] == list(range(1, 91))
        assert len(reader.last_words(TASK.id, reader.numbers_of(HERE), 100)) == 30


def test_a_store_that_is_locked_for_too_long_is_one_line_with_a_next_step(tmp_path: Path, shared: Path) -> None:
    write_run(tmp_path / "a.db", "a", of_run("a", "1"))
    copy(tmp_path / "a.db", shared)
    blocking = sqlite3.connect(shared, isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(RecordStoreError, match="locked") as caught, shared_store(shared, busy_secs=0.05) as store:
            store.put_task(TASK)
        assert "--no-store" in caught.value.next_step
    finally:
        blocking.close()


def test_what_is_no_store_is_told_with_the_option(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("something else that is no database at all" * 10)
    for path in (text, tmp_path):
        with pytest.raises(RecordStoreError) as caught:
            check_shared(path)
        assert "--store" in caught.value.next_step
    check_shared(tmp_path / "new" / "store.db")
    assert not (tmp_path / "new").exists(), "to look makes nothing"


def test_the_default_store_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_place() == StorePlace(tmp_path / "fleet-tune" / "store.db")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_place() == StorePlace(tmp_path / ".local" / "share" / "fleet-tune" / "store.db")
    monkeypatch.setenv(STORE_VARIABLE, "")
    assert default_place() is None
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "other.db"))
    assert default_place() == StorePlace(tmp_path / "other.db")


def test_what_a_machine_is_made_of_is_part_of_an_origin() -> None:
    known = dataclasses.replace(HERE, machine={"driver": "550.1", "microcode": "0x1"})
    updated = dataclasses.replace(HERE, machine={"driver": "560.2", "microcode": "0x1"})
    assert known.differences(updated) == ("the GPU's driver 550.1 there and 560.2 here",)
    assert known != updated
    assert decode_origin(encode_origin(known)) == known
    assert "machine" not in encode_origin(HERE), "as stores have it in which it is not known"


def test_an_origin_survives_and_a_damaged_one_is_told() -> None:
    assert decode_origin(encode_origin(HERE)) == HERE
    for body in ("", "[]", "{}", '{"target": 1, "cpu_model": "", "threads": 1, "versions": {}}', "null", "[" * 10_000):
        with pytest.raises(UnreadableRecordError):
            decode_origin(body)


def test_a_damaged_origin_takes_its_records_from_others_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "a.db", "a", of_run("a", "1"))
    write_run(tmp_path / "a.db", "b", of_run("b", "2", 1e-3, 2), origin=ELSEWHERE)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE origins SET body = 'x' WHERE id = 1")
    with SharedReader(tmp_path / "a.db") as reader:
        assert reader.run_origins() == {("b", "zen5"): ELSEWHERE}
        assert [record.uid for record in reader] == ["1", "2"]
