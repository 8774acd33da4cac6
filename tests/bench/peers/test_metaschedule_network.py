"""What is kept of MetaSchedule's tuning of a network."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bench.peers.metaschedule import Timeline, stored_workloads
from bench.peers.metaschedule_network import Moments, runner_secs


class Clock:
    """MetaSchedule's profiler, as far as it is asked."""

    def __init__(self) -> None:
        self.spent = {"EvolutionarySearch": 70.0, "SendToRunner": 2.0}

    def get(self) -> dict[str, float]:
        return self.spent


def test_the_device_was_taken_while_the_runner_had_it() -> None:
    clock = Clock()
    assert runner_secs(clock) == 2.0
    clock.spent["JoinRunnerFutures"] = 0.5
    assert runner_secs(clock) == 2.5


def test_the_database_is_kept_after_the_first_batch_past_each_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database, clock = tmp_path / "database", Clock()
    database.mkdir()
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    timeline = Timeline(0.0, 1000.0)
    moments = Moments(timeline, clock, database, (60.0, 15.0, 30.0))
    for now in (10.0, 40.0, 50.0, 65.0, 90.0):
        (database / "records").write_text(f"at {now:g}")
        clock.spent["SendToRunner"] = now / 2
        for callback in (moments, timeline):
            callback._inst.apply(None, 0, [None] * 4, [], [])  # as MetaSchedule calls it
    found = [((folder / "records").read_text(), figures) for folder, figures in moments.kept]
    assert found == [
        ("at 40", {"secs": 40.0, "trials": 8, "device_secs": 20.0}),
        ("at 65", {"secs": 65.0, "trials": 16, "device_secs": 32.5}),
    ]


def test_all_tasks_have_had_a_batch_before_anything_is_kept_or_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MetaSchedule tells of the first batch of each task when it has built and measured them all."""
    database = tmp_path / "database"
    database.mkdir()
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    timeline = Timeline(0.0, 50.0, tasks=3)
    moments = Moments(timeline, Clock(), database, (0.0, 15.0, 80.0))

    def batch() -> None:
        for callback in (moments, timeline):
            callback._inst.apply(None, 0, [None] * 4, [], [])

    now = 60.0
    for _ in range(2):
        batch()
    assert (moments.kept, timeline.time_up) == ([], False)
    now = 62.0
    with pytest.raises(RuntimeError, match="time is up"):
        batch()
    assert [figures["trials"] for _, figures in moments.kept] == [12]


def test_workloads_with_a_measured_time_are_counted_by_number(tmp_path: Path) -> None:
    assert stored_workloads(tmp_path) == []
    rows = [[0, ["trace", [0.1]]], [2, ["trace", [1e10]]], [0, ["trace", [0.2]]], [1, ["trace", []]]]
    (tmp_path / "database_tuning_record.json").write_text("\n".join(json.dumps(row) for row in rows))
    assert stored_workloads(tmp_path) == [0, 0]
