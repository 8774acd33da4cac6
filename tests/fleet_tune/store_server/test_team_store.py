"""The store of a team on a real PostgreSQL server: what its copies and the server have after they met."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fleet_tune.base.errors import StoreUnreachableError
from fleet_tune.base.records.sharing import postgres
from fleet_tune.base.records.sharing.postgres import TeamStore
from fleet_tune.base.records.sharing.shared import SharedReader, shared_store
from fleet_tune.base.records.sharing.store_place import StorePlace
from fleet_tune.base.records.sharing.team import SyncResult, Team, sync_team
from fleet_tune.base.records.stores.origin import Effort
from fleet_tune.base.records.stores.stored_speeds import UNIT
from fleet_tune.base.waits import WAITS
from fleet_tune.runs.shared_store.exchange import StoreUploader
from fleet_tune.store_server.keys import keys
from fleet_tune.store_server.server_folder import OWNER, programs
from tests.helpers.team_server import CONV, DENSE, HERE, START_SECS, Served, emptied, held, of, write
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


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
        cursor, deadline = 0, time.monotonic() + START_SECS
        while len(seen) < 120 and time.monotonic() < deadline:
            for page in reader.since(cursor).pages():
                seen += [record.uid for record in page]
                cursor = page[-1].seq
        for each in writers:
            each.join()
        assert len(seen) == len(set(seen)) == 120


def test_a_client_that_is_stopped_in_its_turn_is_waited_for_with_a_word_and_passed_over(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_STOPPED_SECS", 4)
    alice, bob = served.address("alice"), served.address("bob")
    with emptied(served), TeamStore(alice) as stopped, TeamStore(bob) as other:
        writing = threading.Thread(target=other.put_task, args=(CONV,))

        def hold() -> None:
            with stopped._turn():
                writing.start()
                what = "the turn to write to the store"
                wait_until(lambda: any(each.what.startswith(what) for each in WAITS.waits), "people hear of it")
                writing.join(START_SECS)

        with pytest.raises(StoreUnreachableError, match="it was stopped"):
            hold()
        assert not writing.is_alive()
        assert [task.id for task in other.since(0).tasks()] == [CONV.id]


def test_two_users_share_what_they_find(served: Served, tmp_path: Path) -> None:
    served.empty()
    alice = Team(StorePlace(tmp_path / "alice.db", served.address("alice")))
    bob = Team(StorePlace(tmp_path / "bob.db", served.address("bob")))
    own = write(tmp_path / "run" / "records.db", "a", of("a", "1", 2e-3), of("a", "2", 1e-3, 2))
    StoreUploader(own, tmp_path / "alice.db").give()
    assert (alice.sync().given, bob.sync().taken) == (2, 2)
    write(tmp_path / "bob.db", "b", of("b", "3", 5e-4, 3))
    assert bob.sync().given == 1
    again = alice.sync()
    assert (again.taken, again.given) == (1, 0)
    assert alice.sync() == bob.sync()
    for name in ("alice", "bob"):
        with SharedReader(tmp_path / f"{name}.db") as reader:
            assert sorted(record.uid for record in reader) == ["1", "2", "3"]
            (best, *_) = reader.last_words(CONV.id, reader.numbers_of(HERE), 1)
            assert best.uid == "3"


def test_a_run_goes_on_without_the_server_and_hands_over_later(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served.empty()
    place = StorePlace(tmp_path / "copy.db", served.address("alice"))
    write(place.path, "a", of("a", "1", 1e-3))
    Team(place).sync()
    assert served.end() == 128 + signal.SIGTERM
    with pytest.raises(StoreUnreachableError, match="does not answer: Connection refused"):
        Team(place).sync(hurry=True)
    with caplog.at_level(logging.WARNING):
        assert sync_team(place) is not None
    (line,) = caplog.messages
    assert "the copy of its records on this machine is used" in line
    assert place.server.rpartition("@")[0].rpartition(":")[2] not in line, "a password is shown to nobody"
    write(place.path, "b", of("b", "2", 5e-4, 2))
    served.start()
    assert Team(place).sync().given == 1
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
    first = StorePlace(tmp_path / "copy.db", served.address("alice"))
    write(first.path, "a", of("a", "1", 1e-3))
    assert Team(first).sync() == SyncResult(0, 1)
    other = StorePlace(tmp_path / "other.db", served.address("bob"))
    caplog.clear()
    team = Team(other)
    assert team.sync() == SyncResult(1, 0)
    assert team.sync() == SyncResult(0, 0)
    (line,) = caplog.messages
    assert line.endswith("4 wrong rows are set aside")
    with SharedReader(other.path) as reader:
        assert [effort.run_id for effort, _ in reader.efforts()] == ["a"]


def test_a_server_that_is_another_one_gets_everything(served: Served, tmp_path: Path) -> None:
    served.empty()
    place = StorePlace(tmp_path / "copy.db", served.address("alice"))
    write(place.path, "a", of("a", "1", 1e-3), of("a", "2", 1e-3, 2))
    assert Team(place).sync().given == 2
    with emptied(served) as store:
        assert Team(place).sync().given == 2
        assert len(held(store.since(0))) == 2


def backup(served: Served) -> str:
    """What PostgreSQL's own program writes of the server's tables."""
    command = [str(programs() / "pg_dump"), "--schema", "fleet_tune", served.folder.key_of(OWNER)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=START_SECS).stdout


def restore(served: Served, dump: str) -> None:
    owner = served.folder.key_of(OWNER)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("DROP SCHEMA fleet_tune CASCADE")
    command = [str(programs() / "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", owner]
    subprocess.run(command, check=True, input=dump, stdout=subprocess.DEVNULL, text=True, timeout=START_SECS)


def test_a_server_that_was_restored_from_a_backup_and_has_grown_since_gets_what_it_lacks(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served.empty()
    places = {name: StorePlace(tmp_path / f"{name}.db", served.address(name)) for name in ("alice", "bob", "carla")}
    write(places["alice"].path, "a", of("a", "1", 4e-3), of("a", "2", 3e-3, 2))
    assert Team(places["alice"]).sync() == SyncResult(0, 2)
    dump = backup(served)
    # What comes after the backup is lost on the server: some of it alice has handed over, some she has taken.
    write(places["bob"].path, "b", of("b", "3", 2e-3, 3))
    assert Team(places["bob"]).sync() == SyncResult(2, 1)
    write(places["alice"].path, "c", of("c", "4", 2e-3, 4))
    assert Team(places["alice"]).sync() == SyncResult(1, 1)
    restore(served, dump)
    # Another one, who knows nothing of it, adds as many: the numbers that were lost are given again.
    write(places["carla"].path, "d", of("d", "5", 2e-3, 5), of("d", "6", 1e-3, 6))
    assert Team(places["carla"]).sync() == SyncResult(2, 2)
    caplog.clear()
    assert Team(places["bob"]).sync(with_efforts=False) == SyncResult(2, 1)
    assert Team(places["alice"]).sync() == SyncResult(2, 1)
    assert all("as after a restored backup: it is read anew" in line for line in caplog.messages)
    assert len(caplog.messages) == 2
    assert Team(places["bob"]).sync() == SyncResult(1, 0), "what alice alone had"
    assert Team(places["alice"]).sync() == SyncResult(0, 0)
    assert Team(places["carla"]).sync() == SyncResult(2, 0)
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
    served.empty()
    place = StorePlace(tmp_path / "copy.db", served.address("alice", records=2))
    write(place.path, "a", of("a", "1", 1e-3), of("a", "2", 2e-3, 2))
    assert Team(place).sync() == SyncResult(0, 2)
    with TeamStore(served.folder.key_of(OWNER)) as store:
        assert store.remove(["2", "none"]) == 1
        assert store.remove(["2"]) == 0
    assert Team(place).sync() == SyncResult(0, 0), "a store whose records were removed is no older one"
    with shared_store(place.path) as copy:  # as one that forgot where it was
        copy.annotate({f"given to {_id_of(place)}": "0"})
    assert Team(place).sync() == SyncResult(0, 0)
    write(place.path, "b", of("b", "3", 1e-3, 3))
    assert Team(place).sync() == SyncResult(0, 1)
    (found,) = [each for each in keys(served.folder) if each.name == "alice"]
    assert (found.records, found.most_records) == (2, 2)
    with TeamStore(place.server) as store:
        assert [record.uid for record in held(store.since(0))] == ["1", "3"]


def _id_of(place: StorePlace) -> str:
    with TeamStore(place.server) as store:
        return store.id


def test_a_meeting_costs_what_is_new(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.empty()
    place = StorePlace(tmp_path / "copy.db", served.address("alice"))
    write(place.path, "a", of("a", "1", 1e-3), of("a", "2", 1e-3, 2, DENSE))
    team = Team(place)
    assert (team.sync(), team.sync()) == (SyncResult(0, 2), SyncResult(0, 0))
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
    assert team.sync(with_efforts=False) == SyncResult(0, 0)
    assert not written
    tables = {name for name in looked_at if name.startswith("fleet_tune.")}
    assert tables == {"fleet_tune.meta", "fleet_tune.records"}
    assert looked_at.count("fleet_tune.records") == 3, "the last one: whether it is there, and twice which it is"
    write(place.path, "b", of("b", "3", 1e-3, 3))
    assert team.sync() == SyncResult(0, 1)
    assert len(written) == 5, "a task, a run, the unit of its class, a record, what that run has spent and no other"
