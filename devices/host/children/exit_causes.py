"""Whose doing it was that a process ended.

Native code ends its own process by other signals than people and the kernel end it: SIGSEGV, SIGILL, SIGABRT and their
like, and SIGABRT or an error where it wants more memory than it may have, for allocations beyond that are refused
(:func:`devices.host.limits.confinement.confine`). SIGKILL, SIGTERM and their like come from outside, and say nothing of
what the process worked on. There is one exception: where a machine has less memory left than a process may have, the
kernel ends that process in place of refusing it memory; :func:`with_memory_reason` tells by how much it had.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_OUTSIDE = re.compile(rf"\bkilled by ({'|'.join(each.name for each in _FROM_OUTSIDE)})\b")
_FOR_ITS_MEMORY = "for its memory"


def describe_exit(code: int) -> str:
    """A process' exit code in words, as :mod:`subprocess` gives it: negative is the number of a signal."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def ended_from_outside(end: str) -> bool:
    """Whether a process that ended so was ended from outside. ``end``: in the words of :func:`describe_exit`, with the
    process' last words behind a semicolon or without them."""
    how = end.partition(";")[0]
    return _OUTSIDE.search(how) is not None and _FOR_ITS_MEMORY not in how


def with_memory_reason(end: str, peak_bytes: int, limit_bytes: int, oom_kills: int) -> str:
    """``end``, which says so where the process was ended for want of memory that it had itself: the kernel ended
    something for that while it ran (``oom_kills`` times, see :func:`oom_kill_count`), and it had half of what it may
    have or more."""
    if not (ended_from_outside(end) and oom_kills > 0 and 2 * peak_bytes >= limit_bytes):
        return end
    return f"{end} {_FOR_ITS_MEMORY}: it had {peak_bytes >> 20} of the {limit_bytes >> 20} MiB that it may have"


def oom_kill_count(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel has ended for want of memory since it started, those of control groups among
    them; 0 where it does not tell."""
    try:
        found = re.search(r"^oom_kill (\d+)$", vmstat.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
