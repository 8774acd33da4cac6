"""MetaSchedule's RPCRunner as its users run it: one measurement for each line of standard input.

Run in its own process: ``python -m bench.peers.rpc_runner TRACKER_PORT KEY``. An empty line measures the artifact that
LocalBuilder makes by default: an archive of object files, which the server links when it loads it. The line ``linked``
measures the same kernel as a shared library, which RPCRunner accepts too. The answer is a JSON line with the seconds of
the whole measurement (``wall_secs``) and those of the evaluator in it (``kernel_secs``).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig, RPCRunner, RunnerInput
from tvm.s_tir.meta_schedule.runner.rpc_runner import default_run_evaluator

from bench.machine import cores
from bench.peers.metaschedule import matmul_relu
from bench.processes import die_with_parent
from bench.result import BenchError

SIZE = 128


def timed_evaluator(session: Any, module: Any, device: Any, config: EvaluatorConfig, args: Any) -> list[float]:
    """Run RPCRunner's own evaluator, and append the seconds that it took to its results."""
    started = time.perf_counter()
    costs = default_run_evaluator(session, module, device, config, args)
    return [*costs, time.perf_counter() - started]


def main(arguments: Sequence[str]) -> None:
    die_with_parent()
    tracker_port, key = int(arguments[0]), arguments[1]
    target = tvm.target.Target({"kind": "llvm", "num-cores": cores()})
    module = matmul_relu(SIZE)
    built = ms.builder.LocalBuilder(max_workers=1, timeout_sec=180).build([ms.builder.BuilderInput(module, target)])[0]
    if built.error_msg:
        raise BenchError(f"LocalBuilder failed: {built.error_msg}")
    args_info = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    runner = RPCRunner(
        RPCConfig(tracker_host="127.0.0.1", tracker_port=tracker_port, tracker_key=key, session_timeout_sec=60),
        f_run_evaluator=timed_evaluator,
    )
    with TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        library = Path(folder) / "kernel.so"
        tvm.tirx.build(module, target=target).export_library(str(library))
        paths = {"": str(built.artifact_path), "linked": str(library)}
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            started = time.perf_counter()
            result = runner.run([RunnerInput(paths[line.strip()], "cpu", args_info)])[0].result()
            wall_secs = time.perf_counter() - started
            if result.error_msg:
                raise BenchError(f"RPCRunner failed: {result.error_msg}")
            kernel_secs = float(result.run_secs[-1])
            print(json.dumps({"wall_secs": wall_secs, "kernel_secs": kernel_secs}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
