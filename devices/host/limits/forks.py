"""Forks of a process that runs compiled networks: the locks and the handles of TVM's thread pool that the child needs.

The child of a fork has one thread, the one that forked, and a copy of the memory as it was at that moment. A lock that
another thread held stays locked in it, and what that thread was changing stays half changed. The threads of TVM's pool
do not exist in the child, but the pool does not know that: kernels would wait for them without end, and so would the
end of the process.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from fleet_tune.base.errors import UserError

#: glibc keeps the stacks of ended threads, up to this sum.
_STACK_CACHE_BYTES = 40 * 2**20
#: Size of a stack if ``ulimit -s`` is unlimited.
_STACK_BYTES = 2 * 2**20


class ForkError(UserError, RuntimeError):
    """A network that cannot run in a process that was forked: start the process in another way."""


class ForkLocks:
    """Locks that every fork of this process waits for, so that the data that they guard is consistent in the child.

    A thread takes one of them at a time. A fork takes all, in the order in which they were made.
    """

    def __init__(self, before: Callable[[], None], in_child: Callable[[], None]) -> None:
        """``before`` and ``in_child`` are called in the thread that forks, which holds all locks."""
        self._all = threading.RLock()
        self._made: weakref.WeakValueDictionary[int, threading.RLock] = weakref.WeakValueDictionary()
        self._count = 0
        self._held: list[threading.RLock] = []
        self._before, self._in_child = before, in_child
        os.register_at_fork(before=self._take, after_in_parent=self._release, after_in_child=self._continue_in_child)

    def make(self) -> threading.RLock:
        """Return a new lock. Its owner may fork (in a signal handler): it is reentrant."""
        lock = threading.RLock()
        with self._all:
            self._made[self._count] = lock
            self._count += 1
        return lock

    def _take(self) -> None:
        self._all.acquire()
        self._held = [lock for _, lock in sorted(self._made.items())]
        for lock in self._held:
            lock.acquire()
        self._before()

    def _continue_in_child(self) -> None:
        try:
            self._in_child()
        finally:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        for lock in held:
            lock.release()
        self._all.release()


def thread_count() -> int:
    """Return the number of threads of this process, those of libraries among them."""
    return len(os.listdir("/proc/self/task"))


def wake_pool() -> None:
    """Make the threads of the calling thread's pool look for work, as they do for a while after each kernel.

    Later they sleep in condition variables. The end of a pool waits until no thread is in these: in the child of a fork
    it would wait forever.
    """
    import tvm

    runtime = ctypes.CDLL(str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"))
    # A task of the pool returns 0 if it succeeds, and so does this function, which ignores its arguments.
    idle = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p)
    runtime.TVMBackendParallelLaunch(idle, None, 0)


def revive_handles(count: int) -> int:
    """Make the handles of ``count`` threads that a fork has not copied valid again: the end of a pool joins them.

    Called in the child before it starts a thread. Returns the number of threads that were started for it.

    A handle is an address in the thread's stack. glibc unmaps the stacks of dead threads, or gives them to new ones. So
    new threads get these stacks here. They end at once, and only the owner of a handle joins them.
    """
    libc = ctypes.CDLL(None)
    stack_bytes = resource.getrlimit(resource.RLIMIT_STACK)[0]
    cached = _STACK_CACHE_BYTES // (stack_bytes if stack_bytes > 0 else _STACK_BYTES)
    for started in range(count + cached):
        if libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.getpid, None):
            return started
    return count + cached
