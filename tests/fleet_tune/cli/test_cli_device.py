"""``fleet-tune device list|check|drain|resume|retire``: what they print, what they keep, how mistakes are told."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from fleet_tune.base.device_state import Admin, Connectivity, DeviceEvent, DeviceState, Health, Lease
from fleet_tune.base.records.orders import FleetOrders, orders_path
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.cli.main import main


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text('[[device]]\nname = "a"\n[[device]]\nname = "b"\nconnect = "10.0.0.7:9090"\n')
    return path


def test_a_fleet_that_no_run_has_used_is_listed_as_unknown(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device", "list", str(fleet), "--json"]) == 0
    captured = capsys.readouterr()
    assert "no run has used this fleet file yet" in captured.err
    listed = json.loads(captured.out)
    assert [(each["device"], each["connectivity"], each["health"], each["admin"]) for each in listed["devices"]] == [
        ("a", "unknown", "unknown", "active"),
        ("b", "unknown", "unknown", "active"),
    ]
    assert (listed["events"], listed["records"]) == ([], None)


def test_orders_are_kept_told_and_listed_with_their_reason(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device", "drain", str(fleet), "a", "--reason", "new fan"]) == 0
    assert "a: drained" in capsys.readouterr().out
    assert main(["device", "drain", str(fleet), "a"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["device", "retire", str(fleet), "b", "a"]) == 0
    assert main(["device", "list", str(fleet)]) == 0
    out = capsys.readouterr().out
    assert "retired" in out
    assert main(["device", "drain", str(fleet), "a"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["device", "resume", str(fleet), "a", "--reason", "repaired"]) == 0
    given = FleetOrders(orders_path(fleet)).since(0)
    assert [(order.device_id, order.admin, order.reason) for order in given] == [
        ("a", Admin.DRAINING, "new fan"),
        ("b", Admin.RETIRED, ""),
        ("a", Admin.RETIRED, ""),
        ("a", Admin.ACTIVE, "repaired"),
    ]
    main(["device", "list", str(fleet), "--json"])
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(each["admin"], each["why"]) for each in listed["devices"]] == [
        ("active", "ordered: active (repaired)"),
        ("retired", "ordered: retired"),
    ]


def test_the_last_runs_states_and_events_are_listed(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "out" / "records.db"
    leased = DeviceState(Connectivity.ONLINE, Health.GOOD, Admin.ACTIVE, Lease("r1", 4e9, 7))
    lost = DeviceState(Connectivity.OFFLINE, Health.SUSPECT, lease=Lease(epoch=3), losses=("",))
    with RecordStore(records) as store:
        store.append_device_events(
            [
                DeviceEvent("a", "r1", "joined", "it answers", leased, 1.0),
                DeviceEvent("b", "r1", "lost", "no route to host", lost, 2.0),
                DeviceEvent("a", "r1", "leased", "leased to run r1 for 900 s", leased, 3.0),
                DeviceEvent("elsewhere", "r1", "lost", "of another fleet", lost, 4.0),
            ]
        )
    FleetOrders(orders_path(fleet)).note_run("r1", records)
    assert main(["device", "list", str(fleet), "--json"]) == 0
    captured = capsys.readouterr()
    listed = json.loads(captured.out)
    a, b = listed["devices"]
    assert (a["connectivity"], a["health"], a["lease"]) == (
        "online",
        "good",
        {"owner": "r1", "deadline_unix_secs": 4e9, "epoch": 7},
    )
    assert (b["connectivity"], b["health"], b["why"]) == ("offline", "suspect", "no route to host")
    assert [event["reason"] for event in listed["events"]] == ["it answers", "no route to host"]
    assert listed["records"] == str(records)
    for text in ("no route to host", "run r1 until", "free (epoch 3)", "lost"):
        assert text in captured.err
    assert main(["device", "list", str(fleet), "--out", str(tmp_path / "out"), "--events", "0"]) == 0
    assert "no route to host" in capsys.readouterr().out  # why b is as it is; no events


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list", "missing.toml"], "cannot read the fleet file missing.toml"),
        (["drain", "{fleet}", "c"], "has no device 'c'"),
        (["check", "{fleet}", "c"], "has no device 'c'"),
        (["drain", "{fleet}"], "Missing argument 'DEVICE...'"),
        (["list", "{fleet}", "--out", "nowhere"], "no such record database"),
        (["list", "{fleet}", "--events", "-1"], "--events"),
    ],
)
def test_mistakes_are_told_in_two_lines(
    fleet: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["device", *[each.format(fleet=fleet) for each in arguments]]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "next"]
    assert told in lines[0]


def test_a_file_of_orders_that_is_something_else_is_told(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(orders_path(fleet)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    assert main(["device", "drain", str(fleet), "a"]) == 2
    assert "fleet.orders.db" in capsys.readouterr().err


def test_a_check_tells_what_answers_and_what_does_not(
    tmp_path: Path, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        f'[[device]]\nname = "here"\nthreads = {len(os.sched_getaffinity(0))}\n'
        f'[[device]]\nname = "gone"\nconnect = "127.0.0.1:{free_port}"\n'
    )
    assert main(["device", "check", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    here, gone = json.loads(captured.out)["devices"]
    assert (here["state"], gone["state"]) == ("good", "lost")
    assert here["probe_secs"] > 0 < here["ping_secs"]
    assert here["fingerprint"]["abstraction"]["peak_flops"] > 0
    assert str(free_port) in gone["detail"]
    error = next(line for line in captured.err.splitlines() if line.startswith("error:"))
    assert "1 of 2 devices did not pass: gone is lost" in error
    assert main(["device", "check", str(path), "here"]) == 0
