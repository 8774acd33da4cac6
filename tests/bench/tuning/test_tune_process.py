"""What is read off one run of ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.tuning.tune_process import curve, measuring_secs
from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task


def test_a_device_measured_for_its_share_of_the_whole_run() -> None:
    assert measuring_secs({"cpu-2": {"measure": 0.25, "search": 0.75}}, 80.0) == 20.0
    assert measuring_secs({}, 80.0) == 0.0, "a run that had nothing to measure"


def test_a_point_has_the_device_seconds_of_the_trials_so_far(tmp_path: Path) -> None:
    task = make_task("a")

    def record(number: int, at: float, measured: Measurement, measure_secs: float, revision: int = 0) -> Record:
        made = make_record(
            make_candidate(task, number), replace(measured, measure_secs=measure_secs), revision=revision
        )
        return replace(made, unix_secs=at)

    with RecordStore(tmp_path / "records.db") as store:
        store.put_task(task)
        store.append(
            [
                record(1, 100.0, ok(3.0), 0.5),
                record(2, 101.0, failed(Outcome.RUN_ERROR, "gone"), 2.0),
                record(3, 103.0, ok(1.0), 0.25),
                record(3, 104.0, ok(1.0), 9.0, revision=1),
            ]
        )
    points = curve(tmp_path, 7.0)
    assert [(point["secs"], point["trials"], point["device_secs"]) for point in points[:2]] == [
        (7.0, 1, 0.5),
        (10.0, 3, 2.75),
    ]
    assert points[1]["latency"] == pytest.approx(ok(1.0).rank_secs)
