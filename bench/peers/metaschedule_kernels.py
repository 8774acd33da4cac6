"""MetaSchedule's kernels: ``python -m bench.peers.metaschedule_kernels MODEL OUT --fleet FILE --budget-secs 240``.

Tunes the tasks that our run of the same kernels tunes (:mod:`bench.gpu.kernel_tasks`), in one call of ``tune_tir`` with
MetaSchedule's own builder, runner, search and task scheduler. Batches have 16 trials instead of 64, so that each of
twenty tasks gets a batch within minutes. The results of each batch are written to OUT at once, beside MetaSchedule's
own database: the same command resumes until the time is used up.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from bench.gpu.kept_lines import KeptLines
from bench.gpu.kernel_tasks import device_class_of, is_cuda, kernel_tasks
from bench.machine import cores
from bench.processes import die_with_parent
from devices.cuda.runtime import prepare_cuda
from devices.sketches.intrinsics import load_intrinsics
from devices.sketches.spaces import parse_module
from devices.targets import parse_target
from fleet_tune.base.domain import DeviceClass, Task

_BATCH = 16
_MANY = 1_000_000
_FAILED_SECS = 1e9  # MetaSchedule reports a failed run as this many seconds


@derived_object
class _KeptBatches(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Writes down the figures of each batch, and ends the tuning after the first batch that ends past the time, but
    not before each task has had one."""

    def __init__(self, kept: KeptLines, names: Sequence[str], left_secs: float) -> None:
        super().__init__()
        self.time_up = False
        self._handed_over = 0
        self._kept = kept
        self._names = names
        self._start = self._last = time.perf_counter()
        self._left_secs = left_secs

    def apply(self, _scheduler: Any, task_id: int, candidates: Any, builds: Any, runs: Any) -> None:
        now = time.perf_counter()
        times = [sum(map(float, run.run_secs)) / len(run.run_secs) for run in runs if not run.error_msg]
        times = [secs for secs in times if secs < _FAILED_SECS]
        batch = {
            "kernel": self._names[int(task_id)],
            "secs": now - self._last,
            "trials": len(candidates),
            "valid": len(times),
            "not_built": sum(build.error_msg is not None for build in builds),
            "best_secs": min(times, default=None),
        }
        self._last = now
        self._kept.add(f"batch {len(self._kept.found) + 1}", batch)
        self._handed_over += 1
        # The first batches of all tasks are measured before any is handed over: those left over would be lost.
        if now - self._start >= self._left_secs and self._handed_over >= len(self._names):
            self.time_up = True
            raise RuntimeError("time is up")


def tune(tasks: Mapping[str, Task], device_class: DeviceClass, out: Path, budget_secs: float) -> dict[str, Any]:
    """Tune until the batches in ``out``, also those of earlier calls, have taken ``budget_secs``; return
    :func:`figures`."""
    kept = KeptLines(out / "batches.jsonl")
    spent = sum(batch["secs"] for batch in kept.found.values())
    if spent < budget_secs:
        _tune(tasks, device_class, out, kept, budget_secs - spent)
    return figures(tasks, list(kept.found.values()))


def figures(tasks: Mapping[str, Task], batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best time of each kernel as MetaSchedule measured it (``best_secs``, None if no trial succeeded), and
    over all kernels the number of trials, of valid trials, and of valid trials per minute."""
    kernels: dict[str, dict[str, Any]] = {}
    for name in tasks:
        own = [batch for batch in batches if batch["kernel"] == name]
        best = min((batch["best_secs"] for batch in own if batch["best_secs"] is not None), default=None)
        kernels[name] = {"best_secs": best, "trials": sum(batch["trials"] for batch in own)}
    secs, trials, valid = (sum(batch[of] for batch in batches) for of in ("secs", "trials", "valid"))
    rate = 60 * valid / secs if secs else None
    about = {"trials": trials, "valid": valid, "valid_per_minute": rate, "elapsed_secs": secs}
    return {"kernels": kernels, **about}


def _tune(tasks: Mapping[str, Task], device_class: DeviceClass, out: Path, kept: KeptLines, left_secs: float) -> None:
    names = [f"kernel_{at:02}" for at in range(len(tasks))]  # tune_tir takes them in this order
    functions = {
        name: parse_module(task.workload.module)["main"] for name, task in zip(names, tasks.values(), strict=True)
    }
    on_gpu = is_cuda(device_class)
    if on_gpu:
        prepare_cuda()
        # Choose TVM's CUDA compiler for MetaSchedule: its builder processes inherit the variable.
        os.environ["TVM_CUDA_COMPILE_MODE"] = "nvcc" if shutil.which("nvcc") else "nvrtc"
    load_intrinsics(device_class.target)  # MetaSchedule's rules look them up
    batches = _KeptBatches(kept, list(tasks), left_secs)
    try:
        ms.tune_tir(
            tvm.IRModule(functions),
            parse_target(device_class.target),
            str(out),
            max_trials_global=_MANY,
            num_trials_per_iter=_BATCH,
            # Its workers start so slowly that with the default of 30 s the trials of the first batch would fail.
            builder=ms.builder.LocalBuilder(timeout_sec=180, max_workers=cores()),
            # TVM's wheel does not load CUDA's runtime library: the processes that run kernels do.
            runner=ms.runner.LocalRunner(initializer=prepare_cuda) if on_gpu else "local",
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), batches],
        )
    except RuntimeError:
        if not batches.time_up:
            raise


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--fleet", type=click.Path(path_type=Path), required=True, help="Fleet file with one device.")
@click.option("--budget-secs", type=float, required=True)
def main(model: str, out: Path, fleet: Path, budget_secs: float) -> None:
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    device_class = device_class_of(fleet)
    click.echo(json.dumps(tune(kernel_tasks(model, device_class), device_class, out, budget_secs)))


if __name__ == "__main__":
    main()
