"""A build worker's child without a compiler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers.build_child import write_stand_in


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module that a :class:`devices.builds.builder.BuildWorker` is to run; see tests/helpers/build_child.py."""
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([inherited] if inherited else [])]))
    return write_stand_in(tmp_path)
