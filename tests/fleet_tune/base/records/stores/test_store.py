from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.device_state import Admin, Connectivity, DeviceState, Health, Lease
from fleet_tune.base.domain import DeviceClass, Outcome, Record, Task, Workload
from fleet_tune.base.errors import DiskFullError, OutputFolderError, RecordStoreError
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.stores.classes import classes_in
from fleet_tune.base.records.stores.database import SCHEMA_VERSION
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.properties import examples
from tests.helpers.records import device_event, make_record, named_record, ok
from tests.helpers.tasks import make_candidate

ZEN5 = DeviceClass("zen5", '{"kind":"llvm"}')


def test_appended_records_are_read_back_in_order_from_a_cursor(store: RecordStore, path: Path) -> None:
    seqs = store.append([named_record(f"u{i}", i + 1.0) for i in range(5)])
    assert seqs == sorted(seqs)
    with RecordReader(path) as reader:
        assert [record.uid for record in reader] == ["u0", "u1", "u2", "u3", "u4"]
        assert [record.seq for record in reader] == seqs
        page = reader.since(seqs[1], limit=2)
        assert [record.uid for record in page] == ["u2", "u3"]
        assert page[0].measurement == ok(3.0)
        assert reader.since(seqs[-1]) == []


def test_a_reader_sees_what_is_appended_after_it_was_opened(store: RecordStore, path: Path) -> None:
    with RecordReader(path) as reader:
        assert list(reader) == []
        assert reader.last_seq() == 0
        seqs = store.append([named_record("u")])
        assert [record.uid for record in reader] == ["u"]
        assert reader.last_seq() == seqs[0]


def test_iteration_goes_over_more_records_than_one_page(store: RecordStore, path: Path) -> None:
    store.append([named_record(f"u{i}") for i in range(2001)])
    with RecordReader(path) as reader:
        assert sum(1 for _ in reader) == 2001


def test_appending_a_uid_again_returns_its_seq_and_changes_nothing(store: RecordStore, path: Path) -> None:
    first = store.append([named_record("a", 1.0), named_record("b", 2.0)])
    again = store.append([named_record("c", 3.0), named_record("a", 9.0), named_record("c", 9.0)])
    assert again[1] == first[0]
    assert again[0] == again[2] > first[1]
    with RecordReader(path) as reader:
        assert [(r.uid, r.measurement.cost_secs) for r in reader] == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_the_best_is_the_fastest_that_ran_and_was_verified(store: RecordStore, path: Path) -> None:
    with RecordReader(path) as reader:
        assert reader.best("w1@zen5") is None
        store.append(
            [
                named_record("slow", 5.0),
                named_record("unverified", 1.0, verified=False),
                named_record("failed", None),
                named_record("best", 2.0),
                named_record("equal", 2.0),
                named_record("other class", 0.5, task_id="w1@orin"),
                named_record("other workload", 0.5, task_id="w2@zen5"),
            ]
        )
        best = reader.best("w1@zen5")
        assert best is not None
        assert best.uid == "best"


def test_the_next_best_is_the_best_but_some_candidates(store: RecordStore, path: Path) -> None:
    records = [named_record(f"{at}", float(at), decisions=(at,)) for at in (3, 1, 2)]
    store.append([*records, named_record("other", 1.0, task_id="w2@zen5")])
    by_cost = sorted(records, key=lambda record: record.measurement.cost_secs)
    with RecordReader(path) as reader:
        for left_out, best in enumerate(by_cost):
            but = {record.candidate.id for record in by_cost[:left_out]}
            assert reader.best("w1@zen5", but).uid == best.uid  # type: ignore[union-attr]
        assert reader.best("w1@zen5", {record.candidate.id for record in records}) is None
        assert [record.uid for record in reader.records_of("w1@zen5")] == ["3", "1", "2"]


