"""Callbacks of experiment trackers: what is logged, when, and what is said where the tracker is not installed."""

from __future__ import annotations

import dataclasses
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fleet_tune.base.errors import RequestError
from fleet_tune.base.results import Progress, TaskProgress
from fleet_tune.integrations import MlflowCallback, WandbCallback, values_of

TASKS = (
    TaskProgress("a@zen5", "a", "zen5", 2, 1e9, 3, 4, 1e-3),
    TaskProgress("b@zen5", "b", "zen5", 1, 1e9, 3, 4, 2e-3),
)
PROGRESS = Progress("tuning", 7.5, 60.0, None, 8, 8, {"ok": 6, "run_error": 2}, 1.0, {}, {}, TASKS)
VALUES = {
    "latency_ms": pytest.approx(4.0),
    "trials": 8.0,
    "failed_trials": 2.0,
    "tasks_without_result": 0.0,
    "elapsed_secs": 7.5,
}


def test_what_is_logged() -> None:
    assert values_of(PROGRESS) == VALUES
    unknown = dataclasses.replace(TASKS[1], best_secs=math.inf)
    found = values_of(dataclasses.replace(PROGRESS, tasks=(TASKS[0], unknown)))
    assert "latency_ms" not in found
    assert found["tasks_without_result"] == 1.0
    board = dataclasses.replace(TASKS[0], task_id="a@board", device_class="board")
    found = values_of(dataclasses.replace(PROGRESS, tasks=(*TASKS, board)))
    assert (found["latency_ms/zen5"], found["latency_ms/board"]) == pytest.approx((4.0, 2.0))


def test_mlflow_gets_each_number_of_trials_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    fake = SimpleNamespace(log_metrics=lambda values, step: logged.append((values, step)))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    callback = MlflowCallback()
    ended = dataclasses.replace(PROGRESS, phase="finished")
    for progress in (PROGRESS, PROGRESS, dataclasses.replace(PROGRESS, trials=9), ended):
        callback(progress)
    assert [step for _, step in logged] == [8, 9, 8]
    assert logged[0][0] == VALUES


@pytest.mark.parametrize("active", [None, object()])
def test_a_run_of_wandb_is_begun_where_there_is_none(monkeypatch: pytest.MonkeyPatch, active: object) -> None:
    told: list[Any] = []
    fake = SimpleNamespace(
        run=active,
        init=lambda **arguments: told.append(arguments),
        log=lambda values, step: told.append((values, step)),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    WandbCallback(project="kernels")(PROGRESS)
    assert told == ([{"project": "kernels"}] if active is None else []) + [(VALUES, 8)]


@pytest.mark.parametrize("callback", [MlflowCallback, WandbCallback])
def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, callback: Any) -> None:
    name = "mlflow" if callback is MlflowCallback else "wandb"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RequestError, match=f"{name} cannot be imported"):
        callback()
