"""A task that cannot be tuned is left out by itself, and told; the others are as they were."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from devices.describing.cache import TaskDescription
from devices.describing.describer import TaskDescriber
from devices.networks.frontend import Network, load_network
from devices.networks.processes.lowering_process import LoweringProcess
from devices.networks.tasks.lowering import LoweredNetwork, import_network
from devices.networks.torch.operators.translations import Translations
from devices.sketches.spaces import DesignSpace
from devices.targets import resolve_target
from examples.networks import mlp, small_cnn
from fleet_tune import api
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError
from fleet_tune.base.results import SkippedPart
from fleet_tune.report.run import to_json
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes, planning, ready_tasks
from fleet_tune.runs.preparing.ready_tasks import missing_of
from tests.helpers.lowering_child import write_stand_in
from tests.helpers.workloads import space, task


def test_a_task_without_sketches_is_none_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = api.plan(mlp())
    assert not whole.left_out
    first, *others = whole.tasks

    class Failing(TaskDescriber):
        def __next__(self) -> tuple[int, TaskDescription]:
            at, described = super().__next__()
            reason = (("", "RuntimeError: The block is no leaf"),)
            return at, TaskDescription((), reason) if self._tasks[at].id == first.task_id else described

    monkeypatch.setattr(ready_tasks, "TaskDescriber", Failing)
    plan = api.plan(mlp())
    assert plan.tasks == tuple(others)
    assert plan.left_out == (
        SkippedPart("task", first.name, first.device_class, "", "RuntimeError: The block is no leaf"),
    )


def test_a_network_without_a_kernel_is_refused() -> None:
    with pytest.raises(UnsupportedNetworkError, match="Identity computes nothing"):
        api.plan((nn.Identity(), (torch.ones(2, 3, 4),)))


def test_a_plan_of_a_network_that_is_imported_wrongly_names_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Translations.create_convert_map

    def with_fault(self: Any) -> Any:
        table = whole(self)
        return {**table, "tanh.default": table["sigmoid.default"]}

    monkeypatch.setattr(Translations, "create_convert_map", with_fault)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(NetworkError, match=r"begin to differ at the operator tanh.default \(in 1, .*float32\[2, 4\]"):
        api.plan((network, (torch.ones(2, 3),)))


def test_a_rewrite_that_failed_is_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_fusion(_: LoweringProcess, network: Network, device_class: DeviceClass) -> LoweredNetwork:
        return dataclasses.replace(import_network(network, device_class), left_out=(("fusion", "TVM crashes"),))

    monkeypatch.setattr(LoweringProcess, "lowered", without_fusion)
    monkeypatch.setattr(planning, "check", lambda prepared, _: prepared)
    [left_out] = api.plan(mlp()).left_out
    assert (left_out.what, left_out.reason) == ("rewrite", "without fusion: TVM crashes")


def test_a_rewrite_that_crashes_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    crashing = partial(LoweringProcess, write_stand_in(tmp_path, {"ConvertLayout": "crash"}))
    monkeypatch.setattr(planning, "LoweringProcess", crashing)
    plan = api.plan(small_cnn())
    reason = "without the choice of layouts: its process ended: killed by SIGSEGV"
    assert [(each.what, each.reason) for each in plan.left_out] == [("rewrite", reason)]
    assert to_json(plan)["left_out"][0]["reason"] == reason


def test_an_untuned_network_that_this_machine_cannot_run_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    network = load_network(mlp())
    device_class = DeviceClass("cpu", resolve_target("native", 2))
    with contextlib.closing(LoweringProcess(write_stand_in(tmp_path, {"run": "kill"}))) as lowering:
        lowered = {"cpu": lowering.lowered(network, device_class)}
        prepared = Prepared(network, {}, lowered, frozenset(), {})
        [left_out] = device_classes.check(prepared, lowering).left_out
    assert left_out == SkippedPart("check", "", "cpu", "", "its process ended: killed by SIGKILL")


def test_sketches_without_a_description_stay_and_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise ValueError("zip() argument 2 is shorter than argument 1")

    monkeypatch.setattr("devices.sketches.description.location_combinations._signature", failing)
    of = task("avx2", "squeeze")
    sketches = DesignSpace(of).sketches
    assert [sketch.id for sketch in sketches] == [sketch.id for sketch in space("avx2", "squeeze").sketches]
    reason = "ValueError: zip() argument 2 is shorter than argument 1"
    assert (
        missing_of(of, TaskDescription(sketches))
        == (SkippedPart("description", "squeeze", "avx2", "rfactor", reason),) * 2
    )
