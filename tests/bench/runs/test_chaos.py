"""A run under fire, for real: a few kills and stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.scheduling import heartbeats
from bench.runs import chaos_process

TRIALS = 240


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
async def test_a_run_under_fire_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "PATIENCE_SECS", 4.0)
    monkeypatch.setattr(heartbeats, "LONG_PATIENCE_SECS", 6.0)
    found = await chaos_process.play(3, TRIALS, 2, 1, None, tmp_path)
    assert len(found["kills"]) == 3
    assert {each["role"] for each in found["kills"]} <= set(chaos_process.ACTORS)
    assert (found["trials"], found["lost"], found["doubled"]) == (TRIALS, 0, 0)
    assert found["acknowledged"] >= TRIALS  # with what the shoot-outs found
