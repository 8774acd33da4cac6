"""Fingerprint of a device: its properties and its speed, probed when it joins."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from devices.builds.passes.byte_instructions import fast_integer_dot
from devices.builds.passes.half_instructions import has_fast_dot2
from devices.client import probe_kernels
from devices.client.probe import Probe, parallelism
from devices.client.probe_kernels import ProbeKernel
from devices.client.workbench import Workbench
from devices.cuda.tensor_cores import tensor_cores, tensor_flops
from devices.host.machine import parse_size
from devices.host.versions import tvm_differs
from devices.protocol import TensorSpec
from devices.sketches.byte_operators import IntegerDot
from devices.sketches.half_operators import dot2
from devices.targets import parse_target, vector_registers
from fleet_tune.base.domain import DeviceAbstraction, DeviceClass, Fingerprint

UNTOLD = "unknown"
"""Value of the properties that a plain TVM RPC server does not report: its machine's processor and version of TVM."""
# Number of single runs. A run takes a millisecond or two, and on a shared machine one of that many is undisturbed. On a
# slow machine a run takes longer, and a few runs are enough.
_REPEATS, _LEAST_REPEATS = 30, 3
_REPEAT_SECS = 5.0
# Number of bursts of runs, and seconds between two bursts. Processes that start during a probe (builders that load TVM)
# may occupy a core for some tenths of a second: the best run of a single burst then showed half of the device's speed.
_BURSTS, _BURST_SECS = 6, 0.15
_MEBIBYTE = 1 << 20
# Each tensor of the bandwidth probe is as large as the last-level cache, within these limits.
_TRIAD_BYTES = (16 * _MEBIBYTE, 128 * _MEBIBYTE)
# TVM's number of this device attribute. TVM's Python class has no name for it.
_MAX_REGISTERS_PER_BLOCK = 9
# Cache sizes by level if the device's kernel does not report them: the smallest of CPUs of the last ten years.
_ASSUMED_CACHES = {"1": 32 << 10, "2": 256 << 10}

Dot = Callable[[Any, Any], Any]

_log = logging.getLogger(__name__)


def probe(bench: Workbench, device_class: DeviceClass, threads: int | None) -> Fingerprint:
    """Return the fingerprint of the device behind ``bench``. This blocks for about a second on a server, longer on a
    board. The deadline of each step allows for the slowest device.

    ``threads``: number of threads in the fleet file. The log gets a warning if the server runs kernels on another
    number.

    Raises SessionLostError, and :class:`fleet_tune.base.errors.VersionsDifferError` if the device has another version
    of TVM than this process.
    """
    with bench.session.deadline(bench.timeouts.probe_secs):
        says = describe(bench)
    if says["tvm_version"] not in (UNTOLD, tvm.__version__):
        raise tvm_differs("the device", says["tvm_version"], tvm.__version__)
    actual = says["threads"]
    if threads is not None and bench.kind == "cpu" and threads != actual:
        _log.warning("kernels run on %d threads of the device's server, the fleet file says %d", actual, threads)
    with bench.session.deadline(bench.timeouts.probe_secs):
        cores, lanes = parallelism(bench, device_class.target, actual)
    with bench.session.deadline(bench.timeouts.probe_secs):
        is_cuda = bench.kind == "cuda"
        limits = cuda_limits(bench.device) if is_cuda else _cpu_limits(device_class.target, says["caches"])
    target = parse_target(device_class.target)
    dots = {"float32": None, "int8": fast_integer_dot(target), "bfloat16": dot2 if has_fast_dot2(target) else None}
    timed = {name: dot for name, dot in dots.items() if name == "float32" or dot is not None}
    found = _peaks(bench, device_class.target, cores, lanes, list(timed.values()))
    peaks = dict(zip(timed, found, strict=True))
    abstraction = DeviceAbstraction(
        kind=bench.kind,
        cores=cores,
        lanes=lanes,
        peak_flops=peaks["float32"],
        int8_flops=peaks.get("int8", 0.0),
        bfloat16_flops=peaks.get("bfloat16", 0.0),
        bandwidth_bytes=bandwidth_bytes(bench, device_class.target, lanes, limits["l3_bytes"] or limits["l2_bytes"]),
        **limits,
    )
    return Fingerprint(
        device_class=device_class,
        abstraction=abstraction,
        cpu_model=says["cpu_model"],
        threads=actual,
        tvm_version=says["tvm_version"],
        probe_secs=Probe(bench, device_class.target).secs(),
        driver=str(says.get("driver", "")) if is_cuda else "",
        microcode="" if is_cuda else str(says.get("microcode", "")),
        power=str(says.get("power", {}).get(bench.kind, "")),
    )


def describe(bench: Workbench) -> dict[str, Any]:
    """Return the description of the device's machine (see :func:`devices.host.machine.describe`).

    A plain TVM RPC server only tells its number of threads, and the cache sizes: its kernel's files are downloaded.
    """
    session = bench.session
    if session.ours:
        description: dict[str, Any] = json.loads(session.function("fleet_tune.describe")())
        description["threads"] = description["threads"] or int(session.function("runtime.NumThreads")())
        return description
    caches: dict[str, int] = {}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        try:
            kind, level, size = (_text(session.download(f"{folder}/{name}")) for name in ("type", "level", "size"))
            if kind != "Instruction":
                caches[level] = parse_size(size)
        except (ValueError, RuntimeError, OSError):
            break
    return {
        "cpu_model": UNTOLD,
        "threads": int(session.function("runtime.NumThreads")()),
        "tvm_version": UNTOLD,
        "caches": caches,
    }


def power_now(bench: Workbench) -> str:
    """Return the current power mode of the device (see :attr:`Fingerprint.power`)."""
    with bench.session.deadline(bench.timeouts.probe_secs):
        return str(bench.session.function("fleet_tune.power")(bench.kind)) if bench.session.ours else ""


