"""What the analyzer rules out on CUDA against TVM's own check of GPU code."""

from __future__ import annotations

import numpy as np
from tvm import topi

from devices.sketches.spaces import DesignSpace, ScheduleError
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate
from policies.analysis.analyzer import score
from policies.space.sampling import sample
from tests.helpers.devices import GPU
from tests.helpers.programs import matmul, program_task

TARGET = resolve_target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)


def test_what_tvm_refuses_is_ruled_out_before() -> None:
    a, b, product = matmul(128, 256, 256)
    task = program_task((a, b, topi.nn.relu(product)), TARGET, flop=2.0 * 128 * 256 * 256)
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
