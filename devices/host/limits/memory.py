"""Memory of child processes: its limit, and what they use."""

from __future__ import annotations

import resource
from pathlib import Path

# Words of TVM, LLVM and Python for an allocation that failed.
_MEMORY_WORDS = ("out of memory", "allocation failed", "bad_alloc", "memoryerror", "cannot allocate memory")


def limit_memory(limit_bytes: int) -> None:
    """Make allocations of this process fail beyond ``limit_bytes`` of private memory (code and mapped files do not
    count). So a build that needs more fails instead of using up the host's memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def over_memory(text: str) -> bool:
    """Return true if an error's text, or a process' last words, say that memory was refused."""
    return any(words in text.lower() for words in _MEMORY_WORDS)


def memory_lacked(text: str) -> bool:
    """Return true if a process that ended with ``text`` may have lacked memory: it was refused some, or it was killed
    from outside, mostly by the kernel of a machine that has no memory left."""
    return over_memory(text) or "SIGKILL" in text


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
