"""A record store in a folder that is not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_tune.base.records.stores.store import RecordStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "records.db"


@pytest.fixture
def store(path: Path) -> Iterator[RecordStore]:
    with RecordStore(path) as opened:
        yield opened
