"""Runs whose networks are timed no longer than it takes to see that they are timed."""

from __future__ import annotations

import pytest

from tests.helpers.brief import time_networks_briefly


@pytest.fixture(autouse=True)
def networks_are_timed_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    time_networks_briefly(monkeypatch)
