"""The checks of quantised kernels draw scales and zero points with which results take the levels of a byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from devices.builds.checks.check_plan import plan_of
from devices.builds.checks.program_reading import ProgramReading
from devices.builds.checks.quantization_draws import quantization_draws
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.networks.tasks.lowering import LoweringSteps, lower_network
from devices.sketches.spaces import parse_module, unscheduled
from devices.targets import resolve_target
from devices.timing.checked_inputs import make_checked_inputs
from fleet_tune.base.domain import DeviceClass, Task
from tests.helpers.quantised_graphs import network, rounded
from tests.helpers.scheduled import run

Builder = relax.BlockBuilder
CPU = DeviceClass("cpu", resolve_target("native", 2))


def weights(rng: np.random.Generator, *shape: int) -> Any:
    return relax.const((rng.integers(-127, 128, shape) * rng.uniform(0.5, 2, shape[-1]) / 127).astype(np.float32))


def between_products(
    middle: Callable[[Builder, Any], Any], scale: float = 0.3, low: int = -100, last: int = -100
) -> list[Task]:
    """The tasks of two quantised products with something between them."""
    rng = np.random.default_rng(3)
    first, second = weights(rng, 64, 48), weights(rng, 48, 16)

    def body(builder: Builder, x: Any) -> Any:
        value = builder.emit(relax.op.matmul(rounded(builder, x, 0.1, -120, 135), first))
        value = builder.emit(middle(builder, rounded(builder, value, scale, low, low + 255)))
        return builder.emit(relax.op.matmul(rounded(builder, value, 0.05, last, last + 255), second))

    return list(lower_network(network((40, 64), body), "f", ["x"], CPU, LoweringSteps("n")).tasks)


def results(task: Task) -> list[np.ndarray[Any, Any]]:
    """The results of a kernel on the inputs of its check."""
    plan, program = plan_of(parse_module(task.workload.module)["main"]), unscheduled(task)
    inputs = make_checked_inputs(task.id, program.args, program.outputs, False, plan)
    return run(program, inputs, CPU.target)


@pytest.fixture(autouse=True)
def _kernel_passes() -> None:
    use_kernel_passes()


MIDDLES = {
    "gelu": lambda _, x: relax.op.nn.gelu(x),
    "softmax": lambda _, x: relax.op.nn.softmax(x),
    "norm": lambda _, x: relax.op.nn.layer_norm(
        x, relax.const(np.ones(48, np.float32)), relax.const(np.zeros(48, np.float32)), axes=[-1]
    ),
    "sum": lambda builder, x: relax.op.add(x, builder.emit(relax.op.nn.relu(x))),
}


@pytest.mark.parametrize("middle", MIDDLES)
def test_results_take_many_levels(middle: str) -> None:
    positive = middle == "softmax"
    found = 0
    for task in between_products(MIDDLES[middle], last=0 if positive else -100):
        for values in results(task):
            if values.dtype != np.uint8:
                continue
            found += 1
            levels, counts = np.unique(values, return_counts=True)
            if not (positive and "softmax" in task.workload.name):  # most values of a softmax are near zero
                assert len(levels) >= 48
                assert counts.max() < 0.5 * values.size
            assert len(levels) >= 12
    assert found >= 2


def test_each_argument_has_the_draw_of_what_it_is() -> None:
    tasks = {task.workload.name: task for task in between_products(MIDDLES["norm"])}
    (norm,) = (task for name, task in tasks.items() if "layer_norm" in name)
    read = quantization_draws(ProgramReading(parse_module(norm.workload.module)["main"]))
    # The data, and the scale and zero point before and behind the norm.
    assert sorted(draw.high for draw in read.numbers.values()) == [1 / 32, 32, 128, 128]
    assert len(read.dequantized) == 1
    assert read.steps == (1 / 32,)
    assert not read.factors


def test_factors_follow_the_length_of_the_sum() -> None:
    """A sum of n products of bytes has a standard deviation of 2^13.4 * sqrt(n)."""
    rng = np.random.default_rng(1)
    highs = []
    for terms in (16, 1024):
        first, second = weights(rng, terms, 32), weights(rng, 32, 8)

        def body(builder: Builder, x: Any, first: Any = first, second: Any = second) -> Any:
            value = builder.emit(relax.op.matmul(rounded(builder, x, 0.1, -120, 135), first))
            return builder.emit(relax.op.matmul(rounded(builder, value, 0.3, -100, 155), second))

        lowered = lower_network(network((8, terms), body), "f", ["x"], CPU, LoweringSteps("n"))
        (task,) = (each for each in lowered.tasks if "requantize" in each.workload.name)
        (factor,) = quantization_draws(ProgramReading(parse_module(task.workload.module)["main"])).factors.values()
        highs.append(factor.high)
    # 128 / (2^13.4 * 4) = 2^-8.4 and 128 / (2^13.4 * 32) = 2^-11.4.
    assert highs == [2.0**-9, 2.0**-12]


def test_layers_that_differ_in_scales_are_one_task() -> None:
    rng = np.random.default_rng(5)
    layers = [weights(rng, 64, 64) for _ in range(4)]

    def body(builder: Builder, x: Any) -> Any:
        value = x
        for at, weight in enumerate(layers):
            data = rounded(builder, value, 0.1 + 0.01 * at, -100 - at, 155 - at)
            value = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.matmul(data, weight))))
        return value

    lowered = lower_network(network((32, 64), body), "f", ["x"], CPU, LoweringSteps("n"))
    assert [task.weight for task in lowered.tasks if task.workload.name.startswith("matmul")] == [4]
