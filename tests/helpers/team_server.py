"""A PostgreSQL server with a team's store, made and run by ``fleet-tune store serve``, and records for it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg

from fleet_tune.base.domain import Record, Task
from fleet_tune.base.records.sharing.postgres import TeamStore
from fleet_tune.base.records.sharing.shared import Source, shared_store
from fleet_tune.base.records.stores.origin import Effort, Origin
from fleet_tune.runs.shared_store.upkeep import versions_now
from fleet_tune.store_server.keys import put_key
from fleet_tune.store_server.server_folder import OWNER, ServerFolder
from tests.helpers.records import named_record
from tests.helpers.tasks import make_task

HERE = Origin('{"kind":"llvm"}', "a processor", 2, versions_now())
CONV, DENSE = make_task("conv", "zen5", flop=2e9), make_task("dense", "zen5")
START_SECS = 60.0


class Served:
    """The command, and the folder it serves."""

    def __init__(self, path: Path) -> None:
        self.folder = ServerFolder(path)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        command = ["store", "serve", str(self.folder.path), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fleet_tune", *command], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # the end of the file where it ends
        assert line.startswith(f"serving {self.folder.path} on 127.0.0.1:{self.port}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(START_SECS)

    def empty(self) -> None:
        """Without what others have left in the store; their keys stay."""
        with psycopg.connect(self.folder.key_of(OWNER), autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS fleet_tune CASCADE")
        TeamStore(self.folder.key_of(OWNER)).close()

    def address(self, name: str, records: int | None = None, connections: int | None = None) -> str:
        """Where the store is for who has this key, which is made with these limits or gets them."""
        put_key(self.folder, name, records, connections)
        return self.folder.key_of(name)

    @property
    def postgres_pid(self) -> int:
        return int((self.folder.data / "postmaster.pid").read_text().splitlines()[0])


def of(run_id: str, uid: str, cost_secs: float | None, decision: int = 1, task: Task = CONV) -> Record:
    record = named_record(uid, cost_secs, task_id=task.id, decisions=(decision,), trace='[["a trace"], []]')
    return dataclasses.replace(record, run_id=run_id)


def write(path: Path, run_id: str, *records: Record, probe_secs: float = 0.001) -> Path:
    """Write the store of a run, which gives it to a shared one."""
    with shared_store(path) as store:
        for task in (CONV, DENSE):
            store.put_task(task)
        store.put_run(run_id, {"zen5": HERE})
        store.put_efforts([Effort(CONV.id, run_id, 10.0, float("inf"))])
        store.probed("dev", "zen5", probe_secs)
        store.append(records)
    return path


def held(source: Source) -> list[Record]:
    return [record for page in source.pages() for record in page]


@contextlib.contextmanager
def emptied(served: Served) -> Iterator[TeamStore]:
    """The server without what others have left there."""
    served.empty()
    with TeamStore(served.address("alice")) as store:
        yield store
