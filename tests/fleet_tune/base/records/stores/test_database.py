"""The file of a record store: older and newer schemas, other files, and folders that cannot be written."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_tune.base.device_state import Connectivity, DeviceState, Health, Lease
from fleet_tune.base.domain import Outcome
from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.records.stores.codec import encode_record, encode_state
from fleet_tune.base.records.stores.database import MIGRATIONS, SCHEMA_VERSION
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.records import device_event, named_record

_WITHOUT_6 = "DROP TABLE origins; DROP TABLE run_origins; DROP TABLE efforts; ALTER TABLE records DROP COLUMN origin;"
_WITHOUT_5 = _WITHOUT_6 + "DROP TABLE device_states; DROP TABLE traces; DROP TABLE sketch_traces;"
_VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE workloads (
    hash TEXT PRIMARY KEY, name TEXT NOT NULL, flop REAL NOT NULL, module TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE tasks (
    workload TEXT NOT NULL REFERENCES workloads (hash), device_class TEXT NOT NULL,
    target TEXT NOT NULL, weight INTEGER NOT NULL, PRIMARY KEY (workload, device_class)
);
CREATE TABLE records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE,
    workload TEXT NOT NULL, device_class TEXT NOT NULL, candidate TEXT NOT NULL,
    outcome TEXT NOT NULL, verified INTEGER NOT NULL, cost_secs REAL, body BLOB NOT NULL
);
CREATE INDEX records_by_cost ON records (workload, device_class, cost_secs) WHERE cost_secs IS NOT NULL;
CREATE INDEX records_by_candidate ON records (workload, device_class, candidate, outcome);
INSERT INTO meta VALUES ('schema_version', '1');
"""


