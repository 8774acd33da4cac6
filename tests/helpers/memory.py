"""The rise of the resident memory of this process for a while. Linux only: it is read from ``/proc/self``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

_STATUS, _REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextlib.contextmanager
def rise_below(most_bytes: int) -> Iterator[None]:
    """Assert that at no moment of the block more than ``most_bytes`` are resident than at its beginning."""
    _REFS.write_text("5")  # the peak is what is resident now
    before = _resident_bytes("VmHWM")
    yield
    rise = _resident_bytes("VmHWM") - before
    assert rise <= most_bytes, f"memory rose by {rise / 2**20:.0f} MiB, more than {most_bytes / 2**20:.0f}"


def _resident_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])
