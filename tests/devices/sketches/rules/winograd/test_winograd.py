"""The rule "winograd": where it applies, what its kernels compute, and how their traces are replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import te, topi
from tvm_ffi import structural_equal

from devices.sketches.description.accesses import leaf_blocks
from devices.sketches.nests import block_of
from devices.sketches.rules.winograd import uses_winograd
from devices.sketches.rules.winograd.convolution import convolution_of
from devices.sketches.rules.winograd.program import rewritten
from devices.sketches.rules.winograd.rule import WINOGRAD
from devices.sketches.spaces import DesignSpace, ScheduleError, apply_trace, parse_module, replay, unscheduled
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import latency_secs
from policies.space.sampling import sample
from tests.helpers.devices import CPU as DEVICE
from tests.helpers.programs import program_task
from tests.helpers.scheduled import run
from tests.helpers.workloads import TARGETS

Array = npt.NDArray[np.float32]
CPU = resolve_target("native", 2)


def _convolution(
    shape: tuple[int, ...] = (1, 12, 12, 16),
    *,
    size: int = 3,
    channels: int = 32,
    padding: int = 1,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    dtype: str = "float32",
    after: Callable[[te.Tensor], te.Tensor] | None = None,
    constant: bool = True,
    target: str = CPU,
) -> Task:
    data = te.placeholder(shape, dtype, name="data")
    weight = te.placeholder((size, size, shape[-1] // groups, channels), dtype, name="weight")
    if groups == 1:
        out = topi.nn.conv2d_nhwc(data, weight, stride, padding, dilation)
    else:
        out = topi.nn.conv(data, weight, stride, padding, dilation, groups, "NHWC", "HWIO")
    tensors = (data, weight, after(out) if after else out)
    task = program_task(tensors, target, constants=(1,))
    if constant:
        return task
    main = parse_module(task.workload.module)["main"].with_attr("layout_free_buffers", [])
    return replace(task, workload=replace(task.workload, module=tvm.ir.save_json(tvm.IRModule({"main": main}))))


def _sketches(task: Task) -> list[Sketch]:
    return [sketch for sketch in DesignSpace(task).sketches if sketch.rule == WINOGRAD]


def _candidate(task: Task, sketch: Sketch, rng: np.random.Generator) -> Candidate:
    (row,) = sample(sketch, 1, rng)
    return Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row)))


@pytest.mark.parametrize("outputs", [2, 4, 6])
@pytest.mark.parametrize("task", [_convolution(), _convolution((2, 13, 11, 16), padding=0)], ids=["padded", "not"])
def test_the_regions_of_the_transforms_are_those_that_tvm_finds(task: Task, outputs: int) -> None:
    """They are given to it in fewer terms."""
    convolution = convolution_of(parse_module(task.workload.module))
    assert convolution is not None
    blocks = leaf_blocks(rewritten(convolution, outputs)["main"])
    assert {"data_rows", "data_tiles"} < blocks.keys()
    for block in blocks.values():
        found = block_of(block.name_hint, block.iter_vars, block.body, block.init)
        assert structural_equal(block.reads, found.reads, map_free_vars=True)
        assert structural_equal(block.writes, found.writes, map_free_vars=True)


def _inputs(task: Task, rng: np.random.Generator) -> list[Array]:
    return [rng.standard_normal(spec.shape).astype(np.float32) for spec in unscheduled(task).args]


def _largest_error(outputs: Sequence[npt.NDArray[np.generic]], expected: Sequence[npt.NDArray[np.generic]]) -> float:
    (got,), (right,) = outputs, expected
    return float(np.abs(got.astype(float) - right.astype(float)).max() / np.abs(right.astype(float)).max())


@pytest.mark.parametrize(
    "task",
    [
        _convolution(stride=2),
        _convolution(groups=2),
        _convolution(dilation=2, padding=2),
        _convolution(size=1, padding=0),
        _convolution(dtype="float16"),
        _convolution(constant=False),
        _convolution((1, 12, 12, 3)),
        _convolution(channels=3),
        _convolution(after=lambda out: topi.transpose(out, (0, 3, 1, 2))),
        _convolution(target=resolve_target(TARGETS["sm_90"])),
    ],
    ids=["stride", "groups", "dilation", "1x1", "half", "weights", "inputs", "outputs", "transposed", "gpu"],
)
def test_what_the_algorithm_does_not_fit_has_no_such_sketch(task: Task) -> None:
    assert _sketches(task) == []


def test_there_is_a_sketch_for_each_size_of_tiles_with_fewer_operations() -> None:
    assert len(_sketches(_convolution())) == 3
    # One output of each channel: a tile computes more than that.
    assert _sketches(_convolution((1, 3, 3, 16), padding=0)) == []


KERNELS = {
    "plain": _convolution(),
    "remainders": _convolution((1, 11, 13, 16)),
    "unpadded": _convolution((1, 14, 11, 16), padding=0),
    "batch": _convolution((3, 8, 8, 16)),
    "5x5": _convolution((1, 9, 10, 16), size=5, padding=2),
    "epilogue": _convolution((1, 10, 9, 24), channels=24, after=lambda out: topi.nn.relu(topi.add(out, out))),
    "odd channels": _convolution((1, 8, 8, 10), channels=12),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compute_the_convolution(name: str) -> None:
    task, rng = KERNELS[name], np.random.default_rng(5)
    space = DesignSpace(task)
    inputs = _inputs(task, rng)
    expected = run(unscheduled(task), inputs, CPU)
    for sketch in _sketches(task):
        for _ in range(2 if name == "plain" else 1):
            scheduled = space.schedule(_candidate(task, sketch, rng))
            assert scheduled.packed == (1,)
            assert scheduled.original_args == unscheduled(task).args
            assert _largest_error(run(scheduled, inputs, CPU), expected) < 1e-4


def test_a_residual_sum_and_a_bias_are_part_of_the_kernel() -> None:
    data, other = te.placeholder((1, 8, 8, 16), name="data"), te.placeholder((1, 8, 8, 16), name="other")
    weight, bias = te.placeholder((3, 3, 16, 16), name="weight"), te.placeholder((1, 1, 1, 16), name="bias")
    product = topi.nn.conv2d_nhwc(data, weight, 1, 1, 1)
    out = topi.nn.relu(topi.add(topi.add(product, bias), other))
    task = program_task((data, weight, bias, other, out), CPU, constants=(1, 2))
    rng = np.random.default_rng(6)
    inputs = _inputs(task, rng)
    expected = run(unscheduled(task), inputs, CPU)
    sketches = _sketches(task)
    assert len(sketches) == 3
    for sketch in sketches:
        scheduled = DesignSpace(task).schedule(_candidate(task, sketch, rng))
        assert _largest_error(run(scheduled, inputs, CPU), expected) < 1e-4


def test_a_stored_trace_gives_the_same_program_again() -> None:
    task, rng = _convolution((1, 11, 13, 16)), np.random.default_rng(7)
    space = DesignSpace(task)
    for sketch in _sketches(task):
        candidate = _candidate(task, sketch, rng)
        scheduled = space.schedule(candidate)
        again = replay(task.workload.module, scheduled.trace)
        assert structural_equal(again.module, scheduled.module)
        # In a network the kernel has the arguments that it had without a schedule.
        module = parse_module(task.workload.module)
        in_network = apply_trace(module, scheduled.trace)["main"]
        assert [list(each.shape) for each in in_network.params] == [list(each.shape) for each in module["main"].params]
        assert uses_winograd(scheduled.trace)


def test_weights_keep_their_place_without_a_change_of_layout() -> None:
    task, rng = _convolution(), np.random.default_rng(8)
    space, (sketch, *_) = DesignSpace(task), _sketches(_convolution())
    space.postprocs = [each for each in space.postprocs if "RewriteLayout" not in type(each).__name__]
    scheduled = space.schedule(_candidate(task, sketch, rng))
    inputs = _inputs(task, rng)
    assert scheduled.args[1].shape == (4, 4, 16, 32)
    assert _largest_error(run(scheduled, inputs, CPU), run(unscheduled(task), inputs, CPU)) < 1e-5


def test_a_trace_for_another_program_is_refused() -> None:
    task, rng = _convolution(), np.random.default_rng(9)
    trace = DesignSpace(task).schedule(_candidate(task, _sketches(task)[0], rng)).trace
    with pytest.raises(ScheduleError, match="no convolution that it fits"):
        replay(_convolution(stride=2).workload.module, trace)
    plain = DesignSpace(task)
    other = next(sketch for sketch in plain.undescribed if sketch.rule == "register-blocked")
    assert not uses_winograd(json.dumps(other.trace_text))


def test_the_draft_knows_the_loops_and_the_operations() -> None:
    for sketch, points in zip(_sketches(_convolution((1, 24, 24, 64), channels=64)), (4, 6, 8), strict=True):
        main, *others = sketch.statements
        assert sketch.undescribed == ""
        tiles = -(-24 // (points - 2))
        assert main.operations == 2 * points**2 * tiles**2 * 64 * 64
        assert [each.name for each in others] == [
            "data_rows",
            "data_tiles",
            "products_local",
            "output_rows",
            "output_tile",
            "epilogue",
        ]
        # Each point is a sum of at most all of its terms, with a factor each: not of all rows of the matrix.
        assert max(each.flop_per_point for each in others) < 2 * points


def test_the_draft_takes_the_transforms_for_vector_code() -> None:
    """They share no buffer with the products, from which the draft knows rows."""
    rng = np.random.default_rng(10)
    task = _convolution((1, 24, 24, 64), channels=64)
    for sketch in _sketches(task):
        secs = latency_secs(sketch, sample(sketch, 500, rng), DEVICE).min()
        at_peak = sum(statement.operations for statement in sketch.statements) / DEVICE.peak_flops
        assert at_peak < secs < 3 * at_peak
