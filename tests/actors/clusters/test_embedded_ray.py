from __future__ import annotations

import ipaddress
import json
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from actors.clusters.cluster import _connect
from actors.clusters.run_folder import remove_abandoned, run_folder
from fleet_tune.base.errors import ClusterError

# Ray itself lets its agents wait for a minute for a server that is gone.
DEADLINE_SECS = 30.0
OWNER = """
import json, sys, time
import psutil
import pytest
from actors.clusters.cluster import connected

with connected(None) as cluster:
    import ray

    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self):
            return True

    actor = Actor.remote()
    ray.get(actor.answer.remote())
    assert "ray.dashboard.optional_deps" not in sys.modules
    processes = psutil.Process().children(recursive=True)
    listening = {
        each.laddr.ip
        for process in [psutil.Process(), *processes]
        for each in process.net_connections()
        if each.status == psutil.CONN_LISTEN
    }
    told = {
        "processes": [[each.pid, each.cmdline()] for each in processes],
        "listening": sorted(listening),
        "folder": str(cluster.folder),
    }
    print(json.dumps(told), flush=True)
    sys.stdin.read()
"""


def test_it_has_the_processes_that_are_used_and_they_end_when_their_owner_is_killed() -> None:
    """They listen on loopback, nobody else reaches their files, and the next run removes their folder."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            told = json.loads(owner.stdout.readline())
            processes = [psutil.Process(pid) for pid, _ in told["processes"]]
            folder = Path(told["folder"])
            # Ray opens its own folder to everybody, whenever one of its processes starts: all of it lies in ours.
            assert sorted(path.name for path in folder.iterdir()) == ["owner.lock", "r"]
            assert any((folder / "r").glob("session_*/sockets/*"))
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            remove_abandoned()
            assert (folder / "owner.lock").exists()
        finally:
            owner.send_signal(signal.SIGKILL)
    commands = [" ".join(command) for _, command in told["processes"]]
    for used in ("gcs_server", "raylet", "Actor", "DashboardAgent", "RuntimeEnvAgent"):
        assert any(used in command for command in commands), commands
    for unused in ("dashboard.py", "monitor.py"):
        assert not any(unused in command.partition(" --")[0] for command in commands), commands
    _, alive = psutil.wait_procs(processes, DEADLINE_SECS)
    assert not alive, commands
    assert told["listening"]
    assert all(ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback for ip in told["listening"])
    remove_abandoned()
    assert not folder.exists()


def test_folders_of_others_stay(tmp_path: Path) -> None:
    with run_folder(tmp_path) as live:
        assert stat.S_IMODE(live.stat().st_mode) == 0o700
        (tmp_path / "ft-ray-of-an-earlier-version").mkdir()
        (tmp_path / "ft-ray-file").touch()
        (tmp_path / "ft-ray-link").symlink_to(live)
        dead = tmp_path / "ft-ray-dead"
        dead.mkdir()
        (dead / "owner.lock").touch()
        (dead / "session").mkdir()
        with run_folder(tmp_path) as other:
            assert not dead.exists()
            assert len(list(tmp_path.iterdir())) == 5
            assert other != live
        assert not other.exists()
        assert (live / "owner.lock").exists()
    assert not live.exists()


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_where_something_else_listens_is_told_at_once(says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(100)
                connection.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        # Not connected(): another test of this process may have a cluster, which that would use.
        with pytest.raises(ClusterError, match=r"what listens there is not Ray.*--address"):
            _connect(address, Path("/tmp"))
