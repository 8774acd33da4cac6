"""Causes of a process' end: its own fault, somebody outside, or its memory.

Native code ends its own process with SIGSEGV, SIGILL, SIGABRT and similar signals. If it needs more memory than its
limit, allocations fail (:func:`devices.host.limits.confinement.confine`), and it ends with SIGABRT or an error.
SIGKILL, SIGTERM and similar signals come from people or the kernel, and say nothing about the work of the process.
There is one exception: if a machine has less memory left than a process may have, the kernel kills that process instead
of refusing it memory. :func:`with_memory_reason` recognises this by the memory that the process had.
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

    ``end``: in the words of :func:`describe_exit`, with or without the process' last words after a semicolon.
    """
    how = end.partition(";")[0]
    return _OUTSIDE.search(how) is not None and _FOR_ITS_MEMORY not in how


def with_memory_reason(end: str, peak_bytes: int, limit_bytes: int, oom_kills: int) -> str:
    """Return ``end``, with a reason added if the process was killed for its own memory: the kernel killed processes for
    lack of memory while it ran (``oom_kills``, see :func:`oom_kill_count`), and it had at least half of its limit."""
    if not (ended_from_outside(end) and oom_kills > 0 and 2 * peak_bytes >= limit_bytes):
        return end
    return f"{end} {_FOR_ITS_MEMORY}: it had {peak_bytes >> 20} of the {limit_bytes >> 20} MiB that it may have"


def oom_kill_count(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the kernel has killed for lack of memory since it started, including those of control
    groups; 0 if it does not report it."""
    try:
        found = re.search(r"^oom_kill (\d+)$", vmstat.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
