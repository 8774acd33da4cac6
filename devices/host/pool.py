"""Which CPUs TVM's threads run on."""

from __future__ import annotations

from collections.abc import Sequence

# TVM's AffinityMode kSpecifyOneCorePerThread. Others count the machine's CPUs from 0 on, also those that this process
# may not use, and move it there.
_ONE_CPU_PER_THREAD = -2


def bind_pool(cpus: Sequence[int]) -> None:
    """Gives the calling thread's pool a thread on each of ``cpus``, its own among them; TVM has one pool for each
    thread that calls kernels. Not more threads than ``TVM_NUM_THREADS`` says, and none is bound where
    ``TVM_BIND_THREADS`` is 0."""
    import tvm_ffi

    tvm_ffi.get_global_func("runtime.config_threadpool")(_ONE_CPU_PER_THREAD, len(cpus), [str(cpu) for cpu in cpus])
