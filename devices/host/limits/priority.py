"""Exclusive CPUs for a kernel, as far as the host allows it: real-time priority, and a core for each of its threads.

TVM's thread pool waits with ``sched_yield``, which on a shared host hands the core to any other process: under load the
run times of one kernel spread by 20 %. With SCHED_FIFO, at its lowest priority, no ordinary process runs on the cores
of the kernel's threads meanwhile, and they spread by 1 %. (``nice`` does not help: the kernel's autogroups weigh
sessions against each other, and nice values only within one.)

A candidate that hangs must not block the machine. So the priority is raised around single micro-batches, each of which
the kernel's timer ends (:func:`devices.timing.evaluator.kill_after`), and only on a host whose kernel keeps a share
of every second for all others (``sched_rt_runtime_us``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

KERNEL_PRIORITY = 1  # the lowest: above everything that is not real-time, below everything that is


def refusal(root: Path = Path("/")) -> str:
    """Return why this process cannot raise its priority, or must not; empty if it can."""
    try:
        runtime = int((root / "proc/sys/kernel/sched_rt_runtime_us").read_text())
        period = int((root / "proc/sys/kernel/sched_rt_period_us").read_text())
    except (OSError, ValueError):
        return "this system does not say which share of the time it keeps from real-time processes"
    if not 0 <= runtime < period:
        return "this system lets real-time processes have all of the time (sched_rt_runtime_us)"
    before = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(KERNEL_PRIORITY))
        os.sched_setscheduler(0, before, os.sched_param(0))
    except OSError as error:
        return f"real-time priority: {error.strerror}"
    return ""


class RealtimePriority:
    """Real-time priority for the kernels of this process, if it is ``wanted`` and allowed."""

    def __init__(self, wanted: bool = True) -> None:
        #: Reason why kernels run without it; empty if they have it.
        self.refused = refusal() if wanted else "not wanted"

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Run the block and the threads of TVM's pool at real-time priority; threads that the block starts inherit it.

        This process' other Python threads keep theirs: they watch over the kernel.
        """
        if self.refused:
            yield
            return
        _schedule(os.SCHED_FIFO, KERNEL_PRIORITY)
        try:
            yield
        finally:
            _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    for thread in kernel_threads():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setscheduler(thread, policy, os.sched_param(priority))


def kernel_threads() -> list[int]:
    """Return the ids of the calling thread and of all threads that are not Python's: TVM's pool."""
    others = {thread.native_id for thread in threading.enumerate()} - {threading.get_native_id()}
    return [thread for name in os.listdir("/proc/self/task") if (thread := int(name)) not in others]


def pin_beside_pool() -> None:
    """Bind the calling thread, which runs its share of a kernel, to a core that TVM's pool has left for it.

    TVM binds each thread of its pool to a core, but lets the calling thread move, also to the cores of the pool.
    """
    allowed = os.sched_getaffinity(0)
    here = threading.get_native_id()
    pool = [os.sched_getaffinity(thread) for thread in kernel_threads() if thread != here]
    core = free_core(allowed, pool)
    if core is not None:
        os.sched_setaffinity(0, {core})


def free_core(allowed: set[int], pool: Iterable[set[int]]) -> int | None:
    """Return the first core of ``allowed`` that no bound thread of ``pool`` has; ``None`` if a thread may run anywhere,
    no core is left, or there is no pool."""
    bound = list(pool)
    if not bound or any(len(cores) != 1 for cores in bound):
        return None
    return min(allowed.difference(*bound), default=None)
