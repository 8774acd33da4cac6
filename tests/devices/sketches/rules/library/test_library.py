"""The rule "onednn": where it applies, and what its programs compute. The library is one of plain loops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import te, topi
from tvm_ffi import structural_equal

from devices.builds.linking import link
from devices.sketches.programs import is_rewritten
from devices.sketches.rules.library import uses_library
from devices.sketches.rules.library.rule import ONEDNN
from devices.sketches.spaces import (
    DesignSpace,
    Scheduled,
    ScheduleError,
    apply_trace,
    parse_module,
    replay,
    unscheduled,
)
from devices.targets import default_device_class_name, library_of, parse_target, resolve_target, with_library
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Choice, Sketch
from tests.helpers.plain_library import library_traces, use_plain_library
from tests.helpers.programs import program_task
from tests.helpers.workloads import TARGETS

pytestmark = pytest.mark.skipif(
    library_of(with_library(resolve_target("native"), ONEDNN)) == "", reason="the library is for x86-64"
)
Array = npt.NDArray[np.float32]
PLAIN = resolve_target("native", 2)
CPU = with_library(PLAIN, ONEDNN)


def _convolution(
    shape: tuple[int, ...] = (1, 13, 11, 8),
    *,
    size: tuple[int, int] = (3, 3),
    channels: int = 40,
    padding: Any = 1,
    stride: Any = 1,
    dilation: int = 1,
    groups: int = 1,
    dtype: str = "float32",
    before: Callable[[te.Tensor], te.Tensor] | None = None,
    after: Callable[[te.Tensor], te.Tensor] | None = None,
    constant: bool = True,
    target: str = CPU,
) -> Task:
    data = te.placeholder(shape, dtype, name="data")
    weight = te.placeholder((*size, shape[-1] // groups, channels), dtype, name="weight")
    given = before(data) if before else data
    if groups == 1:
        out = topi.nn.conv2d_nhwc(given, weight, stride, padding, dilation)
    else:
        out = topi.nn.conv(given, weight, stride, padding, dilation, groups, "NHWC", "HWIO")
    task = program_task((data, weight, after(out) if after else out), target, constants=(1,))
    if constant:
        return task
    main = parse_module(task.workload.module)["main"].with_attr("layout_free_buffers", [])
    return replace(task, workload=replace(task.workload, module=tvm.ir.save_json(tvm.IRModule({"main": main}))))


def _product(
    rows: tuple[int, ...], inner: int, columns: int, after: Callable[[te.Tensor, te.Tensor], te.Tensor] | None = None
) -> Task:
    data, weight = te.placeholder((*rows, inner), name="data"), te.placeholder((inner, columns), name="weight")
    bias = te.placeholder((columns,), name="bias")
    k = te.reduce_axis((0, inner), "k")
    out = te.compute((*rows, columns), lambda *at: te.sum(data[(*at[:-1], k)] * weight[k, at[-1]], axis=k), "product")
    if after is None:
        return program_task((data, weight, out), CPU, constants=(1,))
    return program_task((data, weight, bias, after(out, bias)), CPU, constants=(1,))


def _sigmoid(out: te.Tensor, bias: te.Tensor) -> te.Tensor:
    biased = topi.add(out, bias)
    return topi.multiply(biased, topi.sigmoid(biased))


def _sketches(space: DesignSpace) -> list[Sketch]:
    assert not [told for rule, told in space.left_out if rule == ONEDNN]
    return [sketch for sketch in space.undescribed if sketch.rule == ONEDNN]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scheduled, list[Array]], Array]:
    """Builds, links and runs a program with the library of plain loops."""
    use_plain_library(tmp_path / "library", monkeypatch)
    numbers = iter(range(1000))

    def ran(scheduled: Scheduled, inputs: list[Array]) -> Array:
        path = tmp_path / f"kernel-{next(numbers)}.so"
        path.write_bytes(link(tvm.tirx.build(scheduled.module, target=parse_target(CPU)), CPU))
        kernel = tvm.runtime.load_module(str(path))
        tensors = [tvm.runtime.tensor(array.copy()) for array in inputs]
        for index in scheduled.packed:
            packed = tvm.runtime.empty(scheduled.args[index].shape, scheduled.args[index].dtype)
            kernel[f"pack_{index}"](tensors[index], packed)
            tensors[index] = packed
        kernel["main"](*tensors)
        return np.array(tensors[scheduled.outputs[0]].numpy())

    return ran


KERNELS = {
    "3x3": _convolution(),
    "strided": _convolution(stride=2, padding=[1, 0, 1, 0]),
    "uneven": _convolution((2, 9, 10, 3), size=(5, 2), padding=[2, 1, 1, 0], stride=(2, 1), channels=70),
    "1x1": _convolution((2, 7, 9, 16), size=(1, 1), padding=0, channels=130, after=topi.nn.relu),
    "1x1, strided": _convolution(size=(1, 1), padding=0, stride=2),
    "1x1, padded": _convolution(size=(1, 1), padding=1),
    "after": _convolution(after=lambda out: topi.nn.relu(topi.add(out, out)), channels=72),
    "few channels": _convolution(channels=3),
    "product": _product((1, 37), 24, 200, lambda out, bias: topi.nn.relu(topi.add(out, bias))),
    "exponential": _product((2, 3, 5), 24, 33, _sigmoid),
    "one row": _product((1,), 64, 500),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compute_the_operator(name: str, run: Callable[[Scheduled, list[Array]], Array]) -> None:
    task, rng = KERNELS[name], np.random.default_rng(7)
    inputs = [rng.standard_normal(spec.shape).astype(np.float32) for spec in unscheduled(task).args]
    inputs[-1][:] = np.nan
    expected = run(unscheduled(task), inputs)
    assert np.isfinite(expected).all()
    traces = library_traces(task)
    assert len(traces) > 1
    for trace in traces:
        scheduled = replay(task.workload.module, trace)
        assert scheduled.original_args == unscheduled(task).args
        np.testing.assert_allclose(run(scheduled, inputs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "task",
    [
        _convolution(groups=2),
        _convolution(dilation=2, padding=2),
        _convolution(dtype="float16"),
        _convolution(constant=False),
        _convolution(before=topi.nn.relu),
        _convolution(after=lambda out: topi.transpose(out, (0, 3, 1, 2))),
        _convolution(target=PLAIN),
        _convolution(target=resolve_target(TARGETS["sm_90"])),
        program_task((data := te.placeholder((8, 64), name="data"), topi.nn.softmax(data)), CPU),
    ],
    ids=["groups", "dilation", "half", "weights", "computed", "transposed", "no library", "gpu", "softmax"],
)
def test_what_the_library_has_not_has_no_such_sketch(task: Task) -> None:
    assert library_traces(task) == []


def test_other_values_around_an_image_are_none_of_the_librarys() -> None:
    """It puts zeros there."""

    def padded(data: te.Tensor, value: float) -> te.Tensor:
        return topi.nn.pad(data, [0, 1, 1, 0], [0, 1, 1, 0], value)

    assert library_traces(_convolution(padding=0, before=lambda data: padded(data, 1.0))) == []
    assert library_traces(_convolution(padding=0, before=lambda data: padded(data, 0.0)))


def test_a_result_that_others_read_too_is_none_of_the_librarys() -> None:
    """Of it a part is kept at a time."""
    data, weight = te.placeholder((8, 16), name="data"), te.placeholder((16, 24), name="weight")
    product = topi.matmul(data, weight)
    after = topi.nn.relu(product)
    assert library_traces(program_task((data, weight, after), CPU, constants=(1,)))
    assert not library_traces(program_task((data, weight, product, after), CPU, constants=(1,)))


def test_a_sketch_is_searched_by_its_decisions() -> None:
    [sketch] = _sketches(DesignSpace(_convolution((1, 14, 14, 16), channels=256)))
    rows, columns = sketch.decisions
    assert isinstance(rows, Choice)
    assert isinstance(columns, Choice)
    assert rows.values == (14, 7, 4, 2, 1)
    assert columns.values == (256, 128, 64)
    assert not sketch.described
    assert sketch.undescribed


def test_weights_are_laid_out_where_a_call_takes_a_part_of_them() -> None:
    task = _convolution(channels=100)
    whole, parts = (replay(task.workload.module, trace) for trace in library_traces(task)[:2])
    assert whole.packed == ()
    assert parts.packed == (1,)
    assert parts.args[1].shape == (2, 3, 3, 8, 64)


def test_a_trace_is_replayed_on_the_plain_program() -> None:
    task = _convolution(channels=100)
    space = DesignSpace(task)
    [sketch] = _sketches(space)
    scheduled = space.schedule(Candidate(task.id, sketch.index, sketch.id, (1, 1)))
    assert uses_library(scheduled.trace)
    assert is_rewritten(scheduled.trace), "TVM alone cannot replay it"
    again = replay(task.workload.module, scheduled.trace)
    assert structural_equal(again.module, scheduled.module)
    applied = apply_trace(parse_module(task.workload.module), scheduled.trace)["main"]
    assert [tuple(map(int, param.shape)) for param in applied.params] == [
        spec.shape for spec in scheduled.original_args
    ]
    other = program_task((data := te.placeholder((8, 64), name="data"), topi.nn.softmax(data)), CPU)
    with pytest.raises(ScheduleError, match="library"):
        replay(other.workload.module, scheduled.trace)


def test_a_target_with_a_library_is_another_one() -> None:
    assert resolve_target(CPU) == CPU
    assert json.loads(CPU)["libs"] == [ONEDNN]
    assert library_of(PLAIN) == ""
    assert with_library(PLAIN, "") == PLAIN
    assert default_device_class_name(CPU) == f"{default_device_class_name(PLAIN)}-{ONEDNN}"
    arm = resolve_target({"kind": "llvm", "mcpu": "cortex-a78", "mtriple": "aarch64-linux-gnu", "num-cores": 4})
    gpu = resolve_target(TARGETS["sm_90"])
    assert [with_library(each, ONEDNN) for each in (arm, gpu)] == [arm, gpu]
