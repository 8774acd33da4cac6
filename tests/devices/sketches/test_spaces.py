"""Design spaces: candidates become programs that compute what the unscheduled program computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_equal

from devices.sketches.spaces import (
    DesignSpace,
    Scheduled,
    ScheduleError,
    apply_trace,
    parse_module,
    replay,
    unscheduled,
)
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Choice, Sketch, Tile
from tests.helpers.programs import matmul, program_task
from tests.helpers.scheduled import run

TARGET = resolve_target("native", threads=2)
Arrays = list[np.ndarray[Any, Any]]


def task(*tensors: te.Tensor, constants: tuple[int, ...] = ()) -> Task:
    return program_task(tensors, TARGET, constants=constants)


def conv_task(size: int = 8, channels: int = 16) -> Task:
    data = te.placeholder((1, size, size, channels), name="data")
    weight = te.placeholder((3, 3, channels, 32), name="weight")
    bias = te.placeholder((1, 1, 1, 32), name="bias")
    out = topi.nn.relu(topi.add(topi.nn.conv2d_nhwc(data, weight, 1, 1, 1), bias))
    return task(data, weight, bias, out, constants=(1, 2))


def matmul_task() -> Task:
    return task(*matmul(12, 32, 48))


def depthwise_task() -> Task:
    data = te.placeholder((1, 8, 8, 32), name="data")
    weight = te.placeholder((3, 3, 1, 32), name="weight")
    return task(data, weight, topi.nn.conv(data, weight, 1, 1, 1, 32, "NHWC", "HWIO"), constants=(1,))


def dense_task() -> Task:
    a, b = te.placeholder((1, 32), name="a"), te.placeholder((32, 40), name="b")
    bias = te.placeholder((1, 40), name="bias")
    return task(a, b, bias, topi.add(topi.matmul(a, b), bias), constants=(1, 2))


def pool_task() -> Task:
    data = te.placeholder((1, 8, 8, 16), name="data")
    return task(data, topi.nn.pool2d(data, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC"))


def softmax_task() -> Task:
    data = te.placeholder((16, 32), name="data")
    return task(data, topi.nn.softmax(data))


def transpose_task() -> Task:
    data = te.placeholder((1, 16, 8, 8), name="data")
    return task(data, topi.transpose(data, (0, 2, 3, 1)))


def masked_task() -> Task:
    """A product with a mask added, as attention has it: the epilogue reads what an element-wise block computes, and
    MetaSchedule inlines no block that reads a scalar."""
    a, b = te.placeholder((4, 16, 32), name="a"), te.placeholder((4, 32, 16), name="b")
    mask, hidden = te.placeholder((1, 16, 16), name="mask"), te.placeholder((), name="hidden")
    masked = te.compute(mask.shape, lambda *i: te.if_then_else(mask(*i) > 0, 0.0, hidden()), name="masked")
    product = topi.nn.batch_matmul(a, b, transpose_b=False)
    out = te.compute(product.shape, lambda i, j, k: product(i, j, k) + masked(0, j, k), name="out")
    return task(a, b, mask, hidden, out)


def squeeze_task() -> Task:
    """Squeeze and excitation: a 1x1 convolution of a single point."""
    data, weight = te.placeholder((1, 1, 1, 64), name="data"), te.placeholder((1, 1, 64, 8), name="weight")
    return task(data, weight, topi.nn.relu(topi.nn.conv2d_nhwc(data, weight, 1, 0, 1)), constants=(1,))


TASKS = {
    "conv": conv_task,
    "matmul": matmul_task,
    "depthwise": depthwise_task,
    "dense": dense_task,
    "pool": pool_task,
    "softmax": softmax_task,
    "transpose": transpose_task,
    "masked": masked_task,
    "squeeze": squeeze_task,
}


def draw(sketch: Sketch, rng: np.random.Generator) -> tuple[int, ...]:
    """A random valid decision vector."""
    vector: list[int] = []
    for decision in sketch.decisions:
        if isinstance(decision, Tile):
            vector += _tile(decision, rng)
        else:
            options = decision.values if isinstance(decision, Choice) else decision.locations
            vector.append(int(rng.integers(len(options))))
    return tuple(vector)


def _tile(tile: Tile, rng: np.random.Generator) -> list[int]:
    while True:
        factors, rest, prime = [1] * tile.parts, tile.extent, 2
        while rest > 1:
            if rest % prime:
                prime += 1
                continue
            factors[int(rng.integers(tile.parts))] *= prime
            rest //= prime
        if factors[-1] <= tile.innermost_limit:
            return factors


def candidate(of: Task, sketch: Sketch, vector: tuple[int, ...]) -> Candidate:
    return Candidate(of.id, sketch.index, sketch.id, vector)


def inputs_of(oracle: Scheduled) -> Arrays:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(spec.shape).astype(spec.dtype) for spec in oracle.args]


@pytest.fixture(scope="module", params=TASKS)
def space(request: pytest.FixtureRequest) -> tuple[Task, DesignSpace]:
    of = TASKS[request.param]()
    return of, DesignSpace(of)


def test_candidates_compute_what_the_unscheduled_program_does(space: tuple[Task, DesignSpace]) -> None:
    of, designs = space
    rng = np.random.default_rng(1)
    oracle = unscheduled(of)
    inputs = inputs_of(oracle)
    expected = run(oracle, inputs, TARGET)
    for sketch in designs.sketches:
        for _ in range(2):
            scheduled = designs.schedule(candidate(of, sketch, draw(sketch, rng)))
            assert scheduled.original_args == oracle.args
            assert scheduled.outputs == oracle.outputs
            for got, wanted in zip(run(scheduled, inputs, TARGET), expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_trace_gives_the_same_program_again(space: tuple[Task, DesignSpace]) -> None:
    of, designs = space
    rng = np.random.default_rng(2)
    for sketch in designs.sketches:
        scheduled = designs.schedule(candidate(of, sketch, draw(sketch, rng)))
        again = replay(of.workload.module, scheduled.trace)
        assert structural_equal(again.module, scheduled.module)
        assert (again.args, again.packed, again.trace) == (scheduled.args, scheduled.packed, scheduled.trace)


def test_every_task_has_a_parallel_vectorised_candidate(space: tuple[Task, DesignSpace]) -> None:
    of, designs = space
    rng = np.random.default_rng(3)
    texts = [
        designs.schedule(candidate(of, sketch, draw(sketch, rng))).module.script()
        for sketch in designs.sketches
        for _ in range(8)
    ]
    assert any("T.parallel(" in text and "T.vectorized(" in text for text in texts)


def test_records_load_into_tvm(space: tuple[Task, DesignSpace], tmp_path: Path) -> None:
    of, designs = space
    sketch = designs.sketches[0]
    scheduled = designs.schedule(candidate(of, sketch, draw(sketch, np.random.default_rng(4))))
    module, target = parse_module(of.workload.module), parse_target(TARGET)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    workload = database.commit_workload(module)
    record = [json.loads(scheduled.trace), [0.001], ms.TuneContext(target=target).target.export(), None]
    database.commit_tuning_record(ms.database.TuningRecord.from_json(record, workload))
    found = ms.database.JSONDatabase(work_dir=str(tmp_path)).query_schedule(module, target, "main")
    # As text: TVM's database gives the flag of an annotation back as an integer.
    text = found.mod.script().replace('layout_rewrite_preproc": 1}', 'layout_rewrite_preproc": True}')
    assert text == apply_trace(module, scheduled.trace).script()


def test_weights_are_packed_and_stay_in_place_for_the_network() -> None:
    of = conv_task()
    designs = DesignSpace(of)
    sketch = designs.sketches[0]
    assert sketch.rule == "register-blocked"
    scheduled = designs.schedule(candidate(of, sketch, draw(sketch, np.random.default_rng(5))))
    assert 1 in scheduled.packed
    assert np.prod(scheduled.args[1].shape) == np.prod(scheduled.original_args[1].shape)
    network = apply_trace(parse_module(of.workload.module), scheduled.trace)
    assert "= weight[" in network.script()
    assert "= weight[" not in scheduled.module["main"].script()
    assert "= weight[" in scheduled.module["pack_1"].script()


def test_weights_that_tvm_cannot_lay_out_anew_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the scale of a group norm in channels, which is read by two indices that were one."""
    of = conv_task()
    designs = DesignSpace(of)
    sketch = designs.sketches[0]
    chosen = candidate(of, sketch, draw(sketch, np.random.default_rng(5)))
    apply = ms.postproc.Postproc.apply

    def failing(self: Any, schedule: Any) -> Any:
        if isinstance(self, ms.postproc.RewriteLayout):
            raise RuntimeError("Check failed: (args.size() == initial_indices_orig.size()) is false: ")
        return apply(self, schedule)

    monkeypatch.setattr(ms.postproc.Postproc, "apply", failing)
    scheduled = designs.schedule(chosen)
    assert scheduled.packed == ()
    assert scheduled.args == scheduled.original_args
    assert structural_equal(replay(of.workload.module, scheduled.trace).module, scheduled.module)


