"""``fleet-tune device serve`` as operators run it: on a bare board, as another user, within limits, leaving nothing."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from devices.client.session import RpcSession
from devices.host.limits.confinement import (
    AccountError,
    PrivateFolder,
    SessionLimits,
    check_account,
    memory_total_bytes,
)
from devices.server.server import DeviceServer, is_loopback
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[3]
# Everything that the project needs elsewhere, and a board has not.
MISSING = [
    "ray",
    "torch",
    "xgboost",
    "pydantic",
    "rich",
    "click",
    "msgpack",
    "psutil",
    "cloudpickle",
    "tornado",
    "sklearn",
    "scipy",
    "onnx",
    "prometheus_client",
    "safetensors",
]
BLOCKER = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


@contextmanager
def served(*options: str, env: dict[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command with ``options`` on a free port; yields the process and the port when it is ready."""
    command = [sys.executable, "-m", "fleet_tune", "device", "serve", "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            found = re.search(r"ready on .*:(\d+) \(1 threads\)", ready)
            assert found, (ready, process.stderr.read() if process.stderr else "")
            yield process, int(found[1])
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=30)


def test_a_board_needs_python_numpy_and_tvm_alone(tmp_path: Path) -> None:
    # sitecustomize is imported by every Python that starts: the server, its child and what that starts.
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    check = subprocess.run(
        [sys.executable, "-c", "import click"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        check=False,
    )
    assert check.returncode != 0
    with served("--no-key", env={"PYTHONPATH": paths}) as (process, port):
        session = RpcSession("127.0.0.1", port, timeout_secs=30)
        with session.deadline(60):
            assert session.ours
            assert "fleet_tune" not in session.function("fleet_tune.native_target")()
            assert "threads" in session.function("fleet_tune.describe")()
        session.close()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""


def test_a_board_that_is_asked_for_more_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    done = subprocess.run(
        [sys.executable, "-m", "fleet_tune", "version"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: this command needs click, which is not installed\nnext: pip install")


def test_what_tvm_says_is_printed_where_others_can_reach_the_port() -> None:
    with served("--no-key", "--bind", "0.0.0.0") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert errors.startswith(
        "0.0.0.0 can be reached from other machines. TVM RPC server assumes that the user is trusted"
    )
    assert "full remote code execution" in errors


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.3.4.5", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_recognised(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--port", "70000"], "'70000' is not a number from 0 to 65535"),
        (["--port", "\u00b2"], "is not a number from 0 to 65535"),
        (["--threads", "9" * 5000], "is not a number from 1 to 4096"),
        (["--memory", "9" * 400 + "G"], "is not a size"),
        (["--tracker", "h:" + "9" * 400, "--key", "k"], "is no address"),
        (["--threads", "0"], "'0' is not a number from 1 to 4096"),
        (["--max-upload", "lots"], "'lots' is not a size"),
        (["--memory", "0"], "'0' is not a size"),
        (["--tracker", "10.0.0.1:9190"], "--tracker and --key go together"),
        (["--key", "orin"], "--tracker and --key go together"),
        (["--tracker", "10.0.0.1", "--key", "orin"], "--tracker '10.0.0.1' is no address"),
        (["--tracker", "10.0.0.1:9190", "--key", "a:b"], "--key 'a:b' is not a key"),
        (["--tracker", "a..b:9190", "--key", "orin"], "--tracker 'a..b:9190' is no address"),
        *((["--bind", host], "is not the name or address of a host") for host in ("", "a..b", "a b", "x" * 400)),
        (["--tracker", "h:1", "--key", "k", "--advertise", "a..b"], "is not the name or address of a host"),
        (["--advertise", "10.0.0.1"], "--advertise is what a tracker tells clients"),
        (["--user", "nobody-of-this-name"], "there is no user 'nobody-of-this-name'"),
        (["--no-key", "--key-file", "x"], "--no-key and --key-file contradict each other"),
        (["--key-file", "/proc/no/key"], "cannot make the key file /proc/no/key"),
        (["--bnd", "x"], "unrecognized arguments: --bnd x"),
    ],
)
def test_mistakes_are_told_in_two_lines(options: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    from fleet_tune.cli import main as cli
    from fleet_tune.cli import serve as cli_serve

    assert cli_serve.main(options) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {problem}") or problem in first
    assert second.startswith("next: ")
    assert cli.main(["device", "serve", *options]) == 2
    assert capsys.readouterr().err.splitlines() == [first, second]


def test_options_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from devices.server import server
    from devices.server.registration import TrackerAddress
    from fleet_tune.cli import serve as cli_serve

    calls: list[dict[str, object]] = []
    monkeypatch.setattr(server, "serve", lambda *_, **given: calls.append(given))
    where = ["--tracker", "[fe80::1]:9190", "--key", "orin"]
    assert cli_serve.main([*where, "--max-upload", "8M", "--memory", "2G", "--user", "nobody"]) == 0
    assert cli_serve.main([*where, "--bind", "0.0.0.0"]) == 0
    assert cli_serve.main([*where, "--bind", "0.0.0.0", "--advertise", "board-1"]) == 0
    assert calls[0]["limits"] == SessionLimits(8 << 20, 2 << 30)
    assert calls[0]["user"] == "nobody"
    trackers = [call["tracker"] for call in calls]
    assert trackers[0] == TrackerAddress("fe80::1", 9190, "orin", "127.0.0.1")
    assert [tracker.advertise for tracker in trackers if isinstance(tracker, TrackerAddress)][1:] == [None, "board-1"]


def test_uploads_are_limited_and_stay_inside() -> None:
    limits = SessionLimits(upload_bytes=100_000, memory_bytes=1 << 30)
    with DeviceServer(threads=1, limits=limits) as server:
        session = RpcSession("127.0.0.1", server.port, timeout_secs=20)
        upload = session.function("tvm.rpc.server.upload")
        with session.deadline(20):
            upload("small", bytearray(60_000))
            with pytest.raises(Exception, match=r"upload of 50000 bytes refused.*--max-upload"):
                upload("second", bytearray(50_000))
            for name in ("/tmp/fleet-tune-escaped", "../escaped"):
                with pytest.raises(Exception, match="outside of the session's folder"):
                    upload(name, bytearray(10))
            session.function("tvm.rpc.server.remove")("small")
            upload("second", bytearray(50_000))
            assert len(session.download("second")) == 50_000
        session.close()
        larger = RpcSession("127.0.0.1", server.port, timeout_secs=20)
        with pytest.raises(Exception, match="refused"), larger.deadline(20):
            larger.function("tvm.rpc.server.upload")("huge", bytearray(64 << 20))
        larger.close()


def test_the_folder_is_private() -> None:
    with DeviceServer(threads=1) as server:
        assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
        session = RpcSession("127.0.0.1", server.port, timeout_secs=20)
        (inside,) = server.folder.iterdir()
        assert stat.S_IMODE(inside.stat().st_mode) == 0o700
        session.close()
        folder = server.folder
    assert not folder.exists()


def test_what_killed_servers_left_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # servers of other tests would remove it too
    code = "import sys; from devices.server.server import DeviceServer; s = DeviceServer(threads=1); s.start();"
    code += "print(s.folder, s.child_pid, flush=True); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    ) as owner:
        assert owner.stdout is not None
        folder_text, child_text = owner.stdout.readline().split()
        folder, child = Path(folder_text), psutil.Process(int(child_text))
        child.suspend()  # so that it cannot clean up either
        owner.kill()
        child.kill()
        owner.wait(20)
    assert folder.exists()

    def swept() -> bool:  # once the kernel has ended both
        PrivateFolder().remove()
        return not folder.exists()

    wait_until(swept, "the folder is removed")
    used = PrivateFolder()
    other = PrivateFolder()
    assert used.path.exists()  # it is in use
    for each in (used, other):
        each.remove()
        each.remove()
        assert not each.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_clients_reach_another_user_and_its_rights() -> None:
    with served("--no-key", "--user", "nobody") as (process, port):
        session = RpcSession("127.0.0.1", port, timeout_secs=20)
        (child,) = psutil.Process(process.pid).children()
        (running,) = child.children()
        account = pwd.getpwnam("nobody")
        for each in (child, running):
            assert set(each.uids()) == {account.pw_uid}
            assert set(each.gids()) == {account.pw_gid}
            assert re.search(r"^NoNewPrivs:\s*1$", Path(f"/proc/{each.pid}/status").read_text(), re.MULTILINE)
        with session.deadline(20):
            session.function("tvm.rpc.server.upload")("file", bytearray(b"text"))
            assert session.download("file") == b"text"
            with pytest.raises(Exception, match=r"shadow|open|denied|fail"):
                session.download("/etc/shadow")
        session.close()


def test_only_root_may_name_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(AccountError, match="only root"):
        check_account("root")


def test_memory_of_the_machine_and_of_its_control_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:        2048 kB\nMemFree: 10 kB\n")
    assert memory_total_bytes(tmp_path) == 2 << 20
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory_total_bytes(tmp_path) == 2 << 20
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1048576\n")
    assert memory_total_bytes(tmp_path) == 1 << 20
    # Version 2: the group of this process, and one above it, which has less.
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs.slice/job:1\n")
    (tmp_path / "sys/fs/cgroup/jobs.slice/job:1").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/jobs.slice/job:1/memory.max").write_text("600000\n")
    assert memory_total_bytes(tmp_path) == 600_000
    (tmp_path / "sys/fs/cgroup/jobs.slice/memory.max").write_text("500000\n")
    assert memory_total_bytes(tmp_path) == 500_000
    # Version 1: a hierarchy for each controller.
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/other\n4:memory,x:/job\n")
    (tmp_path / "sys/fs/cgroup/memory/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "sys/fs/cgroup/memory/job/memory.limit_in_bytes").write_text("400000\n")
    assert memory_total_bytes(tmp_path) == 400_000


def test_a_plain_tcp_client_is_no_burden() -> None:
    with DeviceServer(threads=1) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
        session = RpcSession("127.0.0.1", server.port, timeout_secs=20) if _drop(silent) else None
        assert session is not None
        assert session.alive()
        session.close()


def _drop(connections: list[socket.socket]) -> bool:
    for connection in connections:
        connection.close()
    return True


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (ROOT / "cluster/fleet-tune-device.service").read_text()
    # It starts a program of an installation that this machine has not.
    (tmp_path / "fleet-tune-device.service").write_text(
        unit.replace("/opt/fleet-tune/.venv/bin/fleet-tune", sys.executable)
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "fleet-tune-device.service")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "fleet-tune-device.service" in line]
    assert complaints == []
