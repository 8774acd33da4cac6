"""The device server as a process: starting, stopping, dying with its owner, speaking TVM's protocol."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from devices.client.rpc_device import RpcDevice
from devices.client.session import RpcSession, SessionLostError, SessionTimeoutError
from devices.host.machine import cache_sizes, describe, gpu_driver, last_caches_bytes, parse_size, processor_name
from devices.protocol import Artifact, MeasureRequest
from devices.server.server import DeviceServer, ServerAddressError
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import StopRule
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[3]


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except OSError:
        return False
    return True


def spawn(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_any_tvm_client_is_served(server: DeviceServer) -> None:
    from tvm import rpc

    session = rpc.connect("127.0.0.1", server.port)
    assert session.get_function("runtime.NumThreads")() == 2
    assert session.cpu(0).exist


def test_a_client_that_says_nothing_does_not_block_the_next_one(server: DeviceServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        session = RpcSession("127.0.0.1", server.port, timeout_secs=20)
        assert session.ours
        session.close()


def test_strangers_are_turned_away(server: DeviceServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as pending:
        pending.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert pending.recv(100) == b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as other:
        name = b"client:another-key"
        other.sendall(struct.pack("<ii", 0xFF271, len(name)) + name)
        assert other.recv(4) == struct.pack("<i", 0xFF273)
    RpcSession("127.0.0.1", server.port, timeout_secs=20).close()


def test_a_session_that_expires_is_ended(server: DeviceServer) -> None:
    from tvm import rpc

    session = rpc.connect("127.0.0.1", server.port, session_timeout=0.3)
    wait_until(lambda: not psutil.Process(server.child_pid).children(), "the session's process is gone")
    with pytest.raises(Exception, match=r"RPC|socket|closed|recv"):
        session.get_function("runtime.NumThreads")


def test_a_deadline_cuts_a_call_that_blocks(server: DeviceServer) -> None:
    session = RpcSession("127.0.0.1", server.port, timeout_secs=20)
    (process,) = psutil.Process(server.child_pid).children()
    process.suspend()
    with pytest.raises(SessionLostError, match=r"no answer within 0\.2 s"), session.deadline(0.2):
        session.function("fleet_tune.describe")()
    process.resume()
    wait_until(lambda: not process.is_running(), "the session's process ended")
    session.close()


def test_a_deadline_that_passes_while_the_last_call_returns_is_told(server: DeviceServer) -> None:
    session = RpcSession("127.0.0.1", server.port, timeout_secs=20)
    with pytest.raises(SessionTimeoutError, match=r"no answer within 0\.01 s"), session.deadline(0.01):
        wait_until(lambda: not session.alive(), "the session is cut")
    session.close()


def test_an_error_of_a_call_leaves_the_session_good(server: DeviceServer) -> None:
    session = RpcSession("127.0.0.1", server.port, timeout_secs=20)
    with pytest.raises(Exception, match="no_such_file"), session.deadline(30):
        session.download("no_such_file")
    assert session.alive()
    session.close()


def test_a_taken_port_is_named(server: DeviceServer) -> None:
    with pytest.raises(ServerAddressError, match=f"127.0.0.1:{server.port}"):
        DeviceServer(port=server.port).start()


def test_a_wrong_stopping_rule_is_found_before_the_start() -> None:
    with pytest.raises(ImportError):
        DeviceServer(decide="no_such_module:decide")


def test_stop_leaves_nothing_behind() -> None:
    server = DeviceServer(threads=1)
    server.start()
    session = RpcSession("127.0.0.1", server.port, timeout_secs=20)
    port, folder = server.port, server.folder
    processes = [psutil.Process(server.child_pid), *psutil.Process(server.child_pid).children()]
    assert folder is not None
    server.stop()
    server.stop()
    wait_until(lambda: not any(p.is_running() for p in processes), "all processes ended")
    assert not folder.exists()
    assert not connects(port)
    session.close()


def test_serve_announces_itself_and_ends_with_sigterm() -> None:
    with spawn(
        "from devices.server.server import serve; serve(port=0, threads=1, announce=lambda s: print(s, flush=True))"
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("device server ready on 127.0.0.1:")
        assert line.endswith(" (1 threads)\n")
        port = int(line.split(":")[1].split()[0])
        session = RpcSession("127.0.0.1", port, timeout_secs=20)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        wait_until(lambda: not any(child.is_running() for child in children), "its processes ended")
        session.close()


OWNER = """
import sys
from devices.server.server import DeviceServer
server = DeviceServer(threads=1)
server.start()
print(server.port, server.folder, flush=True)
sys.stdin.readline()
"""


def read_until_lost(session: RpcSession, name: str, expected: bytes) -> None:
    """Without a pause, in which the file could go first and then the session."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with session.deadline(20):
            content = session.download(name)
        assert content == expected


def test_a_session_of_a_killed_owner_ends_before_its_files_are_removed() -> None:
    with spawn(OWNER) as owner:
        assert owner.stdout is not None
        port_text, folder_text = owner.stdout.readline().split()
        session = RpcSession("127.0.0.1", int(port_text), timeout_secs=20)
        session._session.upload(bytearray(b"kernel"), "library")
        (files,) = Path(folder_text).glob("session-*")
        for number in range(2000):  # which takes a while to remove
            (files / f"{number}").touch()
        owner.kill()

        with pytest.raises(SessionLostError):  # and not that the library is not there
            read_until_lost(session, "library", b"kernel")
        session.close()


