"""Runs whose networks are timed no longer than it takes to see that they are timed."""

from __future__ import annotations

import pytest

from devices.networks.processes import fresh_process
from fleet_tune.runs import framework_times
from fleet_tune.runs.publishing import compile_request, device_runner, network_runners, versions_in_network


@pytest.fixture(autouse=True)
def networks_are_timed_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run beside these: no time of a network means anything, and no host becomes quiet."""
    for module in (network_runners, device_runner):
        monkeypatch.setattr(module, "BUDGET_SECS", 0.2)
    monkeypatch.setattr(framework_times, "_WARM_SECS", 0.05)
    monkeypatch.setattr(fresh_process, "_ROUNDS", 1)  # see test_fresh_process.py
    monkeypatch.setattr(versions_in_network, "ROUNDS", 3)
    monkeypatch.setattr(compile_request, "PATIENCE_SECS", 0.0)  # see test_quiet_host.py
