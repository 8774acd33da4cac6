"""The published peaks of tensor cores, against the figures of their makers' data sheets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from devices.client.fingerprint import cuda_limits
from devices.cuda.tensor_cores import TensorCores, tensor_cores, tensor_flops
from fleet_tune.base.domain import DeviceAbstraction


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "hertz", "teraflops"),
    [("7.0", 80, 1.53e9, 125), ("7.5", 40, 1.59e9, 65), ("8.0", 108, 1.41e9, 312), ("9.0", 132, 1.83e9, 989)],
)
def test_peaks_of_data_sheets(capability: str, multiprocessors: int, hertz: float, teraflops: float) -> None:
    assert tensor_flops(tensor_cores(capability), multiprocessors, hertz) == pytest.approx(teraflops * 1e12, rel=0.01)


@pytest.mark.parametrize("capability", ["6.1", "99.0", "", "None"])
def test_others_have_none_that_we_know_of(capability: str) -> None:
    assert tensor_cores(capability) == TensorCores(0, 0)


def test_a_fingerprint_has_them_from_what_the_device_tells() -> None:
    device = SimpleNamespace(
        index=0,
        compute_version="8.0",
        multi_processor_count=108,
        max_clock_rate=1_410_000,  # kHz
        max_shared_memory_per_block=48 << 10,
        l2_cache_size_bytes=40 << 20,
        max_threads_per_block=1024,
        dlpack_device_type=lambda: 2,
        _GetDeviceAttr=lambda *_: 65536,
    )
    known = DeviceAbstraction("cuda", 108, 32, peak_flops=19.5e12, bandwidth_bytes=1.5e12, **cuda_limits(device))
    assert known.tensor_cores == 4
    assert known.tensor_flops == pytest.approx(108 * 2048 * 1.41e9)
    device.compute_version, device.max_clock_rate = "6.1", None
    assert (cuda_limits(device)["tensor_cores"], cuda_limits(device)["tensor_flops"]) == (0, 0.0)