def test_everything_dies_with_a_killed_owner() -> None:
    with spawn(OWNER) as owner:
        assert owner.stdout is not None
        port_text, folder_text = owner.stdout.readline().split()
        port, folder = int(port_text), Path(folder_text)
        session = RpcSession("127.0.0.1", port, timeout_secs=20)
        children = psutil.Process(owner.pid).children(recursive=True)
        assert len(children) == 2
        assert list(folder.iterdir())
        owner.kill()
        wait_until(lambda: not any(child.is_running() for child in children), "its processes ended")
        wait_until(lambda: not folder.exists(), "its temporary files are removed")
        assert not connects(port)
        session.close()


def test_sizes_of_sysfs() -> None:
    assert (parse_size("48K"), parse_size("2M"), parse_size("512")) == (
        48 << 10,
        2 << 20,
        512,
    )
    with pytest.raises(ValueError, match="invalid literal"):
        parse_size("K")


def test_last_caches_are_counted_once_each(tmp_path: Path) -> None:
    """Two dies of two cores each."""
    for cpu in range(4):
        for level, size, shared in ((2, "1M", f"{cpu}"), (3, "32M", "0-1" if cpu < 2 else "2-3")):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{level}"
            folder.mkdir(parents=True)
            for name, text in (("type", "Unified"), ("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    assert last_caches_bytes(range(4), tmp_path) == 64 << 20
    assert last_caches_bytes([2, 3], tmp_path) == 32 << 20
    assert last_caches_bytes([7], tmp_path) == 0
    assert cache_sizes(tmp_path) == {"2": 1 << 20, "3": 32 << 20}


def test_caches_and_model_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    for index, (kind, level, size) in enumerate([("Data", 1, "32K"), ("Instruction", 1, "64K"), ("Unified", 2, "1M")]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (("type", kind), ("level", str(level)), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert cache_sizes(tmp_path) == {"1": 32 << 10, "2": 1 << 20}
    assert last_caches_bytes([0], tmp_path) == 1 << 20
    (tmp_path / "proc").mkdir()
    cpuinfo = tmp_path / "proc/cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name : A CPU @ 2 GHz\n\nprocessor : 1\nmodel name : other\n")
    assert processor_name(tmp_path) == "A CPU @ 2 GHz"
    cpuinfo.write_text("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0b\n\nModel : A Board\n")
    assert processor_name(tmp_path) == "A Board"
    cpuinfo.write_text("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0b\n")
    assert processor_name(tmp_path) == "CPU implementer 0x41 CPU part 0xd0b"


@pytest.mark.parametrize(
    ("file", "text", "driver"),
    [
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC\nGCC version: 12.2.0",
            "535.104.05",
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build",
            "550.54.15",
        ),
        ("etc/nv_tegra_release", "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref", "L4T 35.4.1"),
        ("etc/other", "", ""),
    ],
)
def test_the_driver_of_a_gpu(tmp_path: Path, file: str, text: str, driver: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert gpu_driver(tmp_path) == driver


def test_this_machine_describes_itself() -> None:
    says = describe(environment={"TVM_NUM_THREADS": "3"})
    assert says["threads"] == 3
    assert says["cpu_model"]
    assert says["tvm_version"].startswith("0.27")


def test_the_stopping_rule_runs_beside_the_kernel(native_target: str, make_artifact: Callable[..., Artifact]) -> None:
    rule = StopRule(micro_batch_secs=1e-4, min_batches=2, max_batches=50, max_cv=100.0, race_factor=2.0)
    config = DeviceConfig(name="cpu", target=native_target, threads=2)
    with DeviceServer(threads=2, decide="policies.measuring.adaptive_stopping:decide") as server:
        device = RpcDevice(config, "127.0.0.1", server.port)
        device.add_oracle(make_artifact("ok", oracle=True))
        converged = device.measure(MeasureRequest(make_artifact("ok"), math.inf, rule))
        raced = device.measure(MeasureRequest(make_artifact("ok"), 1e-12, rule))
        device.close()
    assert (converged.stopped, len(converged.run_secs)) == ("converged", 2)
    assert (raced.stopped, len(raced.run_secs)) == ("raced", 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_run_on_the_cpus_that_the_server_may_use(
    native_target: str, make_artifact: Callable[..., Artifact], threads: int
) -> None:
    allowed = os.sched_getaffinity(0)
    mine, others = psutil.Process(), psutil.Process().children(recursive=True)
    with contextlib.ExitStack() as ends:
        os.sched_setaffinity(0, {max(allowed)})
        try:
            server = ends.enter_context(DeviceServer(threads=threads))
        finally:
            os.sched_setaffinity(0, allowed)
        device = RpcDevice(DeviceConfig(name="d", target=native_target, threads=threads), "127.0.0.1", server.port)
        device.add_oracle(make_artifact("ok", oracle=True))
        assert device.measure(MeasureRequest(make_artifact("parallel"), math.inf, StopRule(max_batches=3))).run_secs
        started = [each for each in mine.children(recursive=True) if each not in others]
        used = [set(psutil.Process(thread.id).cpu_affinity()) for process in started for thread in process.threads()]
        device.close()
    assert used
    assert set.union(*used) == {max(allowed)}
