from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tvm

from devices.builds import libraries
from devices.builds.passes.byte_instructions import fast_integer_dot
from devices.builds.passes.half_instructions import has_fast_dot2
from devices.client import fingerprint, probe_kernels
from devices.client.fingerprint import fastest_secs
from devices.client.probe_kernels import CHUNK, SLOWEST_FLOPS, ProbeKernel, arithmetic, fill, triad
from devices.client.rpc_device import RpcDevice
from devices.server.server import DeviceServer
from devices.targets import TargetError, library_of, parse_target, resolve_target
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.errors import DeviceUnreachableError, VersionsDifferError
from fleet_tune.base.timeouts import DeviceTimeouts


def test_a_cpu_is_probed_through_its_server(server: DeviceServer) -> None:
    device = RpcDevice(DeviceConfig(name="cpu", threads=2), "127.0.0.1", server.port)
    found = device.fingerprint()
    device.close()
    assert found.device_class.target == resolve_target("native", threads=2)
    assert found.device_class.name.endswith("-2")
    assert (found.threads, found.abstraction.cores, found.abstraction.kind) == (2, 2, "cpu")
    assert found.tvm_version.startswith("0.27")
    assert found.abstraction.lanes in (4, 8, 16)
    # No CPU of the last ten years is outside of these, on however busy a machine.
    assert 1e8 < found.abstraction.peak_flops < 1e13
    assert 1e8 < found.abstraction.bandwidth_bytes < 1e13
    target = parse_target(found.device_class.target)
    narrow = (
        (found.abstraction.int8_flops, fast_integer_dot(target) is not None),
        (found.abstraction.bfloat16_flops, has_fast_dot2(target)),
    )
    for flops, is_fast in narrow:
        assert 1e8 < flops < 1e13 if is_fast else flops == 0
    assert found.abstraction.l1_bytes < found.abstraction.l2_bytes
    assert 1e-6 < found.probe_secs < 10


def test_a_device_class_is_named_by_the_fleet_file(server: DeviceServer, native_target: str) -> None:
    config = DeviceConfig(name="cpu", target=native_target, threads=2, device_class="laptop")
    device = RpcDevice(config, "127.0.0.1", server.port)
    assert device.fingerprint().device_class.name == "laptop"
    device.close()


@pytest.mark.parametrize(("given", "name"), [("laptop", "laptop-onednn"), (None, "znver3-2-onednn")])
def test_devices_that_may_call_a_library_are_a_class_of_their_own(
    given: str | None, name: str, server: DeviceServer
) -> None:
    target = {"kind": "llvm", "mcpu": "znver3", "mtriple": "x86_64-linux-gnu"}
    config = DeviceConfig(name="cpu", target=target, threads=2, device_class=given, library="onednn")
    device = RpcDevice(config, "127.0.0.1", server.port)
    assert library_of(device._connection.target) == "onednn"
    assert device._class_name(device._connection.target) == name
    device.close()


def test_a_device_with_a_library_loads_it_or_says_why_not(server: DeviceServer) -> None:
    device = RpcDevice(DeviceConfig(name="cpu", threads=2, library="onednn"), "127.0.0.1", server.port)
    missing = libraries.load_installed("onednn")
    if missing:
        with pytest.raises(TargetError, match=r"device cpu: .* is not installed.*; on its host: pip install"):
            device.fingerprint()
    else:
        assert library_of(device.fingerprint().device_class.target) == "onednn"
    device.close()


