"""MetaSchedule as its users run it: how many valid trials per minute it measures on one workload.

Run in its own process: ``python -m bench.peers.metaschedule --workload matmul_relu --trials 64``. It calls ``tune_tir``
for the host's CPU with all cores, with ``LocalBuilder(timeout_sec=180, max_workers=cores)`` and otherwise default
settings. The builder's workers start so slowly that with the default timeout of 30 s the trials of the first batch
would fail. The clock starts with ``tune_tir``: the time includes the start of MetaSchedule's workers, but not the
import of TVM.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import tvm
from tvm import te, topi
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from bench.machine import cores
from bench.processes import die_with_parent
from bench.result import BenchError
from devices.cuda.runtime import prepare_cuda
from devices.instruction_sets import native_cpu

# MetaSchedule reports a failed run as this many seconds.
_FAILED_SECS = 1e9


def matmul_relu(size: int = 256) -> tvm.IRModule:
    """Return ``relu(a @ b)`` of two ``(size, size)`` float32 matrices."""
    a = te.placeholder((size, size), name="a")
    b = te.placeholder((size, size), name="b")
    out = topi.nn.relu(topi.matmul(a, b))
    return tvm.IRModule({"main": te.create_prim_func([a, b, out])})


def conv2d_nhwc(size: int = 56, channels: int = 64) -> tvm.IRModule:
    """Return a 3x3 convolution, padding 1, of a ``(1, size, size, channels)`` float32 image with HWIO weights."""
    data = te.placeholder((1, size, size, channels), name="data")
    weight = te.placeholder((3, 3, channels, channels), name="weight")
    out = topi.nn.conv2d(data, weight, 1, 1, 1, data_layout="NHWC", kernel_layout="HWIO")
    return tvm.IRModule({"main": te.create_prim_func([data, weight, out])})


WORKLOADS = {"matmul_relu": matmul_relu, "conv2d_nhwc": conv2d_nhwc}


@derived_object
class Timeline(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Records how many trials of every batch were valid, and ends the tuning after ``limit_secs``.

    MetaSchedule's scheduler first builds and measures one batch of each task, and hands over their results one after
    the other when all are ready. Tuning does not end before the last of these results, because the results not yet
    handed over would be lost.

    Args:
        start: start of the tuning, as :func:`time.perf_counter` returns it.
        limit_secs: seconds from ``start``.
        tasks: number of tasks.
    """

    def __init__(self, start: float, limit_secs: float, tasks: int = 1) -> None:
        super().__init__()
        self.start = start
        self.limit_secs = limit_secs
        self.tasks = tasks
        self.batches: list[dict[str, Any]] = []
        self.time_up = False

    def apply(self, _scheduler: Any, _task_id: int, candidates: Any, builds: Any, runs: Any) -> None:
        valid = [run for run in runs if run.error_msg is None and run.run_secs]
        times = [sum(float(s) for s in run.run_secs) / len(run.run_secs) for run in valid]
        times = [secs for secs in times if secs < _FAILED_SECS]
        elapsed = time.perf_counter() - self.start
        self.batches.append(
            {
                "elapsed_secs": elapsed,
                "trials": len(candidates),
                "valid": len(times),
                "build_failures": sum(build.error_msg is not None for build in builds),
                "best_secs": min(times, default=None),
            }
        )
        if elapsed >= self.limit_secs and len(self.batches) >= self.tasks:
            self.time_up = True
            raise RuntimeError("time is up")  # TVM turns any other error into a RuntimeError too


def tune(workload: str, trials: int, limit_secs: float, gpu: str | None = None) -> dict[str, Any]:
    """Tune ``workload`` for at most ``trials`` trials, and end after the first batch that ends past ``limit_secs``.

    ``gpu``: attributes of a CUDA target as JSON text, for this machine's GPU; None for its CPU.

    Return the valid trials per minute up to the end of the last batch, and each batch's figures. Raises
    :class:`BenchError` if no batch was measured, or if MetaSchedule stored another number of valid trials than it
    reported.
    """
    cpu = {"kind": "llvm", "mcpu": native_cpu(), "num-cores": cores(), "opt-level": 3}
    target = tvm.target.Target(json.loads(gpu), host=cpu) if gpu else tvm.target.Target(cpu)
    # TVM's wheel does not load CUDA's runtime library: we do, also in the processes that run kernels.
    runner = ms.runner.LocalRunner(initializer=prepare_cuda) if gpu else "local"
    if gpu:
        prepare_cuda()
    default_callbacks = ms.measure_callback.MeasureCallback.create("default")
    start = time.perf_counter()
    timeline = Timeline(start, limit_secs)
    # Errors of the clean-up are ignored: MetaSchedule's workers may still write to the folder after the tuning.
    with tempfile.TemporaryDirectory(prefix="metaschedule-", ignore_cleanup_errors=True) as folder:
        try:
            ms.tune_tir(
                WORKLOADS[workload](),
                target,
                folder,
                max_trials_global=trials,
                builder=ms.builder.LocalBuilder(timeout_sec=180, max_workers=cores()),
                runner=runner,
                measure_callbacks=[*default_callbacks, timeline],
            )
        except RuntimeError:
            if not timeline.time_up:
                raise
        total_secs = time.perf_counter() - start
        stored = len(stored_workloads(Path(folder)))
    if not timeline.batches:
        raise BenchError("MetaSchedule ended without measuring a batch")
    valid = sum(batch["valid"] for batch in timeline.batches)
    if valid != stored:
        raise BenchError(f"MetaSchedule reported {valid} valid trials but stored {stored}")
    elapsed_secs = timeline.batches[-1]["elapsed_secs"]
    return {
        "workload": workload,
        "valid_per_minute": 60 * valid / elapsed_secs,
        "valid": valid,
        "trials": sum(batch["trials"] for batch in timeline.batches),
        "elapsed_secs": elapsed_secs,
        "total_secs": total_secs,
        "best_secs": min((b["best_secs"] for b in timeline.batches if b["best_secs"] is not None), default=None),
        "batches": timeline.batches,
        "target": str(target),
        "threads": os.environ.get("TVM_NUM_THREADS"),
    }


def stored_workloads(folder: Path) -> list[int]:
    """Return the number of the workload of each valid record in MetaSchedule's JSON database, which has one
    ``[workload, [trace, secs, ...]]`` per line."""
    records = folder / "database_tuning_record.json"
    rows = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
    return [workload for workload, (_, run_secs, *_) in rows if run_secs and max(run_secs) < _FAILED_SECS]


@click.command()
@click.option("--workload", type=click.Choice(sorted(WORKLOADS)), required=True)
@click.option("--trials", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--limit-secs", type=float, default=float("inf"), help="End after the batch in which this time passed.")
@click.option("--gpu", help="Attributes of a CUDA target as JSON text; else the CPU.")
def main(workload: str, trials: int, limit_secs: float, gpu: str | None) -> None:
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    click.echo(json.dumps(tune(workload, trials, limit_secs, gpu)))


if __name__ == "__main__":
    main()
