"""Locks that other processes hold: who waits says for whom, also where the holder was stopped."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fleet_tune.base import waits
from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.processes import HostProcess, process_text, writers_of
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, take_lock, wait_for_lock
from fleet_tune.base.records.stores.store import RecordStore, locked_store
from fleet_tune.base.waits import WAITS
from tests.helpers.waiting import wait_until

LOCKER = """
import sys
from pathlib import Path
from fleet_tune.base.records.files.lock_file import take_lock
take_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""
WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holding(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.communicate(timeout=10)


def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGSTOP)
    wait_until(HostProcess.of(child.pid).stands_still, "it is stopped")


def test_who_waits_says_for_whom_until_the_lock_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "TELL_SECS", 0.0)
    path, taken = tmp_path / "lock", threading.Event()

    def take() -> None:
        os.close(wait_for_lock(path, "the store", 60.0))
        taken.set()

    def told() -> list[str]:
        return [wait.text for wait in WAITS.waits if wait.what == "the store"]

    with holding(LOCKER, path) as holder:
        threading.Thread(target=take).start()
        text = f"the store, which {process_text(holder.pid)} has"
        wait_until(lambda: told() == [text], "the wait is told")
        stop(holder)
        wait_until(lambda: any("stopped) has" in each for each in told()), "it is told that the holder is stopped")
        assert not taken.is_set()
    assert taken.wait(60.0)
    assert told() == []


def test_a_stopped_holder_is_named_with_what_to_do(tmp_path: Path) -> None:
    with holding(LOCKER, tmp_path / "records.db.lock") as holder:
        stop(holder)
        with pytest.raises(LockedError) as caught:
            take_lock(tmp_path / "records.db.lock")
        stopped = f"process {holder.pid}, which is stopped: kill -CONT {holder.pid} continues it"
        assert caught.value.who == stopped
        with pytest.raises(RecordStoreError, match=f"another run \\({stopped}\\) is writing to"):
            RecordStore(tmp_path / "records.db")
        with (
            pytest.raises(RecordStoreError, match=f"another program \\({stopped}\\) has locked"),
            locked_store(tmp_path / "records.db", 0.05),
        ):
            pytest.fail("it was locked")


def test_who_writes_to_a_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    RecordStore(path).close()
    with RecordStore(path, shared=True, busy_secs=0.05) as store, holding(WRITER, path) as writer:
        stop(writer)
        files = [path, path.with_name("records.db-wal"), path.with_name("records.db-shm")]
        assert writers_of(files) == [writer.pid]
        with pytest.raises(RecordStoreError, match=f"another program \\(process {writer.pid}, which is stopped"):
            store.put_run("run", {})
    with closing(sqlite3.connect(path)):
        assert writers_of(files) == []


def test_a_released_lock_is_free_while_a_forked_process_has_its_descriptor(tmp_path: Path) -> None:
    """A fork in another thread copies it, until the child starts its program."""
    lock = take_lock(tmp_path / "lock")
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        release_lock(lock)
        release_lock(take_lock(tmp_path / "lock"))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_processes_are_described(tmp_path: Path) -> None:
    with holding(LOCKER, tmp_path / "lock") as child:
        process = HostProcess.of(child.pid)
        assert process.is_there()
        assert not process.stands_still()
        assert process_text(child.pid).startswith(f"process {child.pid} (python")
        assert process_text(child.pid, "device cpu of run 1") == f"process {child.pid} (device cpu of run 1)"
        stop(child)
        assert process_text(child.pid, "device cpu of run 1") == f"process {child.pid} (device cpu of run 1, stopped)"
        child.send_signal(signal.SIGCONT)
        wait_until(lambda: not process.stands_still(), "it goes on")
    assert not process.is_there()
    assert not process.stands_still()
    assert not HostProcess(os.getpid(), "0", process.namespace).is_there(), "another process of that number"
