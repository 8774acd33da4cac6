"""What the analyzer rules out on CUDA against TVM's own check of GPU code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tvm import te, topi

from devices.sketches.spaces import DesignSpace, ScheduleError
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import feasible, score
from policies.space.sampling import sample
from tests.helpers.devices import GPU
from tests.helpers.programs import matmul, program_task

TARGET = resolve_target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)


def refused_by_tvm(task: Task, space: DesignSpace, sketch: Sketch, rows: NDArray[np.int64]) -> list[bool]:
    """For each candidate, true if TVM does not schedule it."""
    refused = []
    for row in rows:
        try:
            space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(int(value) for value in row)))
            refused.append(False)
        except ScheduleError:
            refused.append(True)
    return refused


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
    assert not any(refused_by_tvm(task, space, sketch, drawn[good][:40]))


def test_a_software_pipeline_of_one_iteration_is_ruled_out() -> None:
    """Three channels: many candidates fetch all of them at once. Half of the drafted ones were refused on an H100."""
    data, weight = te.placeholder((1, 32, 32, 3), name="data"), te.placeholder((3, 3, 3, 16), name="weight")
    task = program_task((data, weight, topi.nn.relu(topi.nn.conv2d_nhwc(data, weight, 1, 1, 1))), TARGET)
    space = DesignSpace(task)
    for sketch in space.sketches[1:]:
        assert any(statement.versions > 1 for statement in sketch.statements)
        drawn = sample(sketch, 2000, np.random.default_rng(0))
        secs, good = score(sketch, drawn, GPU)
        best = drawn[good][np.argsort(secs[good])][:30]
        assert not any(refused_by_tvm(task, space, sketch, best))


def test_loops_that_tvm_binds_later_are_not_one_threads() -> None:
    data = te.placeholder((1, 56, 56, 64), name="data")
    task = program_task(
        (data, topi.nn.pool2d(data, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")), TARGET
    )
    space = DesignSpace(task)
    for sketch in space.sketches:
        drawn = sample(sketch, 8, np.random.default_rng(0))
        assert feasible(sketch, drawn, GPU).all()
        assert not any(refused_by_tvm(task, space, sketch, drawn))
