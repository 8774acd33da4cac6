"""MetaSchedule beside our kernels: what is kept of its batches, and that it goes on where it was cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.kept_lines import KeptLines
from bench.peers import metaschedule_kernels
from bench.peers.metaschedule_kernels import figures, tune
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from tests.helpers.tasks import make_task

TASKS = {"product": make_task("w1"), "3x3": make_task("w2")}


def batch(kernel: str, best_secs: float | None, secs: float = 10.0, valid: int = 8) -> dict[str, Any]:
    about = {"kernel": kernel, "secs": secs, "trials": 16, "valid": valid, "not_built": 0}
    return {**about, "best_secs": best_secs}


def test_the_best_batch_of_each_kernel_counts() -> None:
    found = figures(TASKS, [batch("product", 3e-5), batch("product", 2e-5), batch("product", None, valid=0)])
    assert found["kernels"] == {"product": {"best_secs": 2e-5, "trials": 48}, "3x3": {"best_secs": None, "trials": 0}}
    assert (found["trials"], found["valid"], found["elapsed_secs"]) == (48, 16, 30.0)
    assert found["valid_per_minute"] == pytest.approx(32.0)
    assert figures(TASKS, [])["valid_per_minute"] is None


def test_it_goes_on_for_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def run(_tasks: object, _class: object, _out: Path, kept: KeptLines, left_secs: float) -> None:
        asked.append(left_secs)
        kept.add(f"batch {len(kept.found) + 1}", batch("3x3", 1e-5, secs=30.0))

    monkeypatch.setattr(metaschedule_kernels, "_tune", run)
    for _ in range(4):
        found = tune(TASKS, TASKS["product"].device_class, tmp_path, 70.0)
    assert asked == [70.0, 40.0, 10.0]
    assert found["elapsed_secs"] == 90.0


@pytest.mark.parametrize("kind", ["cuda", "llvm"])
def test_on_a_gpu_the_processes_that_run_kernels_load_cuda(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM's wheel does not load CUDA's runtime library, and MetaSchedule's runner is another process."""
    prepared: list[bool] = []
    initializers: list[Any] = []
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "none yet")
    monkeypatch.setattr(metaschedule_kernels, "prepare_cuda", lambda: prepared.append(True))
    monkeypatch.setattr(
        metaschedule_kernels.ms.runner, "LocalRunner", lambda initializer: initializers.append(initializer)
    )
    monkeypatch.setattr(metaschedule_kernels.ms, "tune_tir", lambda *_, **__: None)
    target = {"cuda": {"kind": "cuda", "arch": "sm_90"}, "llvm": {"kind": "llvm", "mcpu": "x86-64-v3"}}[kind]
    tune({}, DeviceClass("class", resolve_target(target, 1)), tmp_path, 70.0)
    assert prepared == [True] * (kind == "cuda")
    assert initializers == [metaschedule_kernels.prepare_cuda] * (kind == "cuda")
    assert (os.environ["TVM_CUDA_COMPILE_MODE"] in ("nvcc", "nvrtc")) is (kind == "cuda")
