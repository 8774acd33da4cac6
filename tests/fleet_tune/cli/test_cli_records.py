"""``fleet-tune records``: what people and scripts see of record stores."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from fleet_tune.base.domain import Outcome, Record
from fleet_tune.base.errors import RecordFileError
from fleet_tune.base.records.sharing.parquet import COLUMNS
from fleet_tune.base.records.sharing.records_file import RecordsFileWriter
from fleet_tune.base.records.sharing.shared import STORE_VARIABLE, SharedReader
from fleet_tune.base.records.stores.origin import Effort, Origin
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore, class_unit
from fleet_tune.base.records.stores.stored_speeds import UNIT
from fleet_tune.cli import main as cli
from fleet_tune.runs.shared_store.upkeep import versions_now
from tests.helpers.records import named_record
from tests.helpers.tasks import make_task

HERE = Origin('{"kind":"llvm"}', "a processor", 2, versions_now())
BEFORE = dataclasses.replace(HERE, versions={**versions_now(), "apache-tvm": "0.20"})
CONV, DENSE = make_task("conv", "zen5", flop=2e9), make_task("dense", "zen5")


def of(run_id: str, uid: str, cost_secs: float | None, decision: int, task_id: str = CONV.id, **more: Any) -> Record:
    record = named_record(uid, cost_secs, task_id=task_id, decisions=(decision,), **more)
    return dataclasses.replace(record, run_id=run_id, unix_secs=time.time())


def write(path: Path, run_id: str, origin: Origin | None, *records: Record) -> Path:
    with RecordStore(path) as store:
        for task in (CONV, DENSE):
            store.put_task(task)
        if origin is not None:
            store.put_run(run_id, {"zen5": origin})
            store.put_efforts([Effort(CONV.id, run_id, 10.0, float("inf"))])
        store.probed("dev", "zen5", 0.001)
        store.append(records)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs of this version, one of another, and one that does not say: of the same task, and one failure."""
    path = tmp_path / "team.db"
    old = dataclasses.replace(of("b", "4", 5e-4, 4), unix_secs=time.time() - 100 * 86400)
    write(path, "a", HERE, of("a", "1", 2e-3, 1), of("a", "2", 1e-3, 2), of("a", "3", None, 3))
    write(path, "b", BEFORE, old)
    write(path, "c", None, of("c", "5", 3e-3, 5))
    return path


