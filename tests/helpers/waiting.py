"""Waiting on a condition with a deadline, in the place of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, deadline_secs: float = 60.0) -> None:
    """Returns as soon as ``condition`` holds; fails with ``what`` where it does not within ``deadline_secs``."""
    deadline = time.monotonic() + deadline_secs
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_secs:g} s: {what}"
        time.sleep(0.01)
