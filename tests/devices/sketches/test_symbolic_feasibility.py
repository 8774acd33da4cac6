"""What the analyzer rules out on CUDA against TVM's own check of GPU code."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import te, topi

from devices.sketches.spaces import DesignSpace, ScheduleError
from devices.targets import resolve_target
from fleet_tune.domain import Candidate, DeviceAbstraction, DeviceClass, Task, Workload
from policies.analysis.analyzer import score
from policies.space.sampling import sample

TARGET = resolve_target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)
GPU = DeviceAbstraction("cuda", 80, 32, 65536, 48 * 1024, 6 * 1024 * 1024, 0, 14e12, 9e11, 1024)


def test_what_tvm_refuses_is_ruled_out_before() -> None:
    a, b = te.placeholder((128, 256), name="a"), te.placeholder((256, 256), name="b")
    func = te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])
    func = func.with_attr({"global_symbol": "main", "tirx.noalias": True})
    text = tvm.ir.save_json(tvm.IRModule({"main": func}))
    task = Task(Workload("hash", "matmul", 2.0 * 128 * 256 * 256, text), DeviceClass("x", TARGET))
    space = DesignSpace(task)
    sketch = next(s for s in space.sketches if s.rule == "multi-level-tiling")
    drawn = sample(sketch, 3000, np.random.default_rng(0))
    secs, good = score(sketch, drawn, GPU)
    assert (secs > 0).all()
    assert np.isfinite(secs).all()
    assert 0.001 < good.mean() < 0.5
    refused = []
    for row in drawn[good][:40]:
        try:
            space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(int(value) for value in row)))
        except ScheduleError:
            refused.append(row)
    assert not refused
