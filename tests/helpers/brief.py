"""Publications that time networks no longer than it takes to see that they are timed."""

from __future__ import annotations

import pytest

from devices.networks.processes import fresh_process
from fleet_tune.runs import framework_times
from fleet_tune.runs.publishing import compile_request, device_runner, network_runners, versions_in_network


def time_networks_briefly(patch: pytest.MonkeyPatch) -> None:
    """Other tests run beside: no time of a network means anything, and no host becomes quiet."""
    for module in (network_runners, device_runner):
        patch.setattr(module, "BUDGET_SECS", 0.2)
    patch.setattr(framework_times, "_WARM_SECS", 0.05)
    patch.setattr(fresh_process, "_ROUNDS", 1)  # see test_fresh_process.py
    patch.setattr(versions_in_network, "ROUNDS", 3)
    patch.setattr(compile_request, "PATIENCE_SECS", 0.0)  # see test_quiet_host.py
