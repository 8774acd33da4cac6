"""The network that is compiled here."""

from __future__ import annotations

import pytest

from devices.networks.frontend import load_network
from examples.networks import mlp
from tests.helpers.compiling import Example
from tests.helpers.network_worker import run_networks_here


@pytest.fixture(scope="session")
def example() -> Example:
    return Example.of(load_network(mlp()))


@pytest.fixture(autouse=True)
def nobody_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run beside these; a test of a busy host says how busy it is."""
    monkeypatch.setattr("devices.host.background_load._now", lambda: None)


@pytest.fixture
def networks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose networks do not crash; others have fresh processes."""
    run_networks_here(monkeypatch)
