"""The server that all tests here share."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.team_server import Served


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    # Where we are root the server runs as another user, who does not reach pytest's own folders.
    path = Path(tempfile.mkdtemp(prefix="fleet-tune-store-"))
    path.chmod(0o755)
    server = Served(path / "team")
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.end()
        shutil.rmtree(path, ignore_errors=True)
