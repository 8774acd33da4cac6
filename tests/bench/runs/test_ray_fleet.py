"""The simulated fleet on the real runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.runs import ray_fleet_process


@pytest.mark.usefixtures("ray_cluster")
async def test_simulated_devices_are_kept_at_work_by_the_real_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_fleet_process, "_WARM_UP_SECS", 1.0)
    row = await ray_fleet_process.play(4, 0.05, 0.05, 2.0, tmp_path)
    assert row["devices"] == 4
    assert row["trials_a_second"] > 0
    assert set(row["bound"]) == {"board", "server", "card"}
    assert 0 < row["busy"] <= 1.05
    assert row["cpu_secs_a_record_by_role"]["Scheduler"] > 0
