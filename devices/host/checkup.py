"""Checks of a host on which kernels are built and measured: what makes runs fail, and what makes times spread.

Each function checks one thing. ``root`` is the folder of the system's files; tests pass another one.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from devices.host.background_load import BackgroundLoad
from devices.host.limits.confinement import memory_total_bytes
from devices.host.limits.priority import refusal
from devices.host.machine import processor_name
from devices.host.system_files import text_of
from fleet_tune.base.cpus import cpu_quota
from fleet_tune.base.diagnosis import Diagnosis, good, problem, warning

_GIB = 1 << 30
_LEAST_MEMORY = 4 * _GIB
_LEAST_SHARED = 1 * _GIB
_LEAST_SPACE, _LITTLE_SPACE = _GIB // 4, 4 * _GIB
_LEAST_FILES = 4096
_OTHERS_CORES = 0.1
_LOAD_SECS = 1.0
_FAST_CLOCKS = ("tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "riscv_clocksource")
"""Clock sources that are read without a system call."""


def host_diagnoses(folders: Iterable[Path], root: Path = Path("/")) -> Iterator[Diagnosis]:
    """Check this host. ``folders``: folders that runs write into. It takes a second."""
    yield processor(root)
    yield governor(root)
    yield clock(root)
    yield others()
    yield priority(root)
    yield memory(root)
    yield shared_memory(root)
    yield open_files()
    for folder in folders:
        yield space(folder)


def processor(root: Path) -> Diagnosis:
    """Return the processor, and whether a quota of the control group stops processes that use all of it."""
    cpus, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    name = f"{processor_name(root)}, {cpus} CPUs" if cpus > 1 else f"{processor_name(root)}, 1 CPU"
    if quota < cpus:
        told = f"{name}, of which a quota allows {quota:g}: processes stand still for a part of each period"
        return warning("processor", told, "give the container whole CPUs (--cpuset-cpus) instead of a quota")
    return good("processor", name)


def governor(root: Path) -> Diagnosis:
    """Return the governor of the clock."""
    files = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    governors = Counter(text for file in files if (text := text_of(file)))
    if not governors:
        return good("governor", "the system does not tell: a virtual machine, mostly")
    told = ", ".join(f"{name} ({count} CPUs)" for name, count in sorted(governors.items()))
    if "powersave" in governors or "ondemand" in governors or "conservative" in governors:
        return warning("governor", told, "cpupower frequency-set -g performance: the clock changes while kernels run")
    return good("governor", told)


def clock(root: Path) -> Diagnosis:
    """Return the source of the clock that kernels are timed by."""
    name = text_of(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not name or name in _FAST_CLOCKS:
        return good("clock", name or "the system does not tell")
    step = "choose tsc (/sys/devices/system/clocksource): reading this one takes microseconds"
    return warning("clock", name, step)


def others() -> Diagnosis:
    """Return the work of other processes in the next second."""
    with BackgroundLoad() as load:
        time.sleep(_LOAD_SECS)
    if load.cores is None:
        return good("other work", "the system does not tell")
    told = f"other processes use {load.cores:.1f} of the CPUs"
    if load.cores < _OTHERS_CORES:
        return good("other work", told)
    return warning("other work", told, "measure on a machine that does nothing else: times spread")


def priority(root: Path) -> Diagnosis:
    """Return whether kernels may be measured at real-time priority."""
    reason = refusal(root)
    if not reason:
        return good("priority", "kernels are measured at real-time priority")
    step = "grant CAP_SYS_NICE, or LimitRTPRIO=1 in a systemd unit: other processes get in between less"
    return warning("priority", f"kernels are measured at normal priority ({reason})", step)


def memory(root: Path) -> Diagnosis:
    """Return the memory that this process may use."""
    total = memory_total_bytes(root)
    told = f"{total / _GIB:.1f} GiB"
    if total < _LEAST_MEMORY:
        return warning("memory", told, "runs of large networks need 4 GiB: builders are stopped where it ends")
    return good("memory", told)


def shared_memory(root: Path) -> Diagnosis:
    """Return the space of the folder that Ray holds its objects in."""
    folder = root / "dev/shm"
    if not folder.is_dir():
        return good("shared memory", "the system has none: Ray takes the temporary folder")
    total = shutil.disk_usage(folder).total
    told = f"{total / _GIB:.2f} GiB in /dev/shm"
    if total < _LEAST_SHARED:
        return warning("shared memory", told, "give the container more (docker run --shm-size=2g): Ray writes to disk")
    return good("shared memory", told)


def open_files() -> Diagnosis:
    """Return how many files a process may open. A process may raise its own limit up to the hard one, as Ray does."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _LEAST_FILES:
        return warning("open files", f"at most {most}", f"raise the limit (ulimit -Hn {_LEAST_FILES}) for large fleets")
    return good("open files", "no limit" if most == resource.RLIM_INFINITY else f"at most {most}")


def space(folder: Path) -> Diagnosis:
    """Return the space on the drive of a folder, and whether it can be written into."""
    subject = f"folder {folder}"
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return problem(subject, f"{there} cannot be written into", "change its owner, or name another folder")
    free = shutil.disk_usage(there).free
    told = f"{free / _GIB:.1f} GiB free"
    if free < _LEAST_SPACE:
        return problem(subject, told, "make space: records cannot be written")
    if free < _LITTLE_SPACE:
        return warning(subject, told, "make space: built kernels of a long run take some GiB")
    return good(subject, told)