def test_weights_that_a_block_copies_inside_of_another_stay_as_they_are() -> None:
    """As bounds that the minimum of a stack has, whose lines a sketch computes in a block of their own."""
    shape = (1, 1, 9, 12, 14)
    data, bound = (te.placeholder(shape, name=name) for name in ("data", "bound"))
    of = task(data, bound, topi.min(topi.stack([data, bound], 0), 0), constants=(1,))
    designs, generator = DesignSpace(of), np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(np.float32) for _ in range(2)]
    arrays.append(np.zeros(shape, np.float32))
    expected = np.minimum(*arrays[:2])
    apart = 0
    for sketch in designs.sketches:
        for _ in range(8):
            try:
                scheduled = designs.schedule(candidate(of, sketch, draw(sketch, generator)))
            except ScheduleError:
                continue
            apart += scheduled.packed == ()
        np.testing.assert_array_equal(run(scheduled, arrays, TARGET)[0], expected)
    assert apart


def test_invalid_candidates_are_refused_with_the_reason() -> None:
    of = matmul_task()
    designs = DesignSpace(of)
    sketch = designs.sketches[0]
    vector = draw(sketch, np.random.default_rng(6))
    with pytest.raises(ScheduleError, match="does not tile"):
        designs.schedule(candidate(of, sketch, (vector[0] * 2, *vector[1:])))
    with pytest.raises(ScheduleError, match="columns"):
        designs.schedule(candidate(of, sketch, vector[1:]))
    with pytest.raises(ScheduleError, match="no sketch"):
        designs.schedule(Candidate(of.id, 0, "unknown", vector))
    trace = designs.schedule(candidate(of, sketch, vector)).trace
    with pytest.raises(ScheduleError):
        replay(pool_task().workload.module, trace)


def test_sketches_are_the_same_in_every_process() -> None:
    """The decisions drawn when a space is generated differ from process to process; the sketches do not."""
    code = (
        "import sys; from fleet_tune.base.domain import *; from devices.sketches.spaces import DesignSpace;"
        f"task = Task(Workload('hash-test', 'test', 1.0, sys.stdin.read()), DeviceClass('here', {TARGET!r}));"
        "print([(s.id, s.rule, s.decisions, s.statements) for s in DesignSpace(task).sketches])"
    )
    of = conv_task()
    printed = subprocess.run(
        [sys.executable, "-c", code], input=of.workload.module, capture_output=True, text=True, check=True, timeout=120
    ).stdout.splitlines()[-1]
    assert printed == str([(s.id, s.rule, s.decisions, s.statements) for s in DesignSpace(of).sketches])
