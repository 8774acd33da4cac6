from __future__ import annotations

import json

import pytest
import tvm

from devices.client.probe_kernels import CHUNK, arithmetic, fill, triad
from devices.client.rpc_device import RpcDevice
from devices.server.server import DeviceServer
from devices.targets import resolve_target
from fleet_tune.config.fleet_file import DeviceConfig
from fleet_tune.errors import VersionsDifferError


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
    assert found.abstraction.l1_bytes < found.abstraction.l2_bytes
    assert 1e-6 < found.probe_secs < 10


def test_a_device_class_is_named_by_the_fleet_file(server: DeviceServer, native_target: str) -> None:
    config = DeviceConfig(name="cpu", target=native_target, threads=2, device_class="laptop")
    device = RpcDevice(config, "127.0.0.1", server.port)
    assert device.fingerprint().device_class.name == "laptop"
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


def test_probe_kernels_say_their_work(native_target: str) -> None:
    kernel = arithmetic(native_target, cores=2, lanes=8)
    (width,), (steps,), (rows, columns) = kernel.shapes
    assert width == columns
    assert kernel.work == 2.0 * rows * width * steps
    assert triad(native_target, 2 * CHUNK, 8).work == 12.0 * 2 * CHUNK
    assert fill(native_target, CHUNK, 8).shapes == ((CHUNK,),)


@pytest.mark.parametrize("arch", ["sm_87", "sm_90"])
def test_probe_kernels_generate_cuda_code(arch: str) -> None:
    """Without a GPU the code is generated and not run."""
    target = resolve_target({"kind": "cuda", "arch": arch})
    assert json.loads(target)["arch"] == arch
    for kernel in (arithmetic(target, 4, 32), triad(target, CHUNK, 32), fill(target, CHUNK, 32)):
        assert kernel.library.startswith(b"\x7fELF")