def test_the_best_few_are_the_next_best_one_after_the_other(store: RecordStore, path: Path) -> None:
    store.append([named_record(f"{at}", 1.0 + at, decisions=(2 * at // 3,)) for at in range(15)])  # 0, 0, 1, 2, 2, 3
    store.append([named_record(f"{at} again", 99.0, decisions=(at,), revision=1) for at in (5, 6)])
    store.append([named_record("wrong", None, decisions=(7,), revision=1), named_record("2 too", 0.5, decisions=(2,))])
    with RecordReader(path) as reader:
        one_by_one: list[Record] = []
        while (best := reader.best("w1@zen5", {each.candidate.id for each in one_by_one})) is not None:
            one_by_one.append(best)
        assert [each.candidate.decisions for each in one_by_one] == [(at,) for at in (2, 0, 1, 3, 4, 8, 9, 5, 6)]
        for most in range(12):
            assert reader.bests("w1@zen5", most) == one_by_one[:most]
        assert reader.bests("w1@zen5", 3, {one_by_one[1].candidate.id}) == [one_by_one[0], *one_by_one[2:4]]


def test_of_a_candidate_with_revisions_the_last_one_counts(store: RecordStore, path: Path) -> None:
    store.append([named_record("a", 1.0), named_record("b", 1.1, decisions=(2,))])
    with RecordReader(path) as reader:

        def best() -> str | None:
            found = reader.best("w1@zen5")
            return None if found is None else found.uid

        assert best() == "a"
        store.append([named_record("a-1", 1.2, revision=1)])
        assert best() == "b"
        # As older versions marked what a device had measured that had drifted.
        store.append([named_record("b-1", 1.1, decisions=(2,), revision=1, verified=False)])
        assert best() == "b"
        store.append([named_record("a-2", 3.0, revision=2), named_record("b-2", 2.0, decisions=(2,), revision=2)])
        assert best() == "b-2"
        assert reader.counts() == {Outcome.OK: 2}
        assert reader.counts("w1@zen5") == {Outcome.OK: 2}
        assert [record.revision for record in reader] == [0, 0, 1, 1, 2, 2]


def test_of_an_uncertain_cost_its_error_is_added_and_no_error_leaves_a_task_without_a_best(
    store: RecordStore, path: Path
) -> None:
    uncertain = replace(ok(0.98, 0.98, 0.98), speed_error=0.1)
    store.append([make_record(make_candidate("w1@zen5", 1), uncertain, "a")])
    with RecordReader(path) as reader:

        def best() -> str | None:
            found = reader.best("w1@zen5")
            return None if found is None else found.uid

        assert best() == "a"
        store.append([make_record(make_candidate("w1@zen5", 2), ok(1.0, 1.0, 1.0), "b")])
        assert best() == "b"


def test_counts_by_outcome_of_all_and_of_one_task(store: RecordStore, path: Path) -> None:
    store.append([named_record("a"), named_record("b", task_id="w2@zen5"), named_record("c", None)])
    with RecordReader(path) as reader:
        assert reader.counts() == {Outcome.OK: 2, Outcome.BUILD_ERROR: 1}
        assert reader.counts("w2@zen5") == {Outcome.OK: 1}


def test_the_unit_of_a_device_and_the_speed_of_what_is_shown_are_given_once(store: RecordStore, path: Path) -> None:
    store.unit("a", 2e-3)  # of a shared store
    with RecordReader(path) as reader:
        assert reader.speeds.shown() == {}
        assert store.probed("a", "zen5", 5e-4) == (2e-3, 4.0)
        # Another device of the class counts alike, whatever its speed; a later run in which the first one is slower.
        assert store.probed("b", "zen5", 1e-3) == (2e-3, 4.0)
        assert store.probed("c", "orin", 1e-3) == (1e-3, 1.0)
        assert store.probed("a", "zen5", 8e-4) == (2e-3, 4.0)
        assert reader.speeds.shown() == {"zen5": 4.0, "orin": 1.0}
        store.show_at("zen5", 2.0)  # of a shared store: the last run's
        store.bind({"probe 3 shown: damaged": "nonsense", "probe 3 shown: none": "0"})
        assert reader.speeds.shown() == {"zen5": 2.0, "orin": 1.0}


def test_what_calls_take_is_known_from_the_most_kernels(store: RecordStore, path: Path) -> None:
    with RecordReader(path) as reader:
        assert reader.speeds.timed_calls() == {}
        store.calls_timed("zen5", CallSecs(4e-6, 2))
        store.calls_timed("zen5", CallSecs(2e-6, 8))
        store.calls_timed("zen5", CallSecs(9e-6, 4))  # another device of the class
        store.calls_timed("zen5", CallSecs(3e-6, 8))  # the least of as many
        store.calls_timed("orin", CallSecs(0.0, 1))
        store.bind({"probe 3 calls: damaged": "nonsense"})
        assert reader.speeds.timed_calls() == {"zen5": CallSecs(2e-6, 8), "orin": CallSecs(0.0, 1)}
        store.show_at("zen5", 4.0)
        assert reader.speeds.call_secs() == {"zen5": 0.5e-6, "orin": 0.0}


def test_the_seconds_that_people_see_are_those_that_decide(store: RecordStore, path: Path) -> None:
    store.probed("dev", "zen5", 1e-3)
    store.show_at("zen5", 4.0)
    seq = store.append([named_record("u", 2e-3)])
    with RecordReader(path) as reader:
        [stored] = reader.since(seq[0] - 1)
        assert reader.shown_secs(stored) == stored.measurement.rank_secs / 4


def test_tasks_come_back_in_the_order_stored_with_their_latest_weight(store: RecordStore, path: Path) -> None:
    convolution, dense = Workload("h2", "conv", 2e9, "{}"), Workload("h1", "dense", 1e6, '{"module": "…"}')
    orin = DeviceClass("orin", '{"kind":"cuda"}')
    for task in [Task(convolution, ZEN5, 4), Task(dense, ZEN5), Task(convolution, orin), Task(convolution, ZEN5, 6)]:
        store.put_task(task)
    with RecordReader(path) as reader:
        assert reader.tasks() == [Task(convolution, ZEN5, 6), Task(dense, ZEN5), Task(convolution, orin)]
        assert reader.workloads() == [convolution, dense]


def test_a_store_is_bound_to_one_precision(path: Path) -> None:
    with RecordStore(path) as store:
        store.bind({"network": "f1", "model": "resnet18"})
        with pytest.raises(
            OutputFolderError, match="its run was without --precision, and this one is with --precision bf16"
        ):
            store.bind({"network": "f1-bf16", "model": "resnet18", "precision": "bf16"})


def test_a_store_is_bound_to_one_typical_extent(path: Path) -> None:
    with RecordStore(path) as store:
        store.bind({"network": "f1", "model": "bert", "shapes": "n=1..8, typically 4"})
        told = "its run was for n=1..8, typically 4, and this one is for n=1..8, typically 2 .by --shapes and"
        with pytest.raises(OutputFolderError, match=told):
            store.bind({"network": "f2", "model": "bert", "shapes": "n=1..8, typically 2"})
        with pytest.raises(OutputFolderError, match="typically 4, and this one is for fixed shapes"):
            store.bind({"network": "f3", "model": "bert"})


def test_a_store_is_bound_to_one_network(path: Path) -> None:
    with RecordStore(path) as store:
        store.bind({"network": "f1", "model": "resnet18"})
    with RecordStore(path) as store:
        store.bind({"network": "f1", "model": "resnet18", "targets": "llvm"})
        with pytest.raises(OutputFolderError) as caught:
            store.bind({"network": "f2", "model": "resnet18", "extra": "x"})
        assert "belongs to another run: its network is called 'resnet18' too, but has other" in caught.value.problem
        assert "--out" in caught.value.next_step
        with pytest.raises(OutputFolderError, match="it is of the network 'resnet18', and not of 'vgg'"):
            store.bind({"network": "f2", "model": "vgg"})
        with pytest.raises(OutputFolderError, match="targets is 'llvm' there and 'cuda' here"):
            store.bind({"network": "f1", "targets": "cuda"})
    with RecordReader(path) as reader:
        meta = reader.meta()
    assert meta["schema_version"] == str(SCHEMA_VERSION)
    assert float(meta["created_unix_secs"]) > 0
    assert {key: meta.get(key) for key in ("network", "model", "targets", "extra")} == {
        "network": "f1",
        "model": "resnet18",
        "targets": "llvm",
        "extra": None,
    }


def encoded(name: str, target: str = "{}", **said: object) -> dict[str, object]:
    """What a device of a class says of itself."""
    return {"type": "Fingerprint", "device_class": {"type": "DeviceClass", "name": name, "target": target}, **said}


def test_device_classes_come_to_those_that_a_store_knows(path: Path) -> None:
    with RecordStore(path) as store:
        store.bind({"network": "f1"})
        store.put_classes([encoded("zen"), encoded("orin", threads=6)])
        store.put_classes([encoded("orin", threads=8), encoded("nano")])
        with pytest.raises(OutputFolderError, match=r"class zen has another target: \{\} there and \{1\} here"):
            store.put_classes([encoded("new"), encoded("zen", "{1}")])
        store.put_classes([encoded("arm", '{"kind":"llvm","mcpu":"cortex-a78","num-cores":6}')])
        told = 'arm has another target: mcpu is "cortex-a78" there and not given here, num-cores is 6 there and 8 here'
        with pytest.raises(OutputFolderError, match=told):
            store.put_classes([encoded("arm", '{"kind":"llvm","num-cores":8}')])
    with RecordReader(path) as reader:
        meta = reader.meta()
    assert classes_in(meta) == ("arm", "nano", "orin", "zen")
    assert json.loads(meta["fingerprints"])[:-1] == [encoded("zen"), encoded("orin", threads=8), encoded("nano")]


@pytest.mark.parametrize("written", ["no JSON", "[1, {}]", "{}", "null"])
def test_what_an_early_version_wrote_of_devices_is_no_class(path: Path, written: str) -> None:
    with RecordStore(path) as store:
        store.bind({"targets": written, "fingerprints": written})
        store.put_classes([encoded("zen")])
    with RecordReader(path) as reader:
        assert classes_in(reader.meta()) == ("zen",)
        assert json.loads(reader.meta()["fingerprints"]) == [encoded("zen")]


@examples(20)
@given(st.lists(st.lists(st.integers(0, 20), max_size=6), max_size=6))
def test_any_sequence_of_appends_keeps_each_uid_once_in_first_come_order(batches: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with RecordStore(Path(folder) / "records.db") as store:
            seqs = [store.append([named_record(f"u{i}") for i in batch]) for batch in batches]
        with RecordReader(Path(folder) / "records.db") as reader:
            stored = {record.uid: record.seq for record in reader}
    assert list(stored) == list(dict.fromkeys(f"u{i}" for batch in batches for i in batch))
    assert seqs == [[stored[f"u{i}"] for i in batch] for batch in batches]


def test_threads_may_append_and_read_at_once(store: RecordStore, path: Path) -> None:
    def write(name: str) -> None:
        for i in range(20):
            store.append([named_record(f"{name}{i}")])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    with RecordReader(path) as reader:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            uids = [record.uid for record in reader]
            assert len(uids) == len(set(uids))
        for thread in threads:
            thread.join()
        assert reader.counts() == {Outcome.OK: 80}


WRITER = """
import sys
from pathlib import Path
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.records.stores.store import RecordStore

with RecordStore(Path(sys.argv[1])) as store:
    for i in range(1_000_000):
        batch = [
            Record(f"{i}.{k}", "run", Candidate("w@d", 0, "s", (i, k)), "t" * 2000,
                   Measurement(Outcome.OK, (1.0,)), "dev", 1.0)
            for k in range(4)
        ]
        seqs = store.append(batch)
        print(*(f"{record.uid}={seq}" for record, seq in zip(batch, seqs)), flush=True)
"""


@pytest.mark.parametrize("batches", [1, 37, 150])
def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(path: Path, batches: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(batches)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()  # acknowledged between our last read and its death
    acknowledged = dict(item.split("=") for line in lines if line.endswith("\n") for item in line.split())
    assert len(acknowledged) >= 4 * batches
    with RecordStore(path) as store:  # the dead writer's lock does not stand in the way
        assert store.append([named_record("after")])
    with RecordReader(path) as reader:
        stored = {record.uid: str(record.seq) for record in reader}
    assert acknowledged.items() <= stored.items()
    assert (len(stored) - 1) % 4 == 0, "a batch is stored as a whole or not at all"
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_second_writer_is_refused_with_the_process_that_writes(store: RecordStore, path: Path) -> None:
    with pytest.raises(RecordStoreError) as caught:
        RecordStore(path)
    assert f"another run (process {os.getpid()}) is writing" in caught.value.problem
    store.close()
    store.close()
    RecordStore(path).close()


def test_a_closed_store_is_one_file_also_while_others_read_it(store: RecordStore, path: Path, tmp_path: Path) -> None:
    with RecordReader(path) as reader:
        store.append([named_record("u0"), named_record("u1")])
        assert len(list(reader)) == 2
        store.close()
        copied = tmp_path / "copy.db"
        shutil.copyfile(path, copied)
    with RecordReader(copied) as alone:
        assert len(list(alone)) == 2


LIMITED_WRITER = """
import resource, sys
from pathlib import Path
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.errors import DiskFullError
from fleet_tune.base.records.stores.store import RecordStore

store = RecordStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
i = 0
try:
    while True:
        record = Record(f"u{i}", "run", Candidate("w@d", 0, "s", (i,)), "t" * 5000,
                        Measurement(Outcome.OK, (1.0,)), "dev", 1.0)
        store.append([record])
        i += 1
except DiskFullError as error:
    print(error.problem, file=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.append([record])  # with space again, the same store goes on
print(i)
"""


def test_a_file_that_may_not_grow_is_a_full_disk_and_keeps_what_was_acknowledged(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED_WRITER, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    acknowledged = int(done.stdout)
    assert acknowledged > 0
    assert done.stderr.startswith(f"no space left to write {path}")
    with RecordReader(path) as reader:
        assert [record.uid for record in reader] == [f"u{i}" for i in range(acknowledged + 1)]


def test_a_full_database_undoes_the_whole_batch(store: RecordStore, path: Path) -> None:
    store.append([named_record("before")])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count={pages + 4}")
    with pytest.raises(DiskFullError) as caught:
        store.append([named_record(f"u{i}", trace=random.Random(i).randbytes(3000).hex()) for i in range(20)])
    assert "free some space" in caught.value.next_step
    with RecordReader(path) as reader:
        assert [record.uid for record in reader] == ["before"]
    store._connection.execute("PRAGMA max_page_count=1000000")
    assert store.append([named_record(f"u{i}") for i in range(20)])


def test_no_space_for_the_first_file_is_a_full_disk(path: Path) -> None:
    path.parent.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(DiskFullError):
            RecordStore(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    RecordStore(path).close()


def test_changes_of_devices_are_kept_in_order_with_the_state_after_them(store: RecordStore, path: Path) -> None:
    last = DeviceState(Connectivity.ONLINE, Health.GOOD, Admin.DRAINING, Lease("run", 9.5, 4), ("c", ""), 2, 0.0, 7)
    events = [device_event("a"), device_event("b"), device_event("a", "leased"), device_event("a", "ordered", last)]
    store.append_device_events(events[:1])
    store.append_device_events(events[1:])
    with RecordReader(path) as reader:
        kept = reader.devices.events(10)
        assert [event.seq for event in kept] == [1, 2, 3]
        assert [(e.device_id, e.kind, e.reason, e.run_id, e.unix_secs) for e in kept] == [
            (e.device_id, e.kind, e.reason, e.run_id, e.unix_secs) for e in (events[0], events[1], events[3])
        ]
        assert kept[-1].state == last
        assert [event.kind for event in reader.devices.events(2)] == ["lost", "ordered"]
        assert {name: event.state for name, event in reader.devices.states().items()} == {"a": last, "b": DeviceState()}


def test_leases_are_summed_up_in_the_state_of_their_device(store: RecordStore, path: Path) -> None:
    store.append_device_events([device_event("a")])
    size = None
    for epoch in range(1, 400):
        held = DeviceState(Connectivity.ONLINE, Health.GOOD, lease=Lease("run", 9.5, epoch))
        free = replace(held, lease=Lease(epoch=epoch))
        store.append_device_events([device_event("a", "leased", held)])
        with RecordReader(path) as reader:
            assert reader.devices.states()["a"].state == held
        store.append_device_events([device_event("a", "released", free)])
        if size is None:
            size = _pages(path)
    assert _pages(path) == size
    with RecordReader(path) as reader:
        assert reader.devices.states()["a"].state == free
        assert [event.kind for event in reader.devices.events(1000)] == ["lost"]


def _pages(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA page_count").fetchone()[0])


def _with_trace(uid: str, trace: str, sketch: str = "s") -> Record:
    record = named_record(uid)
    candidate = replace(record.candidate, sketch_id=sketch)
    return replace(record, candidate=candidate, trace=trace)


def test_traces_of_a_sketch_take_little(store: RecordStore, path: Path) -> None:
    steps = ", ".join(f'["Split", {{"loop": "l{at}", "factors": null}}]' for at in range(200))
    traces = [f"[[{steps}], [{number}, {number % 7}]]" for number in range(200)]
    records = [_with_trace(f"u{at}", trace) for at, trace in enumerate(traces)]
    records += [_with_trace("other", "[]", "t"), _with_trace("none", "")]
    store.append(records[:100])
    store.append(records[100:])
    with RecordReader(path) as reader:
        assert [record.trace for record in reader] == [*traces, "[]", ""]
        assert [record.trace for record in reader.records_of(records[0].task_id)] == [*traces, "[]", ""]
        best = reader.best(records[0].task_id)
        assert best is not None
        assert best.trace == traces[0]
        assert len(reader.encoded_since(0, 300)) == 202
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (packed,) = connection.execute("SELECT avg(length(packed)) FROM traces").fetchone()
        assert packed < 0.04 * len(traces[0])


def test_a_trace_that_a_failed_append_brought_is_brought_again(store: RecordStore, path: Path) -> None:
    good = _with_trace("a", "[1, 2, 3]")
    bad = replace(good, uid=None)  # type: ignore[arg-type]
    with pytest.raises(RecordStoreError, match="NOT NULL"):
        store.append([good, bad])
    store.append([good])
    with RecordReader(path) as reader:
        assert [record.trace for record in reader] == ["[1, 2, 3]"]