def called(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert cli.main(["records", *map(str, arguments)]) == code
    shown = capsys.readouterr()
    return shown.out, shown.err


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(called(capsys, *arguments, "--json", code=code)[0].splitlines()[-1])
    assert body.pop("schema") == 1
    return body


def test_the_best_of_every_task(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conv, dense = told(capsys, "top", "--store", store)["tasks"]
    assert (conv["name"], conv["records"], conv["run_id"], conv["differences"]) == ("conv", 5, "a", [])
    assert conv["best_secs"] == pytest.approx(1.05e-3), "not the faster one of another version"
    assert (dense["name"], dense["best_secs"]) == ("dense", None)
    assert told(capsys, "top", "--store", store, "--class", "other") == {"tasks": []}
    text, _ = called(capsys, "top", "--store", store)
    row = next(line for line in text.splitlines() if line.split()[:1] == ["conv"])
    assert row.split() == ["conv", "zen5", "5", "1.050", "ms", "1904.8", "yes"]


def test_counts(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = told(capsys, "stats", "--store", store)
    assert (body["records"], body["runs"]) == (5, 2)
    assert body["outcomes"] == {"zen5": {"ok": 4, "build_error": 1}}
    assert body["workloads"] == [{"name": "conv", "device_class": "zen5", "trials": 5}]
    assert sorted((each["records"], "versions" in each) for each in body["origins"]) == [
        (1, False),
        (1, True),
        (3, True),
    ]
    text, _ = called(capsys, "stats", "--store", store)
    assert "5 trials (4 ok, 1 build error)" in text
    assert "runs that do not say what they depend on: 1 record" in text


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_records_travel_as_a_file(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    file, other = tmp_path / name, tmp_path / "other" / "store.db"
    assert told(capsys, "export", file, "--store", store) == {"records": 4, "left_out": 1}
    assert told(capsys, "import", file, "--store", other) == {"records": 4, "left_out": 0, "skipped": 0}
    assert told(capsys, "import", file, "--store", other) == {"records": 0, "left_out": 0, "skipped": 0}
    with SharedReader(store) as first, SharedReader(other) as second:
        expected = [dataclasses.replace(record, seq=0) for record in first if record.run_id != "c"]
        assert [dataclasses.replace(record, seq=0) for record in second] == expected
        assert [effort for effort, _ in second.efforts()] == [effort for effort, _ in first.efforts()]
        assert second.run_origins() == first.run_origins()
        assert [task.id for task in second.tasks()] == [CONV.id]
        assert second.unit_secs("dev", "zen5") == 0.001
    assert told(capsys, "verify", "--store", other)["sound"] is True


def test_records_as_a_table_for_others(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "records.parquet"
    assert told(capsys, "export", file, "--format", "parquet", "--store", store)["records"] == 5
    table = pyarrow.parquet.read_table(file)
    assert table.column_names == list(COLUMNS)
    rows = {row["uid"]: row for row in table.to_pylist()}
    with RecordReader(store) as reader:
        for record in reader:
            row, measured = rows[record.uid], record.measurement
            assert (row["candidate"], row["run_secs"]) == (record.candidate.id, list(measured.run_secs))
            assert row["cost_secs"] == (measured.cost_secs if measured.run_secs else None)
            assert (row["workload_name"], row["device_class"], row["decisions"]) == ("conv", "zen5", [int(record.uid)])
    assert dict(rows["4"]["versions"])["apache-tvm"] == "0.20"
    assert rows["5"]["versions"] is None
    assert told(capsys, "export", file, "--format", "parquet", "--class", "x", "--store", store)["records"] == 0
    assert pyarrow.parquet.read_table(file).num_rows == 0


def test_what_a_table_needs_is_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "records.parquet"
    _, err = called(capsys, "export", file, "--format", "parquet", "--store", store, code=2)
    assert "needs pyarrow" in err
    assert "pip install 'fleet-tune[parquet]'" in err
    assert not file.exists()


def test_torn_lines_are_told_and_skipped(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "records.jsonl", tmp_path / "other.db"
    called(capsys, "export", file, "--store", store)
    lines = file.read_bytes().splitlines()
    at = [number for number, line in enumerate(lines) if b'"kind": "record"' in line]
    lines[at[0]] = lines[at[0]][:40]
    lines[at[1]] = lines[at[1]].replace(b'"ok"', b'"fine"')
    file.write_bytes(b"\n".join(lines) + b'\n{"kind": "record", "bo')
    out, err = called(capsys, "import", file, "--store", other)
    assert out == "2 records new\n"
    skipped = [line for line in err.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == 3
    assert skipped[0].startswith(f"skipped: line {at[0] + 1}: it is torn")
    deflated = tmp_path / "records.jsonl.gz"
    content = gzip.compress(b"\n".join(lines), mtime=0)
    deflated.write_bytes(content[: len(content) // 2])
    _, err = called(capsys, "import", deflated, "--store", tmp_path / "third.db")
    assert "the file ends early" in err


def test_what_is_no_file_of_records_is_told(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = tmp_path / "newer.jsonl"
    newer.write_text('{"kind": "head", "format": "fleet-tune records", "version": 99}\n')
    for file, problem in ((store, "no file of records"), (tmp_path / "none", "No such file"), (newer, "version 99")):
        _, err = called(capsys, "import", file, "--store", tmp_path / "x.db", code=2)
        assert problem in err
        assert len(err.splitlines()) == 2
    _, err = called(capsys, "export", tmp_path / "no" / "folder", "--store", store, code=2)
    assert "cannot be written" in err
    assert not (tmp_path / "x.db").exists()


def test_a_folder_is_no_file_to_export_to(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in (".", folder, "/"):
        _, err = called(capsys, "export", name, "--store", store, code=2)
        assert f"{name} is a folder" in err
        assert len(err.splitlines()) == 2
    assert not list(folder.iterdir())


def test_a_file_whose_head_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: RecordsFileWriter, _: object) -> None:
        raise RecordFileError(f"{writer.path} cannot be written: no space", "choose another place")

    monkeypatch.setattr(RecordsFileWriter, "_write", full)
    writer = RecordsFileWriter(tmp_path / "records.jsonl.gz")
    with pytest.raises(RecordFileError, match="no space"), writer:
        pass
    assert writer._file.closed
    assert not list(tmp_path.iterdir())


def test_records_come_into_the_folder_of_a_run(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, file = tmp_path / "out", tmp_path / "records.jsonl"
    write(out / "records.db", "d", HERE, of("d", "6", 1e-3, 6, DENSE.id))
    called(capsys, "export", file, "--store", store)
    assert told(capsys, "import", file, "--store", out)["records"] == 4
    assert told(capsys, "merge", store, "--store", out) == {"records": 0, "left_out": 1}
    assert uids(out / "records.db") == ["6", "1", "2", "3", "4"]
    _, err = called(capsys, "merge", out, "--store", out, code=2)
    assert "into itself" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in (("import", file), ("merge", store)):
        assert "there is no record store" in called(capsys, *arguments, "--store", empty, code=2)[1]
    assert not [each.name for each in tmp_path.iterdir() if each.name in ("out.lock", "empty.lock")]
    assert not list(empty.iterdir())


def test_what_is_merged_into_the_folder_of_a_run_is_no_trial_of_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "records.db"
    write(out, "d", HERE, of("d", "6", 4e-3, 6), of("d", "7", 9e-3, 2))
    with RecordStore(out) as opened:
        opened.bind({"network": "a network"})
        opened.put_task(dataclasses.replace(CONV, weight=5))
    with sqlite3.connect(out) as connection:  # the folder's device takes twice as long for the probe
        connection.execute(
            "UPDATE meta SET value = '0.002' WHERE key IN (?, ?)", (UNIT + "dev", UNIT + class_unit("zen5"))
        )
    with SharedReader(out) as reader:
        trials, efforts = reader.counts(CONV.id), reader.efforts()
    assert told(capsys, "merge", store, "--store", out.parent)["records"] == 3
    assert told(capsys, "merge", store, "--store", out.parent)["records"] == 0
    with SharedReader(out) as reader:
        assert (reader.counts(CONV.id), reader.efforts()) == (trials, efforts)
        assert reader.tasks()[0].weight == 5
        found = {record.uid: record for record in reader}
        assert sorted(found) == ["1", "3", "4", "6", "7"], "not what the run knows of a candidate"
        assert found["1"].measurement.cost_secs == pytest.approx(2 * 2e-3), "in the folder's seconds"
        assert found["6"].measurement.cost_secs == pytest.approx(4e-3)
        assert {uid: each.revision for uid, each in found.items()} == {"1": 1, "3": 1, "4": 1, "6": 0, "7": 0}
        assert reader.tried() == {CONV.id}


def test_stores_and_folders_of_runs_are_merged(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "out" / "records.db", "d", HERE, of("d", "6", 1e-3, 6, DENSE.id))
    other = tmp_path / "all.db"
    assert told(capsys, "merge", store, tmp_path / "out", "--store", other) == {"records": 5, "left_out": 1}
    assert told(capsys, "merge", store, "--store", other) == {"records": 0, "left_out": 1}
    _, err = called(capsys, "merge", other, "--store", other, code=2)
    assert "into itself" in err
    _, err = called(capsys, "merge", tmp_path, "--store", other, code=2)
    assert "no record store" in err
    _, err = called(capsys, "merge", store, tmp_path / "gone", "--store", other, code=2)
    assert f"no record store {tmp_path / 'gone'}" in err
    assert "--store" not in err


@pytest.mark.parametrize("content", [b"something else", b"SQLite format 3\0" + bytes(range(256)) * 20])
def test_what_is_no_store_is_told_with_the_option_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "some.db").write_bytes(content)
    assert cli.main(["records", "top", "--store", str(tmp_path / "some.db")]) == 2
    problem, next_step = capsys.readouterr().err.splitlines()
    assert problem.startswith(f"error: {tmp_path / 'some.db'} is ")
    assert "name another with --store" in next_step


@pytest.mark.parametrize("command", ["top", "verify", "import", "merge"])
def test_what_is_wrong_with_a_store_is_told_with_what_these_commands_can_do_about_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    called(capsys, "export", tmp_path / "r.jsonl", "--store", store)
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    sources = {"import": [tmp_path / "r.jsonl"], "merge": [tmp_path / "out" / "records.db"]}
    write(tmp_path / "out" / "records.db", "d", HERE, of("d", "6", 1e-3, 6))
    _, err = called(capsys, command, *sources.get(command, []), "--store", store, code=2)
    assert "newer fleet-tune" in err or "name another with --store" in err
    assert "--out" not in err
    assert "--no-store" not in err


def test_of_a_file_that_is_damaged_what_is_sound_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Disks lose pages: SQLite reads no table any more as a whole that has one of them."""
    path, other = tmp_path / "big.db", tmp_path / "sound.db"
    tasks = [make_task(f"conv{at}", "zen5") for at in range(40)]
    with RecordStore(path) as store:
        for task in tasks:
            workload = dataclasses.replace(task.workload, module="m" * 3000)
            store.put_task(dataclasses.replace(task, workload=workload))
        store.put_run("a", {"zen5": HERE})
        store.append([of("a", f"uid-{at}", 1e-3, at, task.id) for at, task in enumerate(tasks)])
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    content = bytearray(path.read_bytes())
    pages = [bytes(content[at : at + size]) for at in range(0, len(content), size)]
    for leaf, text in ((b"\x0a", b"mmmm"), (b"\x0d", b"uid-20")):  # of the workloads, and of the records
        torn = next(at for at, page in enumerate(pages) if at > 1 and page.startswith(leaf) and text in page)
        content[torn * size : (torn + 1) * size] = bytes(range(256)) * (size // 256)
    path.write_bytes(content)
    assert cli.main(["records", "top", "--store", str(path)]) == 2
    assert "records merge" in capsys.readouterr().err
    found = told(capsys, "verify", "--store", path, code=2)
    assert found["file"]
    saved, err = called(capsys, "merge", path, "--store", other)
    count = int(saved.split()[0])
    assert 20 <= count < 40
    assert f"{40 - count} of its records cannot be read" in err
    assert told(capsys, "verify", "--store", other)["sound"] is True


def test_a_server_that_is_away_is_told_once(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert told(capsys, "merge", store, "--store", "postgresql://a:b@127.0.0.1:1/team")["records"] == 4
    assert caplog.text.count("does not answer") == 1
    assert told(capsys, "stats", "--store", "postgresql://a:b@127.0.0.1:1/team")["records"] == 4


def test_damage_is_counted_and_named(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "verify", "--store", store) == (f"5 records, all of them sound: {store}\n", "")
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE records SET body = x'00' WHERE seq = 2")
        connection.execute("UPDATE origins SET body = 'x' WHERE id = 2")
        connection.execute("DELETE FROM tasks WHERE workload = 'dense'")
        connection.execute("UPDATE records SET workload = 'gone' WHERE seq = 5")
    body = told(capsys, "verify", "--store", store, code=2)
    assert (body["records"], body["orphans"], len(body["damaged"])) == (5, 1, 2)
    _, err = called(capsys, "verify", "--store", store, code=2)
    assert "record 2" in err
    assert "origin 2" in err
    assert "1 record without a task" in err
    assert called(capsys, "merge", store, "--store", tmp_path / "sound.db")[0] == "2 records new\n"


def uids(store: Path) -> list[str]:
    with RecordReader(store) as reader:
        return [record.uid for record in reader]


def test_pruning_follows_its_rules(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = called(capsys, "prune", "--store", store, code=2)
    assert "nothing says what is to be pruned" in err
    assert told(capsys, "prune", "--older-than", "30d", "--store", store, "--dry-run") == {
        "records": 5,
        "removed": 0,
        "matching": 1,
    }
    assert called(capsys, "prune", "--keep-best", "1", "--dry-run", "--store", store)[0] == (
        "2 of 5 records would be removed\n"
    )
    assert told(capsys, "prune", "--older-than", "30d", "--keep-best", "1", "--store", store)["removed"] == 0
    assert told(capsys, "prune", "--other-versions", "--class", "other", "--store", store)["removed"] == 0
    assert uids(store) == ["1", "2", "3", "4", "5"]
    assert told(capsys, "prune", "--other-versions", "--store", store)["removed"] == 2
    assert uids(store) == ["1", "2", "3"]
    with RecordStore(store) as opened:
        opened.append([of("a", "7", None, 1, outcome=Outcome.WRONG_OUTPUT, revision=1)])
    assert told(capsys, "prune", "--keep-best", "1", "--store", store)["removed"] == 2
    assert uids(store) == ["2", "7"], "the best, and what was found wrong"
    assert told(capsys, "verify", "--store", store)["sound"] is True


def test_what_a_run_is_writing_is_not_pruned(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RecordStore(store):
        _, err = called(capsys, "prune", "--other-versions", "--store", store, code=2)
        assert f"has locked {store}" in err
        assert len(err.splitlines()) == 2
        assert told(capsys, "prune", "--other-versions", "--store", store, "--dry-run")["matching"] == 2
    assert uids(store) == ["1", "2", "3", "4", "5"]
    assert told(capsys, "prune", "--other-versions", "--store", store)["removed"] == 2


def test_why_a_record_counts_or_not(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RecordStore(store) as opened:
        opened.append([of("a", "7", None, 1, outcome=Outcome.WRONG_OUTPUT, revision=1)])
        opened.append([of("a", "8", 4e-3, 8, verified=False)])
    (task,) = told(capsys, "why", "conv", "--store", store)["tasks"]
    reasons = {tuple(each["reasons"]) for each in task["candidates"] if each["run_id"] == "a"}
    assert reasons == {
        (),
        ("withdrawn: wrong output: boom",),
        ("build error: boom",),
        ("its output was not compared: it was clearly slower than the best",),
    }
    others = {each["run_id"]: each["reasons"] for each in task["candidates"] if each["run_id"] != "a"}
    assert others["c"] == ["its run does not say what it depends on"]
    (reason,) = others["b"]
    assert reason.startswith("TVM 0.20 there and ")
    assert [each["counts"] for each in task["candidates"]][:1] == [True]
    against = [each["secs"] or math.inf for each in task["candidates"] if not each["counts"]]
    assert against == sorted(against)
    (top,) = [each for each in told(capsys, "top", "--store", store)["tasks"] if each["name"] == "conv"]
    assert top["best_secs"] == task["candidates"][0]["secs"], "one number for one thing"
    text, _ = called(capsys, "why", "conv", "--store", store, "--rows", "2")
    assert "conv on zen5: 1 of 6 candidates count" in text
    assert "and 4 more" in text
    assert "no task nothing" in called(capsys, "why", "nothing", "--store", store, code=2)[1]


def test_the_default_is_the_users_store(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, str(store))
    assert told(capsys, "stats")["records"] == 5
    monkeypatch.setenv(STORE_VARIABLE, "")
    assert "no store of this user" in called(capsys, "stats", code=2)[1]
    monkeypatch.setenv(STORE_VARIABLE, str(store) + ".none")
    assert "there is no record store" in called(capsys, "top", code=2)[1]
