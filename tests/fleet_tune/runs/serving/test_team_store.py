"""The store of a team on a real PostgreSQL server, which ``fleet-tune store serve`` makes and runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fleet_tune.cli import main as cli
from fleet_tune.config.retune_file import RetuneConfig, load_retune
from fleet_tune.domain import Record, Task
from fleet_tune.errors import RecordStoreError, RequestError, RetuneError, ServerError, StoreUnreachableError
from fleet_tune.records.sharing.postgres import TeamStore
from fleet_tune.records.sharing.shared import SharedReader, Source, Target, copy_records, shared_store
from fleet_tune.records.sharing.store_place import StorePlace, place_of
from fleet_tune.records.sharing.team import Met, Team, met
from fleet_tune.records.sharing.team_lock import TeamLock
from fleet_tune.records.stores.origin import Effort, Origin
from fleet_tune.records.stores.reader import UNIT
from fleet_tune.retuning.service import held as held_by_service
from fleet_tune.runs.reusing.sharing import Giving
from fleet_tune.runs.reusing.upkeep import versions_now
from fleet_tune.runs.serving.keys import keys, put_key, remove_key
from fleet_tune.runs.serving.server_folder import OWNER, POSTGRES_VARIABLE, ServerFolder, programs
from tests.helpers.records import named_record
from tests.helpers.tasks import make_task

pytestmark = pytest.mark.timeout(120)

HERE = Origin('{"kind":"llvm"}', "a processor", 2, versions_now())
CONV, DENSE = make_task("conv", "zen5", flop=2e9), make_task("dense", "zen5")
_START_SECS = 60.0


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
        return self.process.wait(_START_SECS)

    @property
    def postgres_pid(self) -> int:
        return int((self.folder.data / "postmaster.pid").read_text().splitlines()[0])


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    # Where we are root the server runs as another user, who does not reach pytest's own folders.
    path = Path(tempfile.mkdtemp(prefix="fleet-tune-store-"))
    path.chmod(0o755)
    server = Served(path / "team")
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.end()
        shutil.rmtree(path, ignore_errors=True)


def address(served: Served, name: str, **limits: int | None) -> str:
    put_key(served.folder, name, limits.get("records"), limits.get("connections"))
    return served.folder.key_of(name)


def of(run_id: str, uid: str, cost_secs: float | None, decision: int = 1, task: Task = CONV) -> Record:
    record = named_record(uid, cost_secs, task_id=task.id, decisions=(decision,), trace='[["a trace"], []]')
    return dataclasses.replace(record, run_id=run_id)


def write(path: Path, run_id: str, *records: Record, probe_secs: float = 0.001) -> Path:
    """What a run has in its own store, and gives to a shared one."""
    with shared_store(path) as store:
        for task in (CONV, DENSE):
            store.put_task(task)
        store.put_run(run_id, {"zen5": HERE})
        store.put_efforts([Effort(CONV.id, run_id, 10.0, float("inf"))])
        store.probed("dev", probe_secs)
        store.append(records)
    return path


def plain(records: list[Record]) -> list[Record]:
    return sorted((dataclasses.replace(each, seq=0) for each in records), key=lambda each: each.uid)


def held(source: Source) -> list[Record]:
    return [record for page in source.pages() for record in page]


# -- what every store is, on a server or in a file ---------------------------------------------------------------------


@contextlib.contextmanager
def emptied(served: Served) -> Iterator[TeamStore]:
    """The server without what others have left there."""
    with psycopg.connect(served.folder.key_of(OWNER), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS fleet_tune CASCADE")
    TeamStore(served.folder.key_of(OWNER)).close()
    with TeamStore(address(served, "alice")) as store:
        yield store


@pytest.fixture(params=["file", "server"])
def store(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[tuple[Target, Any]]:
    """Where records are copied to, and what gives them back."""
    if request.param == "file":
        with shared_store(tmp_path / "shared.db") as target:
            yield target, lambda: SharedReader(tmp_path / "shared.db")
        return
    with emptied(served) as target:
        yield target, lambda: target.since(0)


def test_records_of_runs_meet_once_each(store: tuple[Target, Any], tmp_path: Path) -> None:
    target, source = store
    records = [of("a", "1", 2e-3), of("a", "2", None, 2), of("a", "3", 1e-3, 3, DENSE)]
    own = write(tmp_path / "a.db", "a", *records)
    for expected in (3, 0):
        with SharedReader(own) as reader:
            copied = copy_records(reader, target)
        assert (copied.records, copied.cursor, copied.left_out) == (expected, 3, 0)
    found = source()
    assert plain(held(found)) == plain(records)
    assert [task.id for task in found.tasks()] == [CONV.id, DENSE.id]
    assert found.tasks()[0] == CONV
    assert found.run_origins() == {("a", "zen5"): HERE}
    assert found.efforts() == [(Effort(CONV.id, "a", 10.0, float("inf")), HERE)]
    assert [each.uid for each in held(found)] == ["1", "2", "3"], "in the order in which they came"


def test_seconds_are_counted_at_the_unit_that_was_given_first(store: tuple[Target, Any], tmp_path: Path) -> None:
    target, source = store
    with SharedReader(write(tmp_path / "a.db", "a", of("a", "1", 2e-3))) as reader:
        copy_records(reader, target)
    slow = write(tmp_path / "b.db", "b", of("b", "2", 2e-3, 2), probe_secs=0.002)
    with SharedReader(slow) as reader:
        copy_records(reader, target)
    assert target.unit("class zen5", 5.0) == 0.001
    assert source().unit_secs("dev", "zen5") == 0.001
    assert source().unit_secs("dev", "other") is None
    costs = {each.uid: each.measurement.cost_secs for each in held(source())}
    assert costs == pytest.approx({"1": 2e-3, "2": 1e-3})


def test_what_a_run_has_spent_is_replaced_and_a_made_up_name_gives_way(store: tuple[Target, Any]) -> None:
    target, source = store
    unnamed = dataclasses.replace(CONV.workload, name=f"workload {CONV.workload.hash[:8]}")
    target.put_task(dataclasses.replace(CONV, workload=unnamed))
    target.put_task(CONV)
    target.put_task(dataclasses.replace(CONV, workload=unnamed, weight=3))
    target.put_run("a", {"zen5": HERE})
    target.put_run("a", {"zen5": dataclasses.replace(HERE, threads=9)})
    for secs in (1.0, 7.0):
        target.put_efforts([Effort(CONV.id, "a", secs, 5.0)])
    assert target.add([of("a", "1", 1e-3), of("a", "1", 1e-3), of("a", "2", 2e-3, 2)]) == 2
    (task,) = source().tasks()
    assert (task.workload.name, task.weight) == (CONV.workload.name, 3)
    assert source().efforts() == [(Effort(CONV.id, "a", 7.0, 5.0), HERE)], "what a run depends on does not change"


# -- a team ------------------------------------------------------------------------------------------------------------


def test_who_reads_up_to_a_number_has_all_there_was(served: Served) -> None:
    with emptied(served) as reader:
        url = served.folder.key_of("alice")
        reader.put_task(CONV)
        reader.put_run("a", {"zen5": HERE})

        def add(writer: int) -> None:
            with TeamStore(url) as store:
                for at in range(10):
                    store.add([of("a", f"{writer}.{at}.{part}", 1e-3, at) for part in range(3)])

        writers = [threading.Thread(target=add, args=(number,)) for number in range(4)]
        for each in writers:
            each.start()
        seen: list[str] = []
        cursor, deadline = 0, time.monotonic() + _START_SECS
        while len(seen) < 120 and time.monotonic() < deadline:
            for page in reader.since(cursor).pages():
                seen += [record.uid for record in page]
                cursor = page[-1].seq
        for each in writers:
            each.join()
        assert len(seen) == len(set(seen)) == 120


def test_two_users_share_what_they_find(served: Served, tmp_path: Path) -> None:
    with emptied(served):
        pass
    alice = Team(StorePlace(tmp_path / "alice.db", address(served, "alice")))
    bob = Team(StorePlace(tmp_path / "bob.db", address(served, "bob")))
    own = write(tmp_path / "run" / "records.db", "a", of("a", "1", 2e-3), of("a", "2", 1e-3, 2))
    Giving(own, tmp_path / "alice.db").give()
    assert (alice.meet().given, bob.meet().taken) == (2, 2)
    write(tmp_path / "bob.db", "b", of("b", "3", 5e-4, 3))
    assert bob.meet().given == 1
    again = alice.meet()
    assert (again.taken, again.given) == (1, 0)
    assert alice.meet() == bob.meet()
    for name in ("alice", "bob"):
        with SharedReader(tmp_path / f"{name}.db") as reader:
            assert sorted(record.uid for record in reader) == ["1", "2", "3"]
            (best, *_) = reader.last_words(CONV.id, reader.numbers_of(HERE), 1)
            assert best.uid == "3"


def test_a_run_goes_on_without_the_server_and_hands_over_later(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with emptied(served):
        pass
    place = StorePlace(tmp_path / "copy.db", address(served, "alice"))
    write(place.path, "a", of("a", "1", 1e-3))
    Team(place).meet()
    assert served.end() == 128 + signal.SIGTERM
    with pytest.raises(StoreUnreachableError, match="does not answer: Connection refused"):
        Team(place).meet(hurry=True)
    with caplog.at_level(logging.WARNING):
        assert met(place) is not None
    (line,) = caplog.messages
    assert "the copy of its records on this machine is used" in line
    assert place.server.rpartition("@")[0].rpartition(":")[2] not in line, "a password is shown to nobody"
    write(place.path, "b", of("b", "2", 5e-4, 2))
    served.start()
    assert Team(place).meet().given == 1
    with TeamStore(place.server) as store:
        assert [record.uid for record in held(store.since(0))] == ["1", "2"]


def test_what_one_key_spoils_ends_nobodys_run(served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with emptied(served) as store:
        store._connection.execute("INSERT INTO fleet_tune.meta VALUES (%s, 'nonsense')", (f"{UNIT}class zen5",))
        store.put_task(DENSE)
        store._connection.execute("UPDATE fleet_tune.tasks SET weight = 0")
        store.put_run("bad", {"zen5": HERE})
        store.put_efforts([Effort(CONV.id, "bad", float("nan"), 1.0)])
        insert = "INSERT INTO fleet_tune.records (uid, workload, device_class, body) VALUES (%s, %s, 'zen5', %s)"
        bomb = zlib.compress(bytes(64 * 2**20))
        store._connection.execute(insert, ("x", DENSE.workload.hash, bomb))
        store.add([of("bad", "y", 1e-3, task=DENSE)])
    first = StorePlace(tmp_path / "copy.db", address(served, "alice"))
    write(first.path, "a", of("a", "1", 1e-3))
    assert Team(first).meet() == Met(0, 1)
    other = StorePlace(tmp_path / "other.db", address(served, "bob"))
    caplog.clear()
    team = Team(other)
    assert team.meet() == Met(1, 0)
    assert team.meet() == Met(0, 0)
    (line,) = caplog.messages
    assert line.endswith("4 wrong rows are set aside")
    with SharedReader(other.path) as reader:
        assert [effort.run_id for effort, _ in reader.efforts()] == ["a"]


def test_a_server_that_is_another_one_gets_everything(served: Served, tmp_path: Path) -> None:
    with emptied(served):
        pass
    place = StorePlace(tmp_path / "copy.db", address(served, "alice"))
    write(place.path, "a", of("a", "1", 1e-3), of("a", "2", 1e-3, 2))
    assert Team(place).meet().given == 2
    with emptied(served) as store:
        assert Team(place).meet().given == 2
        assert len(held(store.since(0))) == 2


def backup(served: Served) -> str:
    """What PostgreSQL's own program writes of the server's tables."""
    command = [str(programs() / "pg_dump"), "--schema", "fleet_tune", served.folder.key_of(OWNER)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_START_SECS).stdout


def restore(served: Served, dump: str) -> None:
    owner = served.folder.key_of(OWNER)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("DROP SCHEMA fleet_tune CASCADE")
    command = [str(programs() / "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", owner]
    subprocess.run(command, check=True, input=dump, stdout=subprocess.DEVNULL, text=True, timeout=_START_SECS)


def test_a_server_that_was_restored_from_a_backup_and_has_grown_since_gets_what_it_lacks(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with emptied(served):
        pass
    places = {name: StorePlace(tmp_path / f"{name}.db", address(served, name)) for name in ("alice", "bob", "carla")}
    write(places["alice"].path, "a", of("a", "1", 4e-3), of("a", "2", 3e-3, 2))
    assert Team(places["alice"]).meet() == Met(0, 2)
    dump = backup(served)
    # What comes after the backup is lost on the server: some of it alice has handed over, some she has taken.
    write(places["bob"].path, "b", of("b", "3", 2e-3, 3))
    assert Team(places["bob"]).meet() == Met(2, 1)
    write(places["alice"].path, "c", of("c", "4", 2e-3, 4))
    assert Team(places["alice"]).meet() == Met(1, 1)
    restore(served, dump)
    # Another one, who knows nothing of it, adds as many: the numbers that were lost are given again.
    write(places["carla"].path, "d", of("d", "5", 2e-3, 5), of("d", "6", 1e-3, 6))
    assert Team(places["carla"]).meet() == Met(2, 2)
    caplog.clear()
    assert Team(places["bob"]).meet(with_efforts=False) == Met(2, 1)
    assert Team(places["alice"]).meet() == Met(2, 1)
    assert [line for line in caplog.messages if "restored from a backup: it is read anew" in line] == caplog.messages
    assert len(caplog.messages) == 2
    assert Team(places["bob"]).meet() == Met(1, 0), "what alice alone had"
    assert Team(places["alice"]).meet() == Met(0, 0)
    assert Team(places["carla"]).meet() == Met(2, 0)
    assert len(caplog.messages) == 2
    for place in places.values():
        with SharedReader(place.path) as reader:
            assert sorted(record.uid for record in reader) == ["1", "2", "3", "4", "5", "6"]
            assert sorted(effort.run_id for effort, _ in reader.efforts()) == ["a", "b", "c", "d"]
    with TeamStore(places["alice"].server) as store:
        found = store.since(0)
        assert sorted(record.uid for record in held(found)) == ["1", "2", "3", "4", "5", "6"]
        assert sorted(effort.run_id for effort, _ in found.efforts()) == ["a", "b", "c", "d"]


def test_what_was_removed_is_not_handed_over_again_and_counts_for_no_quota(served: Served, tmp_path: Path) -> None:
    with emptied(served):
        pass
    place = StorePlace(tmp_path / "copy.db", address(served, "alice", records=2))
    write(place.path, "a", of("a", "1", 1e-3), of("a", "2", 2e-3, 2))
    assert Team(place).meet() == Met(0, 2)
    with TeamStore(served.folder.key_of(OWNER)) as store:
        assert store.remove(["2", "none"]) == 1
        assert store.remove(["2"]) == 0
    assert Team(place).meet() == Met(0, 0), "a store whose records were removed is no older one"
    with shared_store(place.path) as copy:  # as one that forgot where it was
        copy.annotate({f"given to {_id_of(place)}": "0"})
    assert Team(place).meet() == Met(0, 0)
    write(place.path, "b", of("b", "3", 1e-3, 3))
    assert Team(place).meet() == Met(0, 1)
    (found,) = [each for each in keys(served.folder) if each.name == "alice"]
    assert (found.records, found.most_records) == (2, 2)
    with TeamStore(place.server) as store:
        assert [record.uid for record in held(store.since(0))] == ["1", "3"]


def _id_of(place: StorePlace) -> str:
    with TeamStore(place.server) as store:
        return store.id


def test_a_meeting_costs_what_is_new(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with emptied(served):
        pass
    place = StorePlace(tmp_path / "copy.db", address(served, "alice"))
    write(place.path, "a", of("a", "1", 1e-3), of("a", "2", 1e-3, 2, DENSE))
    team = Team(place)
    assert (team.meet(), team.meet()) == (Met(0, 2), Met(0, 0))
    looked_at: list[str] = []
    written: list[object] = []
    rows, turn = TeamStore._rows, TeamStore._turn

    def counted(store: TeamStore, query: str, *values: object) -> list[Any]:
        found = rows(store, query, *values)
        looked_at.extend([query.partition(" FROM ")[2].partition(" ")[0]] * len(found))
        return found

    def told(store: TeamStore) -> Any:
        written.append(store)
        return turn(store)

    monkeypatch.setattr(TeamStore, "_rows", counted)
    monkeypatch.setattr(TeamStore, "_turn", told)
    assert team.meet(with_efforts=False) == Met(0, 0)
    assert not written
    tables = {name for name in looked_at if name.startswith("fleet_tune.")}
    assert tables == {"fleet_tune.meta", "fleet_tune.records"}
    assert looked_at.count("fleet_tune.records") == 3, "the last one: whether it is there, and twice which it is"
    write(place.path, "b", of("b", "3", 1e-3, 3))
    assert team.meet() == Met(0, 1)
    assert len(written) == 5, "a task, a run, the unit of its class, a record, what that run has spent and no other"


def test_keys_quotas_and_what_they_refuse(served: Served) -> None:
    with emptied(served):
        pass
    path = put_key(served.folder, "carol", 2, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    url = place_of(f"@{path}").server
    with TeamStore(url) as store:
        store.put_task(CONV)
        assert store.add([of("a", "1", 1e-3), of("a", "2", 2e-3)]) == 2
        with pytest.raises(RecordStoreError, match=r"the quota of the store .* is used up: the key carol may have 2"):
            store.add([of("a", "3", 1e-3)])
        with pytest.raises(RecordStoreError, match="refuses this: permission denied") as caught:
            store.remove(["1"])
        assert not isinstance(caught.value, StoreUnreachableError)
        with pytest.raises(RecordStoreError, match="too many connections"):
            TeamStore(url)
    (found,) = [each for each in keys(served.folder) if each.name == "carol"]
    assert (found.records, found.most_records, found.connections) == (2, 2, 1)
    put_key(served.folder, "carol", None, None)
    assert served.folder.key_of("carol") == url, "other limits, the same key"
    with TeamStore(url) as store:
        assert store.add([of("a", "3", 1e-3)]) == 1
    user, _, rest = url.rpartition("@")
    with pytest.raises(RecordStoreError, match="refuses this key"):
        TeamStore(f"{user}x@{rest}")
    with pytest.raises(RecordStoreError, match="refuses this key"):
        TeamStore(f"{url.rpartition('/')[0]}/postgres")
    remove_key(served.folder, "carol")
    with pytest.raises(RecordStoreError, match="refuses this key"):
        TeamStore(url)
    with pytest.raises(ServerError, match="no name of a key"):
        put_key(served.folder, 'x"; DROP', None, None)
    path.write_text(url)
    path.chmod(0o644)
    with pytest.raises(RequestError, match="others may read"):
        place_of(f"@{path}")
    path.unlink()


def test_a_key_that_is_removed_ends_its_sessions(served: Served) -> None:
    with emptied(served), TeamStore(address(served, "dora")) as store:
        store.put_task(CONV)
        remove_key(served.folder, "dora")
        with pytest.raises(StoreUnreachableError):
            store.last()
    assert "dora" not in [each.name for each in keys(served.folder)]
    with TeamStore(address(served, "dora")) as store:
        assert store.add([of("a", "1", 1e-3)]) == 1, "the name is free again"


def test_one_service_of_a_team_keeps_networks_tuned_with_its_store(served: Served) -> None:
    now = 0.0
    with (
        emptied(served),
        contextlib.closing(TeamLock(address(served, "alice"), lambda: now)) as first,
        contextlib.closing(TeamLock(address(served, "bob"), lambda: now)) as second,
    ):
        assert (first.other(), second.other(), first.other()) == ("", "alice", "")
        # Its connection is cut, and another one is faster.
        with psycopg.connect(served.folder.key_of(OWNER), autocommit=True) as owner:
            owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'alice'")
        deadline = time.monotonic() + _START_SECS
        while second.other():
            assert time.monotonic() < deadline
        assert first.other() == "", "the server may not know yet that it was cut"
        now = 121.0
        assert first.other() == "bob"
        second.close()
        assert (first.other(), second.other()) == ("", "alice")


def test_a_service_ends_where_another_one_has_the_teams_store(served: Served, tmp_path: Path) -> None:
    def config(name: str) -> RetuneConfig:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "fleet.toml").write_text('[[device]]\nname = "a"\nconnect = "a:1"\n')
        text = f'folder = "kept"\nfleet = "fleet.toml"\nstore = "{address(served, name)}"\n'
        (folder / "retune.toml").write_text(f'{text}[[network]]\nname = "n"\npath = "n.onnx"\ncalls_per_day = 1\n')
        return load_retune(folder / "retune.toml")

    with emptied(served), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "alice"))
        first = config("alice")
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "bob"))  # on another machine
        second = config("bob")
        with held_by_service(first) as alone:
            alone()
            refused = r"another service \(with the key alice\) .* postgresql://bob@"
            with pytest.raises(RetuneError, match=refused), held_by_service(second):
                pass
        with held_by_service(second) as alone:
            alone()


_AS_BEFORE = """
CREATE OR REPLACE FUNCTION fleet_tune.check_quota() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = fleet_tune AS $$
DECLARE most bigint;
BEGIN
    SELECT records INTO most FROM quotas WHERE role = session_user;
    RETURN NULL;
