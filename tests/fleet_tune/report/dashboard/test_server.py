"""Pages of ``fleet-tune dashboard``: runs, a store, retune, and what is none of them."""

from __future__ import annotations

import dataclasses
import signal
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_tune.base.device_state import Connectivity, DeviceEvent, DeviceState, Health
from fleet_tune.base.domain import Measurement, Outcome, Record, Task
from fleet_tune.base.errors import RecordStoreError, RequestError
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.cli.main import main
from fleet_tune.report.dashboard.pages import retune_page
from fleet_tune.report.dashboard.server import site_of
from policies.retuning.state import ServiceEvent
from tests.helpers.dashboards import dashboard
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task

TASK = make_task("a")


def record(task: Task, number: int, at: float, measured: Measurement) -> Record:
    return replace(make_record(make_candidate(task, number), measured), unix_secs=at, run_id="run")


def append(folder: Path, *records: Record) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with RecordStore(folder / "records.db") as store:
        store.put_task(TASK)
        store.append(records)
    return folder


def answer(address: str, tag: str = "", host: str = "") -> tuple[int, str, str]:
    """Status, text and tag of a page."""
    headers = ({"If-None-Match": tag} if tag else {}) | ({"Host": host} if host else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as got:
            return got.status, got.read().decode(), got.headers["ETag"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), ""


def test_pages_of_runs_show_what_is_new_and_nothing_else(tmp_path: Path) -> None:
    append(tmp_path / "group" / "one", record(TASK, 1, 100.0, ok(3e-3)))
    append(tmp_path / "two", record(TASK, 1, 100.0, ok(2e-3)))
    with dashboard(tmp_path) as (address, process):
        status, text, _ = answer(f"{address}/")
        assert status == 200
        assert text.count('href="/group/one"') == 1
        assert 'href="/two"' in text
        assert "<script" in text
        page = f"{address}/group/one?part=main"
        status, text, tag = answer(page)
        assert (status, "<html" in text, "1 (1 ok)" in text) == (200, False, True)
        assert answer(page, tag)[0] == 304
        append(tmp_path / "group" / "one", record(TASK, 2, 130.0, failed(Outcome.BUILD_ERROR, "<no> such thing")))
        status, text, _ = answer(page, tag)
        assert status == 200
        for part in ("2 (1 ok, 1 build error)", "&lt;no&gt; such thing", "0:30"):
            assert part in text
        status, text, _ = answer(f"{address}/report/group/one")
        assert status == 200
        assert "Schedules" in text
        for path in ("/three", "/../two", "/%2e%2e/two", "/report/three", "/static/../server.py"):
            assert answer(address + path)[0] in (403, 404)
        # A name of somebody else's that leads to this machine is answered by nothing.
        assert answer(f"{address}/", host="attacker.example")[0] == 403
        assert answer(f"{address}/", host="localhost:1")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_the_page_of_a_run_that_was_removed_says_so(tmp_path: Path) -> None:
    one = append(tmp_path / "one", record(TASK, 1, 100.0, ok(3e-3)))
    append(tmp_path / "two")
    site = site_of(tmp_path)
    assert "one" in site.page("/one")[0]
    (one / "records.db").unlink()
    with pytest.raises(KeyError):
        site.page("/one")
    assert "one" not in site.page("/")[1]


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    append(tmp_path / "one", record(TASK, 1, 100.0, ok(3e-3)))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "records.db").write_bytes(b"no database" * 100)
    text = site_of(tmp_path).page("/")[1]
    assert "cannot be read" in text
    assert "3.000 ms" in text


def test_the_folder_of_one_run_is_its_page_with_its_devices(tmp_path: Path) -> None:
    append(tmp_path, *(record(TASK, at, 100.0 + at, ok(3e-3 / at)) for at in range(1, 30)))
    lost = DeviceState(Connectivity.OFFLINE, Health.SUSPECT, losses=("",))
    with RecordStore(tmp_path / "records.db") as store:
        store.append_device_events([DeviceEvent("board", "run", "heartbeat_lost", "no <answer>", lost, 110.0)])
    title, text, up = site_of(tmp_path).page("/")
    assert (title, up) == (tmp_path.name, "")
    assert 'class="busy"' in text
    assert "0:09 board lost (heartbeat lost): no &lt;answer&gt;" in text
    assert 'href="/report/."' in text
    assert "Schedules" in site_of(tmp_path).report("/.")


def test_the_page_of_a_store(tmp_path: Path) -> None:
    append(tmp_path, record(TASK, 1, 100.0, ok(3e-3)))
    site = site_of(tmp_path / "records.db")
    title, text, _ = site.page("/")
    assert title == "records.db"
    assert "1 trial (1 ok)" in text
    with pytest.raises(KeyError):
        site.page("/one")


def test_the_page_of_retune(tmp_path: Path) -> None:
    file = tmp_path / "retune.toml"
    network = '[[network]]\nname = "net"\npath = "net.py:make"\ncalls_per_day = 1000\n'
    file.write_text(f'folder = "service"\n{network}')
    assert "The service does not run" in site_of(file).page("/")[1]


def test_what_retune_did_is_on_its_page() -> None:
    event = ServiceEvent(1e9, "published", "net", "orin", "version 2 <is> current")
    deployment = {"network": "net", "device_class": "orin", "version": 2, "secs": 2e-3, "effort_secs": 7200.0}
    text = retune_page(
        {
            "running": True,
            "waits_for": "a quiet device",
            "share": 0.25,
            "deployments": [{**deployment, "next_hour": {"saved_secs": 1e-4}, "problem": None}],
            "devices": [{"name": "board", "problem": ""}],
            "events": [dataclasses.asdict(event)],
        }
    )
    for part in (
        "runs and waits: a quiet device",
        "2.000 ms",
        "2 h",
        "100.0 µs",
        "net on orin: version 2 &lt;is&gt; current",
    ):
        assert part in text
    assert "2001-09-09" in text


def test_what_is_no_run_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RequestError, match="has no run in it"):
        site_of(tmp_path)
    with pytest.raises(RecordStoreError, match="no record store"):
        site_of(tmp_path / "absent.db")
    assert main(["dashboard", str(tmp_path)]) != 0
    assert "--out" in capsys.readouterr().err


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path, record(TASK, 1, 100.0, ok(3e-3)))
    with dashboard(tmp_path) as (address, _):
        port = address.rpartition(":")[2]
        assert main(["dashboard", str(tmp_path), "--port", port]) != 0
    assert f"port {port} of 127.0.0.1 cannot be opened" in capsys.readouterr().err
