"""Causes of a process' end: its own fault, somebody outside, or its memory.

Native code ends its own process by other signals than people and the kernel end it: SIGSEGV, SIGILL, SIGABRT and their
like, and SIGABRT or an error where it wants more memory than its limit, because allocations beyond that are refused
(:func:`devices.host.limits.confinement.confine`). SIGKILL, SIGTERM and their like come from outside, and say nothing of
what the process worked on. There is one exception: where a machine has less memory left than a process may have, the
kernel kills that process instead of refusing it memory; :func:`with_memory_reason` decides that by the memory that it
had.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_OUTSIDE = re.compile(rf"\bkilled by ({'|'.join(each.name for each in _FROM_OUTSIDE)})\b")
_FOR_ITS_MEMORY = "for its memory"


def describe_exit(code: int) -> str:
    """Return a process' exit code in words. ``code``: as :mod:`subprocess` gives it, negative for a signal."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def ended_from_outside(end: str) -> bool:
    """Return true if a process was ended from outside.

    ``end``: in the words of :func:`describe_exit`, with or without the process' last words behind a semicolon.
    """
    how = end.partition(";")[0]
    return _OUTSIDE.search(how) is not None and _FOR_ITS_MEMORY not in how


def with_memory_reason(end: str, peak_bytes: int, limit_bytes: int, oom_kills: int) -> str:
    """Return ``end``, and say so where the process was killed for its own memory: the kernel killed something for want
    of memory while it ran (``oom_kills`` times, see :func:`oom_kill_count`), and it had at least half of its limit."""
    if not (ended_from_outside(end) and oom_kills > 0 and 2 * peak_bytes >= limit_bytes):
        return end
    return f"{end} {_FOR_ITS_MEMORY}: it had {peak_bytes >> 20} of the {limit_bytes >> 20} MiB that it may have"


def oom_kill_count(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the kernel has killed for want of memory since it started, those of control groups
    included; 0 where it does not tell."""
    try:
        found = re.search(r"^oom_kill (\d+)$", vmstat.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