def _peaks(bench: Workbench, target: str, cores: int, lanes: int, dots: Sequence[Dot | None]) -> list[float]:
    """Return the peak operations per second of all cores for each of ``dots``: an operator on narrower numbers, or None
    for float32."""
    kernels = [probe_kernels.arithmetic(target, cores, lanes, dot=dot) for dot in dots]
    given = [(kernel, _ones(bench, kernel, dot)) for kernel, dot in zip(kernels, dots, strict=True)]
    return [kernel.work / secs for kernel, secs in zip(kernels, fastest_secs(bench, given, _BURSTS), strict=True)]


def _ones(bench: Workbench, kernel: ProbeKernel, dot: Dot | None) -> list[Any]:
    given = np.int32 if dot else np.float32
    dtypes = (given, given, np.int32 if isinstance(dot, IntegerDot) else np.float32)
    with bench.session.deadline(bench.timeouts.probe_secs):
        return [
            tvm.runtime.tensor(np.ones(shape, dtype), bench.device)
            for shape, dtype in zip(kernel.shapes, dtypes, strict=True)
        ]


def fastest_secs(
    bench: Workbench, kernels: Sequence[tuple[ProbeKernel, Sequence[Any]]], bursts: int = 1
) -> list[float]:
    """Return the seconds of the fastest of many short runs of each probe kernel, given with its tensors: they show the
    speed of the undisturbed device. The kernels run in turn, in up to ``bursts`` bursts each, a little apart."""
    runs = [_Runs(bench, kernel, tensors) for kernel, tensors in kernels]
    end = time.monotonic() + len(runs) * bursts * _BURST_SECS
    for left in reversed(range(bursts)):
        for each in runs:
            each.burst()
        if not left or time.monotonic() >= end:  # on a slow device one burst is long enough
            break
        time.sleep(_BURST_SECS)
    return [each.best_secs for each in runs]


class _Runs:
    """Short runs of a probe kernel, of which the fastest counts."""

    def __init__(self, bench: Workbench, kernel: ProbeKernel, tensors: Sequence[Any]) -> None:
        self._bench = bench
        self._tensors = tensors
        # TVM's timer begins with a run that it does not count.
        with bench.session.deadline(2 * (bench.timeouts.probe_secs + kernel.slowest_secs)):
            self._module = bench.load(kernel.library)
            timer = self._module.time_evaluator("main", bench.device, number=1, repeat=1)
            self._first_secs = float(timer(*tensors).results[0])
        self._repeats = min(_REPEATS, max(_LEAST_REPEATS, int(_REPEAT_SECS / max(self._first_secs, 1e-9))))
        self.best_secs = math.inf

    def burst(self) -> None:
        """Run the kernel many times in a row."""
        secs = self._bench.timeouts.probe_secs + 10 * self._repeats * self._first_secs
        with self._bench.session.deadline(secs):
            timer = self._module.time_evaluator("main", self._bench.device, number=1, repeat=self._repeats)
            self.best_secs = min(self.best_secs, *timer(*self._tensors).results)


def bandwidth_bytes(bench: Workbench, target: str, lanes: int, cache_bytes: int) -> float:
    """Return the bandwidth of main memory with all cores in bytes per second, measured by a triad over tensors that do
    not fit into the caches."""
    low, high = _TRIAD_BYTES
    # A GPU has more memory, and its events need a longer run to be exact.
    size = high if bench.kind == "cuda" else min(max(cache_bytes, low), high)
    elements = size // (4 * probe_kernels.CHUNK) * probe_kernels.CHUNK
    filling = probe_kernels.fill(target, elements, lanes)
    with bench.session.deadline(3 * (bench.timeouts.probe_secs + filling.slowest_secs)):
        make = bench.load(filling.library)
        tensors = [bench.empty(TensorSpec((elements,), "float32")) for _ in range(3)]
        for tensor in tensors:
            make["main"](tensor)
    kernel = probe_kernels.triad(target, elements, lanes)
    [secs] = fastest_secs(bench, [(kernel, tensors)])
    return kernel.work / secs


def _cpu_limits(target: str, caches: Mapping[str, int]) -> dict[str, int]:
    if not caches.keys() >= _ASSUMED_CACHES.keys():
        _log.warning("the device does not tell its cache sizes: assuming %s bytes by level", _ASSUMED_CACHES)
    sizes = {**_ASSUMED_CACHES, **caches}
    return {
        "registers": vector_registers(target),
        "l1_bytes": sizes["1"],
        "l2_bytes": sizes["2"],
        "l3_bytes": sizes.get("3", 0),
    }


def cuda_limits(device: Any) -> dict[str, Any]:
    """Return the fields of :class:`DeviceAbstraction` that TVM's ``device`` reports, and the fields that follow from
    its compute capability, number of multiprocessors and highest clock."""
    cores = tensor_cores(str(device.compute_version))
    return {
        "registers": int(device._GetDeviceAttr(device.dlpack_device_type(), device.index, _MAX_REGISTERS_PER_BLOCK)),
        "l1_bytes": int(device.max_shared_memory_per_block),
        "l2_bytes": int(device.l2_cache_size_bytes),
        "l3_bytes": 0,
        "max_threads_per_block": int(device.max_threads_per_block),
        "tensor_cores": cores.count,
        "tensor_flops": tensor_flops(cores, int(device.multi_processor_count), 1e3 * (device.max_clock_rate or 0)),
    }


def _text(content: bytes) -> str:
    """Return a sysfs file as text. Some servers pad it with zeros to the size that sysfs claims for it."""
    return content.rstrip(b"\0").decode().strip()
