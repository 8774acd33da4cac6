"""A dashboard in a process of its own, and a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="needs Chromium: apt-get install chromium"
)


@contextmanager
def dashboard(path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``fleet-tune dashboard`` on a path; yields its address and its process."""
    command = [sys.executable, "-m", "fleet_tune", "dashboard", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), process.wait()
            yield address.rstrip("/"), process
        finally:
            process.kill()
