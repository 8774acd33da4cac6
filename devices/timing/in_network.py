"""The time of each kernel within a network: with the caches as the kernels before it leave them.

A kernel that is timed alone finds its inputs and weights where its own last run left them. In the network its weights
are cold, and its inputs are what the kernel before it wrote. TVM's virtual machine can report before and after every
call. A second machine of the same library does that, so that the first one runs at full speed, and the two take turns:
a slow-down of the device hits both.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

_MOST_ROUNDS = 50
_BUILTIN = "vm.builtin."
_CPU = 1  # of DLPack


@dataclass(frozen=True)
class InNetworkTimes:
    """Times of a network and of the kernels in it. Kernels go by their names in the library."""

    secs: float
    """Median of whole runs that were not instrumented."""
    kernel_secs: Mapping[str, float]
    """Median over runs of the seconds of all calls of a kernel in one run."""
    calls: Mapping[str, int]
    """Calls of each kernel in one run."""
    left_over_secs: float
    """Median of the seconds of a run that are not in its kernels."""


class KernelClock:
    """Instrument of a virtual machine that times its calls. ``sync``: waits until the device is done; None where calls
    do."""

    def __init__(self, sync: Callable[[], None] | None = None) -> None:
        self._sync = sync
        self._began: list[float] = []
        self.secs: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()

    def __call__(self, _function: Any, symbol: str, before_run: bool, _returned: Any, *_arguments: Any) -> None:
        """Note the time before or after a call."""
        if symbol.startswith(_BUILTIN):
            return
        if self._sync is not None:
            self._sync()
        now = time.perf_counter()
        if before_run:
            self._began.append(now)
        else:
            self.secs[symbol] += now - self._began.pop()
            self.calls[symbol] += 1

    def clear(self) -> None:
        """Forget the last run."""
        self.secs.clear()
        self.calls.clear()


def time_in_turn(
    plain: Callable[[], None], watched: Callable[[], None], clock: KernelClock, budget_secs: float
) -> InNetworkTimes:
    """Return the times of a network from instrumented and plain runs in turn, for about ``budget_secs``, each at least
    once.

    ``plain``, ``watched``: run the network until the device is done.
    """
    first_secs = _timed(plain)  # the first run of each allocates
    if first_secs < budget_secs / 2:
        watched()
        first_secs = _timed(plain)
    rounds = int(max(1, min(_MOST_ROUNDS, budget_secs / 2 / max(first_secs, 1e-9))))
    whole: list[float] = []
    left_over: list[float] = []
    of_kernels: dict[str, list[float]] = {}
    for _ in range(rounds):
        whole.append(_timed(plain))
        clock.clear()
        watched_secs = _timed(watched)
        # The difference within one run: on a busy machine two runs differ by more than this.
        left_over.append(watched_secs - sum(clock.secs.values()))
        for name, secs in clock.secs.items():
            of_kernels.setdefault(name, []).append(secs)
    kernel_secs = {name: statistics.median(times) for name, times in of_kernels.items()}
    return InNetworkTimes(statistics.median(whole), kernel_secs, dict(clock.calls), statistics.median(left_over))


def time_in_place(plain: Any, module: Any, device: Any, arguments: Sequence[Any], budget_secs: float) -> InNetworkTimes:
    """Return the times of the kernels of a network. ``plain``: a virtual machine of ``module`` on ``device`` without an
    instrument."""
    from tvm.runtime.vm import VirtualMachine  # as Relax's, and in TVM's runtime library too

    clock = KernelClock(device.sync if device.dlpack_device_type() != _CPU else None)
    watched = VirtualMachine(module, device)
    watched.set_instrument(clock)

    def run(machine: Any) -> None:
        machine["main"](*arguments)
        device.sync()

    return time_in_turn(partial(run, plain), partial(run, watched), clock, budget_secs)


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def kernel_of(name: str) -> str:
    """Return the name that a kernel of the library had before the layout conversion of its weights was split off."""
    return name.removesuffix("_prepacked")
