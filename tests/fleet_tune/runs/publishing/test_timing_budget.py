"""How long a network is timed before it is published."""

from __future__ import annotations

import math

import pytest

from fleet_tune.runs.publishing import network_runners
from fleet_tune.runs.publishing.network_runners import budget_of


@pytest.mark.parametrize(("spare_secs", "secs"), [(math.inf, 3.0), (60.0, 3.0), (6.0, 1.2), (1.0, 0.75)])
def test_a_short_run_times_its_network_briefly(spare_secs: float, secs: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_runners, "BUDGET_SECS", 3.0)
    assert budget_of(spare_secs) == pytest.approx(secs)
