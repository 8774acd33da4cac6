from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import ray

from actors.clusters import embedded_ray
from actors.clusters.cluster import _connect
from actors.clusters.run_folder import run_folder
from fleet_tune.base.errors import ClusterError
from tests.helpers.waiting import wait_until

# Ray itself lets its agents wait for a minute for a server that is gone.
DEADLINE_SECS = 30.0
# The kernel ends them at once; by themselves they would go on for longer than this.
KERNEL_SECS = 15.0
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
            assert [path.name for path in folder.iterdir()] == ["r"]
            assert any((folder / "r").glob("session_*/sockets/*"))
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            with run_folder():
                assert any((folder / "r").glob("session_*/sockets/*")), "its owner lives"
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
    with run_folder():
        assert not folder.exists()


STARTING = """
import signal, sys
from actors.clusters.cluster import connected

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _frame: print("heard", signal.Signals(number).name, flush=True))
try:
    with connected(None):
        import ray

        @ray.remote(num_cpus=0)
        class Actor:
            def answer(self):
                return True

        actors = [Actor.remote() for _ in range(2)]
        ray.get([actor.answer.remote() for actor in actors])
except KeyboardInterrupt as error:
    print(type(error).__name__, flush=True)
else:
    print("ended", flush=True)
"""


def starting(folders: set[Path]) -> list[psutil.Process]:
    """The processes that have one of these folders, or something in one, on their command line or open."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            names = [*process.cmdline(), *(os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir())]
            if any(str(folder) in name for folder in folders for name in names):
                found.append(process)
    return found


def folders() -> set[Path]:
    return set(Path("/tmp").glob("fleet-tune-tmp-run-*"))


def folders_of(pid: int) -> set[Path]:
    """Return the folders on the command lines of the processes below this one: other tests have clusters too."""
    named: set[Path] = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            named |= {each for each in folders() if str(each) in command}
    return named


def test_nothing_is_left_of_a_cluster_whose_owner_is_killed_while_it_starts() -> None:
    """Ray's workers wait for their raylet for half a minute, and make the folder again. Whole runs are killed at other
    points (tests/fleet_tune/runs/test_killed_runs.py)."""
    with subprocess.Popen([sys.executable, "-c", STARTING]) as owner:
        try:
            wait_until(lambda: any("setup_worker.py" in each for each in commands_below(owner.pid)), "a worker starts")
            mine = folders_of(owner.pid)
        finally:
            owner.kill()
    assert mine, "a folder of the cluster"
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not starting(mine), "its processes end", KERNEL_SECS)
    assert [each.as_dict(["pid", "ppid", "status", "cmdline"]) for each in starting(mine)] == []
    with run_folder():
        assert not mine & folders()


def test_a_server_that_is_killed_while_the_cluster_starts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits for it for half a minute, and says that it took too long."""

    def init(**_settings: object) -> None:
        killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
        services.start_ray_process(killed, "raylet", fate_share=True).process.wait()
        raise TimeoutError("The current node timed out during startup.")

    from ray._private import services

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        ClusterError, match=r"cannot start .*: its raylet has ended: killed by SIGKILL; check free memory"
    ):
        _connect(None, tmp_path)


def commands_below(pid: int) -> list[str]:
    """The programs of the processes that this one has started, and of those that they have: their command lines
    without options, since the raylet's have the commands of all others."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(part for part in process.cmdline() if not part.startswith("-")))
    return found


@pytest.mark.parametrize("server", ["gcs_server", "raylet"])
def test_signals_while_it_starts_end_the_start(server: str) -> None:
    """Ray's own handlers would end the process with a stack of native code, or without a word."""
    command, pipe = [sys.executable, "-c", STARTING], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as owner:
        wait_until(lambda: any(server in each for each in commands_below(owner.pid)), "Ray starts")
        mine = folders_of(owner.pid)
        owner.send_signal(signal.SIGTERM)
        owner.send_signal(signal.SIGHUP)
        out, errors = owner.communicate(timeout=120)
    assert (owner.returncode, errors) == (0, "")
    assert sorted(out.split()) == sorted(["heard", "SIGTERM", "heard", "SIGHUP", "StartInterruptedError"])
    assert mine, "a folder of the cluster"
    assert not mine & folders()
    wait_until(lambda: not starting(mine), "its processes end")


def test_our_script_comes_before_those_that_the_raylet_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_ray, "_WITH_PARENT", '"/a folder/with_parent.py"')
    for option, command in (
        ("--dashboard_agent_command=", "/p/python -u {}/ray/dashboard/agent.py --head"),
        ("--python_worker_command=", "/p/python {}/ray/setup_worker.py /ray/default_worker.py --a=b"),
        ("--java_worker_command=", "/p/java /ray/setup_worker.py"),
    ):
        ours = '"/a folder/with_parent.py" ' if "java" not in option else ""
        assert embedded_ray._with_parent(option + command.format("")) == option + command.format(ours)


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


STARTING_THREADS = """
import os, signal, threading
from actors.clusters.waiting_signals import Start, signals_wait
from fleet_tune.base.errors import StartInterruptedError

signal.signal(signal.SIGTERM, lambda *_: None)
for _ in range(20):
    start = Start()
    with signals_wait():
        try:
            with start.ends_with_signals():
                os.kill(os.getpid(), signal.SIGTERM)
                while True:
                    threading.Thread(target=int).start()
        except StartInterruptedError:
            print("ended", flush=True)
"""


def test_a_signal_ends_a_start_that_is_starting_threads() -> None:
    """The error that ends it must not arrive in a thread that has just been made."""
    command = [sys.executable, "-c", STARTING_THREADS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECS, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["ended"] * 20