def _write_version_1(path: Path) -> None:
    """A database as the first version of the schema had it, with one record."""
    path.parent.mkdir()
    record = named_record("a", 1.0)
    row = ("a", "w1", "zen5", record.candidate.id, "ok", 1, 1.0, encode_record(record))
    with sqlite3.connect(path) as connection:
        connection.executescript(_VERSION_1)
        columns = "uid, workload, device_class, candidate, outcome, verified, cost_secs, body"
        connection.execute(f"INSERT INTO records ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()


def test_a_store_of_the_first_schema_is_read_as_it_is_and_brought_up_to_date_when_written(path: Path) -> None:
    _write_version_1(path)
    with RecordReader(path) as reader:
        assert (reader.devices.events(5), reader.devices.states()) == ([], {})
        assert reader.meta()["schema_version"] == "1"
    with RecordStore(path) as store:
        store.append_device_events([device_event("a")])
        store.append([named_record("b", 2.0)])
    with RecordReader(path) as reader:
        assert reader.meta()["schema_version"] == str(SCHEMA_VERSION)
        assert [record.uid for record in reader] == ["a", "b"]
        assert [event.device_id for event in reader.devices.events(5)] == ["a"]
    RecordStore(path).close()  # and stays so


def test_a_store_of_before_revisions_is_read_as_it_is_and_grows_when_it_is_written(path: Path) -> None:
    with RecordStore(path) as store:
        store.append([named_record("a", 2.0), named_record("b", 1.0)])
    connection = sqlite3.connect(path)
    connection.executescript(
        f"{_WITHOUT_5} DROP INDEX records_by_rank; ALTER TABLE records DROP COLUMN rank_secs;"
        "ALTER TABLE records DROP COLUMN revision; UPDATE meta SET value = '2' WHERE key = 'schema_version';"
    )
    connection.close()
    with RecordReader(path) as reader:
        best = reader.best("w1@zen5")
        assert best is not None
        assert best.uid == "b"
        assert reader.counts() == {Outcome.OK: 2}
    with RecordStore(path) as store, RecordReader(path) as reader:
        store.append([named_record("b-1", 3.0, revision=1)])
        best = reader.best("w1@zen5")
        assert best is not None
        assert best.uid == "b-1"


def test_a_store_of_before_ranks_is_read_as_it_is_and_brought_up_to_date_when_written(path: Path) -> None:
    with RecordStore(path) as store:
        store.append([named_record("a", 2.0), named_record("b", 1.0, decisions=(2,))])
        # Marked by that version: its device was off.
        store.append([named_record("b-1", 1.0, decisions=(2,), revision=1, verified=False)])
    connection = sqlite3.connect(path)
    connection.executescript(
        f"{_WITHOUT_5} DROP INDEX records_by_rank; ALTER TABLE records DROP COLUMN rank_secs;"
        "UPDATE meta SET value = '3' WHERE key = 'schema_version';"
    )
    connection.close()
    for _ in range(2):
        with RecordReader(path) as reader:
            best = reader.best("w1@zen5")
            assert best is not None
            assert best.uid == "b"
        RecordStore(path).close()
    with RecordReader(path) as reader:
        assert reader.meta()["schema_version"] == str(SCHEMA_VERSION)


def test_a_store_with_leases_as_events_is_summed_up_when_it_is_written(path: Path) -> None:
    _write_version_1(path)
    held = DeviceState(Connectivity.ONLINE, Health.GOOD, lease=Lease("run", 9.5, 7))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for version in (2, 3, 4):
            connection.executescript(MIGRATIONS[version])
        connection.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")
        insert = (
            "INSERT INTO device_events (device, run_id, kind, reason, unix_secs, state) VALUES (?, 'r', ?, '', 1, ?)"
        )
        for device, kind, state in (
            ("a", "joined", DeviceState()),
            ("a", "leased", held),
            ("b", "lost", DeviceState()),
        ):
            connection.execute(insert, (device, kind, encode_state(state)))
    with RecordReader(path) as reader:
        before = {name: event.state for name, event in reader.devices.states().items()}
    RecordStore(path).close()
    with RecordReader(path) as reader:
        after = {name: event.state for name, event in reader.devices.states().items()}
        assert before == after == {"a": held, "b": DeviceState()}
        assert [(event.device_id, event.kind) for event in reader.devices.events(10)] == [
            ("a", "joined"),
            ("b", "lost"),
        ]
        assert [record.trace for record in reader] == [named_record("a").trace]


@pytest.mark.parametrize("opener", [RecordStore, RecordReader])
def test_a_newer_schema_is_refused_with_both_versions(path: Path, opener: type[RecordStore | RecordReader]) -> None:
    RecordStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    connection.close()
    with pytest.raises(RecordStoreError) as caught:
        opener(path)
    assert f"schema version 99 and this fleet-tune reads up to version {SCHEMA_VERSION}" in caught.value.problem
    assert "newer fleet-tune" in caught.value.next_step


@pytest.mark.parametrize("opener", [RecordStore, RecordReader])
@pytest.mark.parametrize("content", ["text", "other database", "damaged"])
def test_what_is_no_record_database_is_refused_and_left_alone(
    path: Path, opener: type[RecordStore | RecordReader], content: str
) -> None:
    path.parent.mkdir()
    if content == "text":
        path.write_text("latency,model\n" * 100)
    elif content == "damaged":
        RecordStore(path).close()
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE notes (text)")
        connection.close()
    before = path.read_bytes()
    with pytest.raises(RecordStoreError, match=r"is not a record database|is damaged"):
        opener(path)
    assert path.read_bytes() == before


def test_a_reader_of_nothing_says_so(path: Path) -> None:
    with pytest.raises(RecordStoreError, match="no such record database"):
        RecordReader(path)
    path.parent.mkdir()
    path.touch()
    with pytest.raises(RecordStoreError, match="not a record database"):
        RecordReader(path)
    with RecordStore(path):  # an empty file is what a run killed at its start leaves behind
        pass


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that is readable and not writable, for a process that has given up root's rights if it had them."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-tune-readonly-"))
    uid = os.geteuid()
    try:
        with RecordStore(folder / "records.db") as store:
            store.append([named_record("kept")])
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        if uid == 0:
            os.seteuid(65534)
        yield folder
    finally:
        os.seteuid(uid)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_readonly_folder_can_be_read_and_not_written(unprivileged: Path) -> None:
    with RecordReader(unprivileged / "records.db") as reader:
        assert [record.uid for record in reader] == ["kept"]
    for path in (unprivileged / "records.db", unprivileged / "new" / "records.db"):
        with pytest.raises(RecordStoreError, match="Permission denied") as caught:
            RecordStore(path)
        assert "can be written" in caught.value.next_step


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(RecordStoreError, match="cannot use"):
        RecordStore(tmp_path / "out" / "records.db")


def test_a_writer_that_never_lets_go_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet_tune.base.records.stores.database._BUSY_SECS", 0.05)
    with RecordStore(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordStoreError, match="another program has locked"):
            store.append([named_record("u")])
        other.execute("ROLLBACK")
        other.close()
        assert store.append([named_record("u")])