END $$
"""
_GRAB = """
CREATE FUNCTION pg_temp.grab() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    ALTER ROLE alice SUPERUSER;
    RETURN 1000;
END $$;
CREATE TEMP VIEW quotas AS SELECT session_user::text AS role, pg_temp.grab() AS records;
CREATE TEMP VIEW records AS SELECT session_user::text AS added_by, pg_temp.grab() AS records;
"""


@pytest.mark.parametrize("version", ["this", "before"])
def test_a_key_does_not_borrow_the_owners_rights(served: Served, version: str) -> None:
    with emptied(served):
        pass
    owner, url = served.folder.key_of(OWNER), address(served, "alice")
    with psycopg.connect(owner, autocommit=True) as connection:
        if version == "before":
            connection.execute(_AS_BEFORE)
            TeamStore(url).close()  # whose it is not cannot mend it, and goes on
            TeamStore(owner).close()
        connection.execute("GRANT TEMP ON DATABASE fleet_tune TO alice")  # as everybody has it on other servers
        try:
            with TeamStore(url) as store:
                store._connection.execute(_GRAB)
                store.put_task(CONV)
                assert store.add([of("a", "1", 1e-3)]) == 1
            query = "SELECT rolsuper FROM pg_roles WHERE rolname = 'alice'"
            assert connection.execute(query).fetchone() == (False,)
        finally:
            connection.execute("ALTER ROLE alice NOSUPERUSER")
            connection.execute("REVOKE TEMP ON DATABASE fleet_tune FROM alice")


def test_the_commands_of_records_reach_a_teams_store(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with emptied(served):
        pass
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    url, owner = address(served, "alice"), served.folder.key_of(OWNER)
    own = write(tmp_path / "run.db", "a", of("a", "1", 2e-3), of("a", "2", 1e-3, 2))
    assert cli.main(["records", "merge", str(own), "--store", url]) == 0
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other"))
    capsys.readouterr()
    assert cli.main(["records", "top", "--store", owner, "--json"]) == 0
    (conv,) = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    assert (conv["records"], conv["best_secs"]) == (2, pytest.approx(1e-3))
    assert cli.main(["records", "prune", "--keep-best", "1", "--store", url]) == 2
    assert "permission denied" in capsys.readouterr().err
    assert cli.main(["records", "prune", "--keep-best", "1", "--store", owner]) == 0
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    assert cli.main(["records", "stats", "--store", url]) == 0
    with TeamStore(url) as store:
        assert [record.uid for record in held(store.since(0))] == ["2"], "what was removed does not come back"


def test_the_server_ends_with_the_command(served: Served) -> None:
    pid = served.postgres_pid
    served.end(signal.SIGKILL)
    deadline = time.monotonic() + _START_SECS
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")
    served.start()
    assert address(served, "alice")


def test_one_that_is_ended_while_it_makes_a_server_is_no_trouble_for_the_next() -> None:
    with tempfile.TemporaryDirectory(prefix="fleet-tune-store-") as text:
        path = Path(text)
        path.chmod(0o755)  # as of the one that all share
        server = Served(path / "team")
        command = [sys.executable, "-m", "fleet_tune", "store", "serve", str(server.folder.path), "--port"]
        for number in (signal.SIGTERM, signal.SIGKILL):
            process = subprocess.Popen([*command, str(server.port)])
            deadline = time.monotonic() + _START_SECS
            while not list(server.folder.path.glob(".making-*/data/*")) and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(number)
            assert process.wait(_START_SECS) == (143 if number == signal.SIGTERM else -9)
            assert bool(list(server.folder.path.glob(".making-*"))) == (number == signal.SIGKILL)
            assert not server.folder.is_made
        server.start()
        try:
            assert not list(server.folder.path.glob(".making-*"))
            other = subprocess.run([*command, "1"], capture_output=True, text=True, timeout=_START_SECS)
            assert other.returncode == 2
            said = f"error: {server.folder.path} is served already, by process {server.process.pid}"
            assert other.stderr.splitlines()[0] == said
            assert server.folder.address[1] == server.port
        finally:
            server.end()


def test_what_a_server_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(POSTGRES_VARIABLE, str(tmp_path))
    assert cli.main(["store", "serve", str(tmp_path / "team")]) == 2
    assert "initdb and postgres were not found" in capsys.readouterr().err
    assert not (tmp_path / "team").exists()
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert cli.main(["records", "top", "--store", "postgresql://nobody@127.0.0.1:1/x"]) == 2
    assert "pip install 'fleet-tune[postgres]'" in capsys.readouterr().err
