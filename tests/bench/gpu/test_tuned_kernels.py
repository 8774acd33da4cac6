"""Figures of our kernels, from the records of a run, whatever became of its network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu import tuned_kernels
from bench.gpu.tuned_kernels import figures
from bench.gpu.tuning_runs import TuningRuns
from bench.result import BenchError
from fleet_tune.base.domain import Record
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import Progress
from tests.helpers.records import named_record
from tests.helpers.tasks import make_task

TASKS = {"product": make_task("w1", "gpu", flop=2e9), "3x3": make_task("w2", "gpu"), "1x1": make_task("w3", "gpu")}


def at(record: Record, unix_secs: float) -> Record:
    return dataclasses.replace(record, unix_secs=unix_secs)


def stored(out: Path) -> Path:
    out.mkdir(exist_ok=True)
    path = out / "records.db"
    with RecordStore(path) as store:
        for task in (TASKS["product"], TASKS["3x3"]):
            store.put_task(task)
        product, other = TASKS["product"].id, TASKS["3x3"].id
        store.append(
            [
                at(named_record("old", 3e-5, task_id=product), 50.0),
                at(named_record("new", 2e-5, task_id=product, decisions=(2,)), 130.0),
                at(named_record("unchecked", 1e-5, task_id=product, decisions=(3,), verified=False), 160.0),
                at(named_record("failed", None, task_id=other), 140.0),
            ]
        )
    return path


def test_the_best_verified_time_of_each_kernel_counts(tmp_path: Path) -> None:
    found = figures(stored(tmp_path / "out"), TASKS, [20.0, 100.0])
    assert found["kernels"] == {
        "product": {"best_secs": 2e-5, "flop": 2e9, "trials": 3},
        "3x3": {"best_secs": None, "flop": 1e6, "trials": 1},
        "1x1": {"best_secs": None, "flop": 1e6},
    }
    # Three that ran, in 30 s of the run that began at second 20 and 60 s of that which began at second 100.
    assert (found["trials"], found["valid"], found["valid_per_minute"]) == (4, 3, pytest.approx(2.0))


def test_the_kernels_count_where_the_network_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_model: str, *, out: Path, **_: Any) -> None:
        stored(out)
        raise RuntimeError("the network was not compiled")

    monkeypatch.setattr("fleet_tune.tune", fail, raising=False)
    monkeypatch.setattr(tuned_kernels, "device_class_of", lambda _fleet: None)
    monkeypatch.setattr(tuned_kernels, "kernel_tasks", lambda _model, _class: TASKS)
    found = tuned_kernels.tune("kernels", tmp_path / "out", tmp_path / "fleet.toml", 1.0)
    assert found["kernels"]["product"]["best_secs"] == 2e-5
    assert found["reason"] == "RuntimeError: the network was not compiled"

    def fail_at_once(_model: str, **_: Any) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr("fleet_tune.tune", fail_at_once, raising=False)
    with pytest.raises(BenchError, match="nothing was measured: RuntimeError: no device"):
        tuned_kernels.tune("kernels", tmp_path / "other", tmp_path / "fleet.toml", 1.0)


def snapshot(phase: str, elapsed_secs: float) -> Progress:
    return Progress(phase, elapsed_secs, None, None, 0, 0, {}, 0.0, {}, {}, ())


def test_a_run_that_was_cut_goes_on_for_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    now = 0.0
    monkeypatch.setattr(tuned_kernels, "TuningRuns", lambda path: TuningRuns(path, clock=lambda: now))
    monkeypatch.setattr(tuned_kernels, "device_class_of", lambda _fleet: None)
    monkeypatch.setattr(tuned_kernels, "kernel_tasks", lambda _model, _class: TASKS)

    def tune(_model: str, *, out: Path, time_budget_secs: float, on_progress: Any, **_: Any) -> Any:
        nonlocal now
        asked.append(time_budget_secs)
        began = now
        for phase, secs in (("starting", 5.0), ("describing", 10.0), ("tuning", 40.0), ("compiling", 90.0)):
            now = began + secs
            on_progress(snapshot(phase, secs))
        if len(asked) == 1:
            stored(out)
            raise KeyboardInterrupt  # the process ends: nothing after it runs
        return SimpleNamespace(networks=[])

    monkeypatch.setattr("fleet_tune.tune", tune, raising=False)
    arguments = ("kernels", tmp_path / "out", tmp_path / "fleet.toml", 50.0)
    with pytest.raises(KeyboardInterrupt):
        tuned_kernels.tune(*arguments)
    found = tuned_kernels.tune(*arguments)
    assert asked == [50.0, 20.0]
    assert (found["trials"], found["elapsed_secs"], found["reason"]) == (4, 180.0, "")
    assert tuned_kernels.tune(*arguments) == found  # the time is used
    assert len(asked) == 2


def test_records_of_runs_that_are_not_known_are_refused(tmp_path: Path) -> None:
    stored(tmp_path / "out")
    with pytest.raises(BenchError, match="has records of runs whose time is not known: name another folder"):
        tuned_kernels.tune("kernels", tmp_path / "out", tmp_path / "fleet.toml", 50.0)
