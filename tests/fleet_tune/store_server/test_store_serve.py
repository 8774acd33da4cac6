"""``fleet-tune store serve``, and the commands that reach what it serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fleet_tune.base.records.sharing.postgres import TeamStore
from fleet_tune.cli import main as cli
from fleet_tune.store_server.server_folder import OWNER, POSTGRES_VARIABLE
from tests.helpers.team_server import START_SECS, Served, held, of, write

pytestmark = pytest.mark.timeout(120)


def test_the_commands_of_records_reach_a_teams_store(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served.empty()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    url, owner = served.address("alice"), served.folder.key_of(OWNER)
    own = write(tmp_path / "run.db", "a", of("a", "1", 2e-3), of("a", "2", 1e-3, 2))
    assert cli.main(["records", "merge", str(own), "--store", url]) == 0
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other"))
    capsys.readouterr()
    assert cli.main(["records", "top", "--store", owner, "--json"]) == 0
    (conv,) = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    assert (conv["records"], conv["best_secs"]) == (2, pytest.approx(1.05e-3))
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
    deadline = time.monotonic() + START_SECS
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")
    served.start()
    assert served.address("alice")


def test_one_that_is_ended_while_it_makes_a_server_is_no_trouble_for_the_next() -> None:
    with tempfile.TemporaryDirectory(prefix="fleet-tune-store-") as text:
        path = Path(text)
        path.chmod(0o755)  # as of the one that all share
        server = Served(path / "team")
        command = [sys.executable, "-m", "fleet_tune", "store", "serve", str(server.folder.path), "--port"]
        for number in (signal.SIGTERM, signal.SIGKILL):
            process = subprocess.Popen([*command, str(server.port)])
            deadline = time.monotonic() + START_SECS
            while not list(server.folder.path.glob(".making-*/data/*")) and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(number)
            assert process.wait(START_SECS) == (143 if number == signal.SIGTERM else -9)
            assert bool(list(server.folder.path.glob(".making-*"))) == (number == signal.SIGKILL)
            assert not server.folder.is_made
        server.start()
        try:
            assert not list(server.folder.path.glob(".making-*"))
            other = subprocess.run([*command, "1"], capture_output=True, text=True, timeout=START_SECS)
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
