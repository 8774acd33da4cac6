"""The time of each kernel within a network, with the caches as the kernels before it leave them.

A kernel that is timed alone finds its inputs and weights where its own last run left them. In the network its weights
are cold, and the kernel before it has written its inputs. TVM's virtual machine can call an instrument before and after
every call. A second virtual machine of the same library does that, so that the first one runs at full speed. The two
take turns, so that a slow-down of the device affects both. The instrument's own time, about a microsecond of each call,
is subtracted. It is measured on the machine's built-in calls, which do almost nothing.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

PART_SUFFIX = "_part"
"""Suffix, followed by a number, in the name of a kernel that writes or reads parts of tensors
(:mod:`devices.builds.concatenations`)."""
_MOST_ROUNDS = 50
_MOST_ARGUMENTS = 8
_CALIBRATIONS = 200
_BUILTIN = "vm.builtin."
_CPU = 1  # of DLPack
MAIN = "main"
MAIN_BY_KERNEL = "main_by_kernel"
"""``main`` of a CUDA library whose kernels are launched one by one, not as a CUDA graph: only then can they be
timed."""


@dataclass(frozen=True)
class InNetworkTimes:
    """Times of a network and of the kernels in it. Kernels go by their names in the library."""

    secs: float
    """Median of whole runs that were not instrumented."""
    kernel_secs: Mapping[str, float]
    """Seconds of all calls of a kernel in one run, without the instrument's own time: the median over runs."""
    calls: Mapping[str, int]
    """Calls of each kernel in one run."""
    clock_secs: float = 0.0
    """Mean of the instrument's own seconds in a call."""


def weighted_sum(times: Sequence[InNetworkTimes], weights: Sequence[float]) -> InNetworkTimes:
    """Return the times of a network over several inputs, each of which counts by its weight. Calls are those of the
    first input."""
    secs: defaultdict[str, float] = defaultdict(float)
    for each, weight in zip(times, weights, strict=True):
        for name, of_kernel in each.kernel_secs.items():
            secs[name] += weight * of_kernel
    whole = sum(weight * each.secs for each, weight in zip(times, weights, strict=True))
    return InNetworkTimes(whole, dict(secs), times[0].calls, times[0].clock_secs)


class KernelClock:
    """Instrument of a virtual machine that times its calls. ``sync``: waits until the device is done; ``None`` if calls
    wait for it themselves."""

    def __init__(self, sync: Callable[[], None] | None = None) -> None:
        self._sync = sync
        self._began: list[float] = []
        self.secs: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.arguments: dict[str, int] = {}
        """Number of arguments of each kernel."""
        self.least_secs: dict[int, float] = {}
        """Least seconds of the machine's built-in calls by their number of arguments: hardly more than this clock's own
        time."""

    def __call__(self, _function: Any, symbol: str, before_run: bool, _returned: Any, *arguments: Any) -> None:
        """Note the time before or after a call."""
        if self._sync is not None:
            self._sync()
        if before_run:
            self._began.append(time.perf_counter())
            return
        secs = time.perf_counter() - self._began.pop()
        if symbol.startswith(_BUILTIN):
            count = len(arguments)
            self.least_secs[count] = min(secs, self.least_secs.get(count, math.inf))
            return
        self.secs[symbol] += secs
        self.calls[symbol] += 1
        self.arguments[symbol] = len(arguments)

    def clear(self) -> None:
        """Forget the kernels of the last run."""
        self.secs.clear()
        self.calls.clear()

    def own_secs(self, kernel: str, argument_secs: float) -> float:
        """Return this clock's own seconds in a call of a kernel. ``argument_secs``: its seconds for each argument."""
        if not self.least_secs:
            return 0.0
        fewest = min(self.least_secs)  # numbers become objects faster than tensors do
        return max(0.0, self.least_secs[fewest] + argument_secs * (self.arguments[kernel] - fewest))


def time_in_turn(
    plain: Callable[[], None],
    watched: Callable[[], None],
    clock: KernelClock,
    budget_secs: float,
    argument_secs: float = 0.0,
) -> InNetworkTimes:
    """Return the times of a network from plain and instrumented runs in turn, which take about ``budget_secs``. There
    is at least one of each.

    ``plain``, ``watched``: run the network until the device is done. ``argument_secs``: see
    :meth:`KernelClock.own_secs`.
    """
    first_secs = _timed(plain)  # the first run of each allocates
    if first_secs < budget_secs / 2:
        watched()
        first_secs = _timed(plain)
    rounds = int(max(1, min(_MOST_ROUNDS, budget_secs / 2 / max(first_secs, 1e-9))))
    whole: list[float] = []
    of_kernels: dict[str, list[float]] = {}
    for _ in range(rounds):
        whole.append(_timed(plain))
        clock.clear()
        watched()
        for name, secs in clock.secs.items():
            of_kernels.setdefault(name, []).append(secs)
    calls, secs = dict(clock.calls), statistics.median(whole)
    own_secs = {name: count * clock.own_secs(name, argument_secs) for name, count in calls.items()}
    kernel_secs = {name: max(0.0, statistics.median(times) - own_secs[name]) for name, times in of_kernels.items()}
    return InNetworkTimes(secs, kernel_secs, calls, sum(own_secs.values()) / max(1, sum(calls.values())))


def time_in_network(
    plain: Any, module: Any, device: Any, arguments: Sequence[Any], budget_secs: float
) -> InNetworkTimes:
    """Return the times of the kernels of a network. ``plain``: a virtual machine of ``module`` on ``device`` without an
    instrument."""
    from tvm.runtime.vm import VirtualMachine  # the class of Relax, but TVM's runtime library has it too

    is_gpu = device.dlpack_device_type() != _CPU
    clock = KernelClock(device.sync if is_gpu else None)
    watched = VirtualMachine(module, device)
    watched.set_instrument(clock)

    def run(main: Any) -> None:
        main(*arguments)
        device.sync()

    by_kernel = watched[MAIN_BY_KERNEL if is_gpu else MAIN]
    return time_in_turn(partial(run, plain[MAIN]), partial(run, by_kernel), clock, budget_secs, _argument_secs())


def _argument_secs() -> float:
    """Return the seconds that each argument of a call adds to the time of an instrument: the argument becomes a Python
    object."""
    import numpy as np
    import tvm_ffi
    from tvm.runtime import tensor

    clock = KernelClock()
    call = tvm_ffi.convert(clock)
    tensors = [tensor(np.zeros(1, np.float32)) for _ in range(_MOST_ARGUMENTS)]
    medians = []
    for arguments in ([], tensors):
        secs: list[float] = []
        for _ in range(_CALIBRATIONS):
            clock.clear()
            call(call, "kernel", True, None, *arguments)
            call(call, "kernel", False, None, *arguments)
            secs.append(clock.secs["kernel"])
        medians.append(statistics.median(secs))
    return max(0.0, medians[1] - medians[0]) / _MOST_ARGUMENTS


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def kernel_of(name: str) -> str:
    """Return the original name of a kernel of the library. Its name has a suffix if the layout conversion of its
    weights was split off, and another one if it reads or writes parts of tensors."""
    return re.sub(rf"{PART_SUFFIX}\d+$", "", name).removesuffix("_prepacked")
