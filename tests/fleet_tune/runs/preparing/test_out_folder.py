"""One output folder, one run at a time."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_tune.base.errors import OutputFolderError
from fleet_tune.base.records.files.lock_file import LockedError, take_lock
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.runs.preparing import out_folder
from fleet_tune.runs.preparing.out_folder import held_folder
from tests.helpers.commands import fleet_tune_here

HOLDER = """
import sys
from pathlib import Path
from fleet_tune.runs.preparing.out_folder import held_folder
with held_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_folder_is_one_runs_at_a_time_and_free_when_that_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(OutputFolderError, match=rf"another run \(process {holder.pid}\) uses .*{out}"),
            held_folder(out),
        ):
            pytest.fail("two runs in one folder")
        holder.kill()
        holder.wait()
    with held_folder(out):
        pass
    with held_folder(out):
        pass


@pytest.mark.parametrize("command", ["tune", "compile"])
def test_a_second_command_in_a_folder_ends_at_once_in_one_line(tmp_path: Path, command: str) -> None:
    model, records = tmp_path / "model.py", tmp_path / "records.db"
    with RecordStore(records):
        pass
    model.write_text("raise AssertionError('nothing is read before the folder is ours')")
    out = tmp_path / "out"
    with held_folder(out):
        options = ["--records", str(records)] if command == "compile" else []
        done = fleet_tune_here(command, *options, f"{model}:make", "--out", str(out))
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"another run (process {os.getpid()}) uses" in errors[0]
    assert "Traceback" not in done.stderr
    assert "importing the network" not in done.stderr, "nothing has begun"


@pytest.mark.parametrize("options", [["--method", "nope"], ["--transfer-from", "nope"], []])
def test_what_is_refused_has_not_begun(tmp_path: Path, options: list[str]) -> None:
    model = tmp_path / "nets.py"
    if options:
        model.touch()
    done = fleet_tune_here("tune", f"{model}:make", "--out", str(tmp_path / "out"), *options)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("next: ")
    assert not (tmp_path / "out").exists()


def test_a_command_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    model = tmp_path / "nets.py"
    model.write_text("")
    done = fleet_tune_here("compile", f"{model}:make", "--records", str(tmp_path / "nope"), "--out", str(out))
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["nets.py"]


def test_what_was_there_or_is_written_stays(tmp_path: Path) -> None:
    mine, new, empty = tmp_path / "mine", tmp_path / "new", tmp_path / "empty"
    mine.mkdir()
    empty.mkdir()
    (mine / "notes").touch()
    with held_folder(mine):
        assert (mine / "run.lock").exists()
    with held_folder(empty):
        pass
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "empty",
        "mine",
        "mine/notes",
    ]
    with held_folder(new / "out"):
        (new / "out" / "records.db").touch()
    with held_folder(new / "out"):
        pass
    assert {path.name for path in (new / "out").iterdir()} == {"records.db", "run.lock"}


def test_a_lock_that_its_owner_removes_is_not_taken_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.lock"
    path.touch()
    flock = fcntl.flock

    def removed_first(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    lock = take_lock(path)
    try:
        assert path.read_text() == str(os.getpid())
        with pytest.raises(LockedError):
            take_lock(path)
    finally:
        os.close(lock)


def test_a_folder_on_a_network_file_system_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(out_folder, "network_drive", lambda path: "nfs4" if path == tmp_path else "")
    with caplog.at_level(logging.WARNING), held_folder(tmp_path):
        pass
    (record,) = caplog.records
    assert "network file system (nfs4)" in record.getMessage()
    assert "--out" in record.getMessage()
