"""Stores that were torn while they were being made, and records that were damaged later."""

from __future__ import annotations

import dataclasses
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from fleet_tune.base.device_state import Connectivity, DeviceEvent, DeviceState, Health
from fleet_tune.base.domain import Outcome, Record
from fleet_tune.base.errors import DiskFullError, RecordStoreError
from fleet_tune.base.records.stores.reader import RecordReader, check_store
from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate


def _record(uid: str, cost_secs: float, *decisions: int) -> Record:
    return make_record(make_candidate("w1@zen5", *(decisions or (1,)), sketch_id="s0"), ok(cost_secs), uid)


def _damage(path: Path, seqs: Sequence[int], table: str = "records", column: str = "body") -> None:
    """Overwrite what is stored, as a bad disk does."""
    with sqlite3.connect(path) as connection:
        for seq in seqs:
            (body,) = connection.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (seq,)).fetchone()
            torn = body[: len(body) // 2] + b"\0" * (len(body) - len(body) // 2)
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (torn, seq))
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "records.db"


def _works(path: Path) -> None:
    check_store(path)
    with RecordStore(path) as store, RecordReader(path) as reader:
        store.append([_record("u", 1.0)])
        assert [record.uid for record in reader] == ["u"]
    assert sorted(each.name for each in path.parent.iterdir()) == ["records.db", "records.db.lock"]


@pytest.mark.parametrize("content", [b"", b"SQLi", b"SQLite format 3\0" + b"\x10\0\1\1", bytes(4096)])
def test_a_file_without_a_whole_header_is_made_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.with_name("records.db-wal").write_bytes(b"torn too")
    _works(path)


# As older versions made their stores: under their name.
KILLED_MAKER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
steps = ["PRAGMA synchronous=FULL", "PRAGMA journal_mode=WAL", "BEGIN IMMEDIATE", "CREATE TABLE meta (key TEXT)"]
for step in steps[: int(sys.argv[2])]:
    connection.execute(step).fetchall()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_store_whose_maker_was_killed_is_made_anew(path: Path, steps: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_MAKER, str(path), str(steps)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.exists()
    _works(path)


KILLED_AT_THE_END = """
import os, signal, sys
from pathlib import Path
from fleet_tune.base.records.stores import store
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
store.RecordStore(Path(sys.argv[1]))
"""


def test_what_is_torn_while_it_is_made_is_never_seen_under_its_name(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_AT_THE_END, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    assert path.with_name("records.db.new").exists()
    _works(path)


@pytest.mark.parametrize("room_bytes", [0, 512, 4096, 20_000, 45_000])
def test_a_disk_that_is_full_while_a_store_is_made_costs_nothing(path: Path, room_bytes: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    try:
        with pytest.raises(DiskFullError):
            RecordStore(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.exists()
    _works(path)


def test_what_others_wrote_is_not_made_anew(path: Path) -> None:
    path.write_bytes(b"SQLite format 2 or so" + bytes(100))
    with pytest.raises(RecordStoreError, match="not a record database"):
        check_store(path)
    with pytest.raises(RecordStoreError, match="not a record database"):
        RecordStore(path)


def test_records_that_cannot_be_decoded_are_set_aside_and_named(path: Path) -> None:
    with RecordStore(path) as store:
        store.append([_record(f"u{at}", 1.0 + at, at) for at in range(6)])
    _damage(path, [1, 3, 6])
    with RecordStore(path) as store, RecordReader(path) as reader:
        assert [record.uid for record in reader] == ["u1", "u3", "u4"]
        assert [record.uid for record in reader.since(2, limit=1)] == ["u3"]
        assert reader.since(5) == []
        assert reader.last_seq() == 5  # who waits for the last record must not wait for one that nobody gets
        assert [record.uid for record in reader.records_of("w1@zen5")] == ["u1", "u3", "u4"]
        best = reader.best("w1@zen5")
        assert best is not None
        assert best.uid == "u1"
        reasons = reader.unreadable()
        assert [reason.split(" cannot be read: ")[0] for reason in reasons] == ["record 1", "record 3", "record 6"]
        assert reader.counts() == {Outcome.OK: 6}
        assert store.append([_record("next", 0.5)]) == [7]
        assert reader.last_seq() == 7


def test_a_store_of_damaged_records_alone_is_an_empty_one(path: Path) -> None:
    with RecordStore(path) as store:
        store.append([_record(f"u{at}", 1.0) for at in range(3)])
    _damage(path, [1, 2, 3])
    with RecordReader(path) as reader:
        assert list(reader) == []
        assert reader.since(0, limit=1) == []
        assert reader.last_seq() == 0
        assert reader.best("w1@zen5") is None
        assert len(reader.unreadable()) == 3


def test_of_a_device_whose_last_change_is_damaged_the_one_before_counts(path: Path) -> None:
    states = [DeviceState(Connectivity.ONLINE, health) for health in (Health.GOOD, Health.SUSPECT)]
    with RecordStore(path) as store:
        store.append_device_events(
            [DeviceEvent("a", "run", "checked", "", state, 1.0) for state in states]
            + [DeviceEvent("b", "run", "checked", "", states[0], 1.0)]
        )
    _damage(path, [2, 3], "device_events", "state")
    with RecordReader(path) as reader:  # the last states are kept beside the changes
        assert {name: event.state.health for name, event in reader.devices.states().items()} == {
            "a": Health.SUSPECT,
            "b": Health.GOOD,
        }
    _damage(path, [1, 2], "device_states", "state")
    with RecordReader(path) as reader:
        assert {name: event.state.health for name, event in reader.devices.states().items()} == {"a": Health.GOOD}
        assert [event.seq for event in reader.devices.events(9)] == [1]
        assert [reason.partition(":")[0] for reason in reader.unreadable()] == [
            "change 2 of device a",
            "change 3 of device b",
            "the state of device a",
            "the state of device b",
        ]


def test_a_record_whose_trace_is_damaged_is_set_aside(path: Path) -> None:
    trace = "".join(chr(33 + at * at % 91) for at in range(200))
    with RecordStore(path) as store:
        store.append([dataclasses.replace(_record(f"u{at}", 1.0 + at, at), trace=f"{trace}{at}") for at in range(3)])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE traces SET packed = x'ff' WHERE seq = 1")
    connection.close()
    with RecordReader(path) as reader:
        assert [(record.uid, record.trace) for record in reader] == [("u1", f"{trace}1"), ("u2", f"{trace}2")]
        best = reader.best("w1@zen5")
        assert best is not None
        assert best.uid == "u1"
        assert [reason.split(" cannot be read: ")[0] for reason in reader.unreadable()] == ["record 1"]
        assert reader.last_seq() == 3


def test_rows_that_lead_back_end_nothing_in_a_circle(path: Path) -> None:
    with RecordStore(path) as store:
        store.append([_record(f"u{at}", 1.0, at) for at in range(1, 4)])
    content = path.read_bytes()
    reasons: list[str] = []
    for at in (at for at, byte in enumerate(content) if byte == 3):  # one of them is the number of the last row
        path.write_bytes(content[:at] + b"\1" + content[at + 1 :])
        with suppress(RecordStoreError), RecordReader(path) as reader:
            reasons = reader.unreadable()
            if reasons == ["record 1: it stands behind record 2"]:
                assert [record.uid for record in reader] == ["u1", "u2"]
                return
    raise AssertionError(f"no row leads back, at last: {reasons}")
