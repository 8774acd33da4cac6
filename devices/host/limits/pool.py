"""CPUs and number of the threads of TVM's pools."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from devices.host.limits.forks import revive_handles, thread_count, wake_pool
from fleet_tune.base.cpus import cpu_quota, cpus_within

_P = ParamSpec("_P")
_T = TypeVar("_T")

# TVM's AffinityMode kSpecifyOneCorePerThread. Other modes count the machine's CPUs from 0 on, also those that this
# process may not use, and move it there.
_ONE_CPU_PER_THREAD = -2


def bind_pool(cpus: Sequence[int]) -> None:
    """Give the calling thread's pool a thread on each of ``cpus``, its own among them. TVM has one pool for each thread
    that calls kernels.

    There are at most ``TVM_NUM_THREADS`` threads, and none is bound if ``TVM_BIND_THREADS`` is 0.
    """
    import tvm_ffi

    tvm_ffi.get_global_func("runtime.config_threadpool")(_ONE_CPU_PER_THREAD, len(cpus), [str(cpu) for cpu in cpus])


class ThreadPools(threading.local):
    """TVM's thread pools in a process whose threads run compiled networks, each with its own number of threads.

    By default a pool uses half of the CPUs on x86. Naming the CPUs is what sets the number: a number alone is capped by
    that default at every launch. A pool never becomes larger than it was made, so each is made for the largest number
    of threads that was announced until then (:meth:`announce`).

    The child of a fork lacks the threads of the forking thread's pool: networks run there in another thread, with a
    pool of its own (:mod:`devices.host.limits.forks`).
    """

    _most = 1
    _numbers = itertools.count()

    def __init__(self) -> None:
        #: Threads that the calling thread's pool uses.
        self.threads = 0
        #: True if a fork has not copied the threads of the calling thread's pool: it can never be used again.
        self.is_lost = False
        self._made_for = 0
        # CPU quota of this process when the pool was made: more threads than that would stand still.
        self._quota = math.inf
        # Noted before a fork: the other threads of this process, and the number of the child's first pool.
        self._others = self._childs_first = 0
        # Ended threads of this process whose handles are valid.
        self._revived = 0
        self._substitute: ThreadPoolExecutor | None = None

    @classmethod
    def announce(cls, threads: int) -> None:
        """Note that a network with this number of threads will be run."""
        cls._most = max(cls._most, threads)

    def use(self, threads: int) -> int:
        """Make the calling thread's pool use ``threads`` threads, or as many as it can. Return how many.

        The calling thread keeps its CPUs: it is the user's thread, whose other work, threads and processes would
        otherwise be confined to the pool's CPUs too.
        """
        allowed = os.sched_getaffinity(0)
        if not self._made_for:
            self._quota = cpu_quota()
            self._number = next(self._numbers)
            most = cpus_within(max(self._most, threads), self._quota)
            self._made_for = len(self._bind(allowed, most))
        within = cpus_within(threads, self._quota)
        used = min(within, len(self._bind(allowed, within)), self._made_for)
        os.sched_setaffinity(0, allowed)
        self.threads = threads
        return used

    def in_substitute(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return the result of ``call``, which runs in a substitute thread: the calling thread's pool is lost."""
        if self._substitute is None:
            self._substitute = ThreadPoolExecutor(1, "network")
        return self._substitute.submit(call, *args, **kwargs).result()

    def before_fork(self) -> None:
        """Prepare the calling thread's pool, and note what the child must know."""
        self._others = thread_count() - 1 + self._revived
        self._childs_first = next(self._numbers)  # children run on CPUs of their own, as far as there are some
        if self._made_for > 1 and not self.is_lost:
            allowed = os.sched_getaffinity(0)
            self._bind(allowed, self._made_for)
            os.sched_setaffinity(0, allowed)
            self.threads = 0
            wake_pool()

    def in_child(self) -> None:
        """Take note, in the child of a fork, that the calling thread is its only one."""
        ThreadPools._numbers = itertools.count(self._childs_first)
        self.threads, self._substitute = 0, None
        if self._made_for > 1:
            self.is_lost = True
            self._revived = revive_handles(self._others)

    def _bind(self, allowed: Collection[int], threads: int) -> list[int]:
        cpus = cpus_of_pool(allowed, threads, self._number)
        bind_pool(cpus)
        return cpus


def cpus_of_pool(allowed: Collection[int], threads: int, number: int) -> list[int]:
    """Return the CPUs of the process's pool with this ``number``, counted from 0: ``threads`` of those ``allowed``, or
    all of them if there are fewer. Pools share no CPU before all are taken."""
    order, begin = sorted(allowed), number * threads % len(allowed)
    return (order[begin:] + order[:begin])[:threads]