def test_another_version_of_tvm_is_told_with_both(server: DeviceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tvm.__version__
    device = RpcDevice(DeviceConfig(name="cpu", threads=2), "127.0.0.1", server.port)
    monkeypatch.setattr(tvm, "__version__", "0.99.0")
    with pytest.raises(VersionsDifferError, match=f"the device has TVM {real}, this machine has TVM 0.99.0"):
        device.fingerprint()
    monkeypatch.undo()
    assert device.fingerprint().tvm_version == real
    device.close()


def test_a_probe_has_the_time_that_the_fleet_file_says(server: DeviceServer) -> None:
    device = RpcDevice(DeviceConfig(name="cpu", threads=2, probe_secs=1e-5), "127.0.0.1", server.port)
    with pytest.raises(DeviceUnreachableError, match="no answer within 1e-05 s"):
        device.fingerprint()
    device.close()


class Board:
    """Stands in for a workbench, on a device of which each run of a kernel takes ``run_secs``."""

    def __init__(self, run_secs: float) -> None:
        self._run_secs = run_secs
        self.deadlines: list[float] = []
        self.repeats: list[int] = []
        self.session = self
        self.timeouts = DeviceTimeouts(probe_secs=70.0)

    @contextlib.contextmanager
    def deadline(self, secs: float) -> Iterator[None]:
        self.deadlines.append(secs)
        yield

    def load(self, _library: bytes) -> Board:
        return self

    def time_evaluator(self, _entry: str, _device: object, number: int, repeat: int) -> Callable[[], SimpleNamespace]:
        assert number == 1
        self.repeats.append(repeat)
        return lambda: SimpleNamespace(results=[self._run_secs] * repeat)

    @property
    def device(self) -> None:
        """None is needed."""


@pytest.mark.parametrize(("secs", "repeats"), [(0.001, 30), (0.5, 10), (100.0, 3)])
def test_a_slow_device_runs_a_probe_kernel_less_often(secs: float, repeats: int) -> None:
    board = Board(secs)
    kernel = ProbeKernel(b"", (), 2e8, 2e8 / SLOWEST_FLOPS)
    assert fastest_secs(cast(Any, board), [(kernel, ())]) == [secs]
    assert board.repeats == [1, repeats]
    assert board.deadlines[0] == 2 * (70 + 200)
    assert board.deadlines[1] >= 70 + 10 * repeats * secs


def test_one_undisturbed_burst_says_what_a_device_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have one of two cores when the device joins, and leave it after two bursts."""
    waited: list[float] = []
    now = 0.0
    clock = SimpleNamespace(sleep=waited.append, monotonic=lambda: now + sum(waited))
    monkeypatch.setattr(fingerprint, "time", clock)
    kernel = ProbeKernel(b"", (), 2e8, 2e8 / SLOWEST_FLOPS)

    class Busy(Board):
        def time_evaluator(self, _entry: str, _device: object, number: int, repeat: int) -> Callable[[], Any]:
            assert number == 1
            return lambda: SimpleNamespace(results=[0.001 if len(waited) > 1 else 0.002] * repeat)

    assert fastest_secs(cast(Any, Busy(0.002)), [(kernel, ())], bursts=4) == [0.001]
    assert len(waited) == 3
    assert fastest_secs(cast(Any, Busy(0.002)), [(kernel, ())]) == [0.001]

    class Slow(Board):
        def time_evaluator(self, _entry: str, _device: object, number: int, repeat: int) -> Callable[[], Any]:
            nonlocal now
            now += number * repeat * self._run_secs
            return super().time_evaluator(_entry, _device, number, repeat)

    slow = Slow(0.5)
    assert fastest_secs(cast(Any, slow), [(kernel, ())], bursts=4) == [0.5]
    assert slow.repeats == [1, 10], "a burst of seconds is all"


def test_probe_kernels_say_their_work(native_target: str) -> None:
    kernel = arithmetic(native_target, cores=2, lanes=8)
    (width,), (steps,), (rows, columns) = kernel.shapes
    assert width == columns
    assert kernel.work == 2.0 * rows * width * steps
    assert kernel.slowest_secs == kernel.work / 2 / SLOWEST_FLOPS
    assert triad(native_target, 2 * CHUNK, 8).work == 12.0 * 2 * CHUNK
    assert fill(native_target, CHUNK, 8).shapes == ((CHUNK,),)


@pytest.mark.parametrize("arch", ["sm_87", "sm_90"])
def test_probe_kernels_generate_cuda_code(arch: str) -> None:
    """Without a GPU the code is generated and not run."""
    target = resolve_target({"kind": "cuda", "arch": arch})
    assert json.loads(target)["arch"] == arch
    whole = arithmetic(target, 4, 32, dot=fast_integer_dot(parse_target(target)))
    for kernel in (arithmetic(target, 4, 32), whole, triad(target, CHUNK, 32), fill(target, CHUNK, 32)):
        assert kernel.library.startswith(b"\x7fELF")


def test_a_thread_of_the_probe_keeps_its_sums_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that is written back by a loop lies in memory: the probe then told 18 % of what an H100 can do."""
    sources: list[str] = []

    def looked_at(module: Any, _target: str) -> bytes:
        sources.append(module.imports[0].inspect_source("cuda"))
        return b""

    monkeypatch.setattr(probe_kernels, "link", looked_at)
    arithmetic(resolve_target({"kind": "cuda", "arch": "sm_90"}), 4, 32)
    (source,) = sources
    kernel = source[source.rindex("__global__") :]
    assert "C_local_ptr[16]" in kernel
    assert re.findall(r"for \(int (\w+)", kernel) == ["k"]
