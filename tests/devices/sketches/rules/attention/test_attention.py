"""The rule "attention": where it applies, what its kernels compute, and how their traces are replayed."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from tvm import te, topi
from tvm_ffi import structural_equal

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.sketches.rules.attention import uses_attention
from devices.sketches.rules.attention.pattern import attention_of
from devices.sketches.rules.attention.program import LANES, granule, lanes_of
from devices.sketches.rules.attention.rule import ATTENTION, fits
from devices.sketches.spaces import DesignSpace, ScheduleError, apply_trace, parse_module, replay, unscheduled
from devices.targets import resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass, Task
from policies.analysis.analyzer import latency_secs
from policies.space.sampling import sample
from tests.helpers.attention import WIDTH, examples
from tests.helpers.devices import CPU as DEVICE
from tests.helpers.programs import program_task
from tests.helpers.scheduled import run

CPU = resolve_target("native", 2)
FORMS = sorted(examples())


@pytest.fixture(autouse=True)
def passes() -> None:
    use_kernel_passes()


@cache
def _task(form: str) -> Task:
    lowered = import_network(load_network(examples()[form]), DeviceClass("cpu", CPU))
    (task,) = (task for task in lowered.tasks if task.workload.name.startswith("attention"))
    return task


def _candidates(task: Task, count: int) -> list[Candidate]:
    (sketch,) = DesignSpace(task).sketches
    rows = sample(sketch, count, np.random.default_rng(5))
    return [Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row))) for row in rows]


def _inputs(task: Task, form: str) -> list[npt.NDArray[np.generic]]:
    rng = np.random.default_rng(6)
    arrays: list[npt.NDArray[np.generic]] = []
    for spec in unscheduled(task).args:
        drawn = rng.standard_normal(spec.shape)
        arrays.append((drawn > 0 if spec.dtype == "bool" else 2 * drawn).astype(spec.dtype))
    if form == "masked":  # a row that nothing is left of
        mask = next(at for at, array in enumerate(arrays) if array.shape[-2:] == (19, 19))
        arrays[mask][..., 1, :] = -np.inf
    return arrays


@pytest.mark.parametrize("form", FORMS)
def test_its_kernels_compute_what_the_program_does(form: str) -> None:
    task = _task(form)
    (sketch,) = DesignSpace(task).sketches
    assert (sketch.rule, sketch.undescribed) == (ATTENTION, "")
    inputs = _inputs(task, form)
    (expected,) = run(unscheduled(task), inputs, CPU)
    assert np.isfinite(expected).all()
    for candidate in _candidates(task, 4):
        (got,) = run(DesignSpace(task).schedule(candidate), inputs, CPU)
        assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_row_that_is_masked_as_a_whole_has_the_weights_of_the_program() -> None:
    for form, is_zero in (("masked", True), ("added", False)):
        task = _task(form)
        inputs = _inputs(task, form)
        mask = next(at for at, array in enumerate(inputs) if array.shape[-1] == array.shape[-2])
        inputs[mask] = np.full_like(inputs[mask], -np.inf)
        (candidate,) = _candidates(task, 1)
        for program in (unscheduled(task), DesignSpace(task).schedule(candidate)):
            (got,) = run(program, inputs, CPU)
            assert (got == 0).all() if is_zero else np.isnan(got).all()


def test_nan_and_infinity_reach_the_rows_that_read_them() -> None:
    task = _task("plain")
    inputs = _inputs(task, "plain")
    inputs[0][0, 3, WIDTH] = np.nan  # of a query
    inputs[0][0, 5, 0] = np.inf
    (expected,) = run(unscheduled(task), inputs, CPU)
    (candidate,) = _candidates(task, 1)
    (got,) = run(DesignSpace(task).schedule(candidate), inputs, CPU)
    assert np.isnan(expected).any()
    assert (np.isnan(got) == np.isnan(expected)).all()


@pytest.mark.parametrize("form", ["odd", "masked"])
def test_an_infinite_value_is_summed_up_once(form: str) -> None:
    """Columns that stand in two vectors have no weight in one of them: infinity times zero would be NaN."""
    task = _task(form)
    inputs = _inputs(task, form)
    inputs[0][0, 5, -1] = np.inf  # of a value
    (expected,) = run(unscheduled(task), inputs, CPU)
    (candidate,) = _candidates(task, 1)
    (got,) = run(DesignSpace(task).schedule(candidate), inputs, CPU)
    assert np.isinf(expected).any()
    assert (np.isnan(got) == np.isnan(expected)).all()
    assert (np.isinf(got) == np.isinf(expected)).all()


def test_a_stored_trace_gives_the_same_program_again() -> None:
    task = _task("odd")
    (candidate,) = _candidates(task, 1)
    scheduled = DesignSpace(task).schedule(candidate)
    assert structural_equal(replay(task.workload.module, scheduled.trace).module, scheduled.module)
    assert DesignSpace(task).recognise(DesignSpace(task).apply(candidate).trace) == candidate
    module = parse_module(task.workload.module)
    in_network = apply_trace(module, scheduled.trace)["main"]
    assert [list(each.shape) for each in in_network.params] == [list(each.shape) for each in module["main"].params]
    assert uses_attention(scheduled.trace)
    x = te.placeholder((32, 64), name="x")
    with pytest.raises(ScheduleError, match="the program is none"):
        replay(program_task((x, topi.nn.softmax(x)), CPU).workload.module, scheduled.trace)


def test_a_program_that_only_looks_like_it_is_none() -> None:
    query, key, value = (te.placeholder((2, 32, 16), name=name) for name in ("query", "key", "value"))
    scores = topi.nn.batch_matmul(query, topi.transpose(key, (0, 2, 1)), transpose_b=False)
    exponents = topi.exp(topi.subtract(scores, topi.max(scores, 2, keepdims=True)))
    totals = topi.sum(exponents, 2, keepdims=True)

    def attended(weights: te.Tensor) -> tuple[te.Tensor, ...]:
        return query, key, value, topi.nn.batch_matmul(weights, value, transpose_b=False)

    def reads(*tensors: te.Tensor) -> bool:
        return attention_of(parse_module(program_task(tensors, CPU).workload.module)) is not None

    assert reads(*attended(topi.multiply(exponents, topi.divide(1.0, totals))))
    assert not reads(*attended(topi.multiply(exponents, topi.divide(2.0, totals))))
    assert not reads(*attended(topi.multiply(exponents, topi.divide(1.0, topi.sum(exponents, 1, keepdims=True)))))
    assert not reads(*attended(topi.multiply(topi.exp(scores), topi.divide(1.0, totals))))
    assert not reads(*attended(topi.multiply(scores, topi.divide(1.0, totals))))
    assert not reads(query, key, topi.nn.softmax(scores, axis=2))


def test_the_draft_knows_its_operations() -> None:
    task = _task("plain")
    (sketch,) = DesignSpace(task).sketches
    assert sketch.undescribed == ""
    products = [each for each in sketch.statements if each.name in ("scores_update", "sums_update")]
    assert [each.operations for each in products] == [2 * 4 * 32 * 32 * 16] * 2
    rows = sample(sketch, 200, np.random.default_rng(7))
    fastest = latency_secs(sketch, rows, DEVICE).min()
    at_peak = sum(statement.operations for statement in sketch.statements) / DEVICE.peak_flops
    assert at_peak < fastest < 100 * at_peak  # these are few: threads wake for them


@pytest.mark.parametrize(("rows", "expected"), [(197, 6), (128, 8), (77, 7), (50, 5), (49, 7), (4, 4), (9, 5)])
def test_granules_compute_the_fewest_rows_twice(rows: int, expected: int) -> None:
    assert granule(rows) == expected


def test_extents_that_fit() -> None:
    assert fits(4, LANES, 64)
    assert not fits(3, 64, 64)
    assert not fits(64, LANES - 1, 64)
    assert not fits(64, 64, 3)
    assert [lanes_of(width) for width in (64, 80, 72, 20, 3)] == [16, 16, 8, 4, 1]
