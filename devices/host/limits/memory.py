"""The memory of child processes: how much one may take, and has."""

from __future__ import annotations

import resource
from pathlib import Path

# How TVM, LLVM and Python say that an allocation failed.
_MEMORY_WORDS = ("out of memory", "allocation failed", "bad_alloc", "memoryerror", "cannot allocate memory")


def limit_memory(limit_bytes: int) -> None:
    """Let allocations of this process fail beyond ``limit_bytes`` of private memory (code and mapped files do not
    count): a build that needs more fails, and does not take the host's memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def over_memory(text: str) -> bool:
    """Whether an error's text, or a process' last words, say that memory was refused."""
    return any(words in text.lower() for words in _MEMORY_WORDS)


def memory_lacked(text: str) -> bool:
    """Whether a process that ended so may have lacked memory: it was refused some, or was killed from outside, which is
    the kernel's doing mostly, on a machine that has none left."""
    return over_memory(text) or "SIGKILL" in text


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
