"""Products of bytes in CUDA kernels: the source computes them exactly, and a compiler takes it.

No GPU runs here: the source runs on the host (tests/helpers/cuda_on_cpu).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.cuda.compiler import require_compiler
from devices.networks.graph.low_precision.integer_products import integer_products
from devices.networks.tasks.lowering import LoweringSteps, lower_network
from devices.sketches.byte_operators import DOT4, INTEGER_DOTS, SIGNED_DOT4, IntegerDot
from devices.sketches.spaces import DesignSpace, ScheduleError, parse_module, unscheduled
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass, Task
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import feasible
from policies.space.sampling import sample
from tests.helpers.cuda_on_cpu import extents, run_on_cpu
from tests.helpers.devices import GPU
from tests.helpers.integer_dots import ROWS, ends, operands, scheduled
from tests.helpers.quantised_graphs import network, rounded
from tests.helpers.scheduled import run

ORIN = DeviceClass("orin", resolve_target("nvidia/jetson-orin-nano"))
CPU = DeviceClass("cpu", resolve_target("native", 1))
GROUPS, COLUMNS = 9, 64
BY_NAME = pytest.mark.parametrize("dot", INTEGER_DOTS, ids=lambda dot: dot.name.rsplit(".", 1)[-1])


def bound(dot: IntegerDot, lanes: int) -> Schedule:
    """Products of rows with columns: a block for each row, a thread for each vector of columns."""
    use_kernel_passes()
    schedule = Schedule(scheduled(dot, GROUPS, COLUMNS, lanes))
    row, thread, *_ = schedule.get_loops(schedule.get_sblock("c", "main"))
    schedule.bind(row, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return schedule


def source_of(module: tvm.IRModule, arch: str = "sm_87") -> str:
    target = parse_target(resolve_target({"kind": "cuda", "arch": arch}))
    return str(tvm.tirx.build(module, target=target).imports[0].inspect_source())


@BY_NAME
@pytest.mark.parametrize("lanes", [1, 4])
def test_the_source_computes_exact_products(tmp_path: Path, dot: IntegerDot, lanes: int) -> None:
    module = bound(dot, lanes).mod
    a, b = ends(dot, GROUPS * dot.terms, COLUMNS)
    left, right = operands(dot, a, b)
    arrays = {"a": left, "b": right, "c": np.zeros((ROWS, COLUMNS), np.int32)}
    run_on_cpu(source_of(module), extents(module["main"].body), arrays, tmp_path)
    np.testing.assert_array_equal(arrays["c"], a @ b)


@pytest.mark.parametrize("kind", ["convolution", "matrix"])
def test_sketches_of_quantised_kernels_compute_what_the_program_does(tmp_path: Path, kind: str) -> None:
    """With what is shared among threads, and with the rounding behind the sums: equal bit by bit."""
    use_kernel_passes()
    rng = np.random.default_rng(1)
    task = quantised(kind, rng)
    space, oracle = DesignSpace(task), unscheduled(replace(task, device_class=CPU))
    limits = {"uint8": (0, 256), "int32": (-(2**31), 2**31), "float32": (-2, 3)}
    inputs = [rng.integers(*limits[spec.dtype], spec.shape).astype(spec.dtype) for spec in oracle.args]
    expected = run(oracle, inputs, CPU.target)
    names = [str(each.name) for each in parse_module(task.workload.module)["main"].params]
    sketch = space.sketches[0]
    assert sketch.statements[0].arithmetic == "int8"
    for candidate in fitting(task, sketch, rng):
        try:
            chosen = space.schedule(candidate)
        except ScheduleError:
            continue  # another limit of the device
        source = source_of(chosen.module)
        assert "__dp4a(" in source
        arrays = dict(zip(names, inputs, strict=True))
        run_on_cpu(source, extents(chosen.module["main"].body), arrays, tmp_path)
        for at, wanted in zip(oracle.outputs, expected, strict=True):
            np.testing.assert_array_equal(arrays[names[at]], wanted)
        return
    pytest.fail("no candidate could be scheduled")


def quantised(kind: str, rng: np.random.Generator) -> Task:
    """A convolution or a product in bytes for an Orin, with the rounding of its result. Extents that are no multiples
    of 16 are none for its tensor cores."""
    shape = (1, 6, 6, 24) if kind == "convolution" else (16, 56)
    size = (3, 3, 24, 24) if kind == "convolution" else (56, 24)
    weight = relax.const((rng.integers(-127, 128, size) / 127).astype(np.float32))

    def body(builder: relax.BlockBuilder, x: Any) -> Any:
        data = rounded(builder, x, 0.05, -128, 127)
        if kind == "matrix":
            return rounded(builder, builder.emit(relax.op.matmul(data, weight)), 0.3, 0, 255)
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return rounded(builder, builder.emit(relax.op.nn.conv2d(data, weight, padding=1, **layouts)), 0.3, 0, 255)

    module = integer_products(network(shape, body), parse_target(ORIN.target))
    lowered = lower_network(module, "fingerprint", ("x",), ORIN, LoweringSteps("net"))
    return max(lowered.tasks, key=lambda each: each.workload.flop)


def fitting(task: Task, sketch: Sketch, rng: np.random.Generator) -> Iterator[Candidate]:
    """Random candidates that the analyzer's limits let pass."""
    rows = sample(sketch, 200, rng)
    for row in rows[feasible(sketch, rows, GPU)]:
        yield Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row)))


@pytest.mark.parametrize("lanes", [1, 4])
def test_four_products_of_signed_bytes_are_one_instruction(lanes: int) -> None:
    source = source_of(bound(SIGNED_DOT4, lanes).mod)
    assert source.count("__dp4a(") == lanes
    assert ">>" not in source.split('extern "C" ')[-1]


def test_a_gpu_without_the_instruction_multiplies_byte_by_byte() -> None:
    assert "__dp4a(" not in source_of(bound(DOT4, 1).mod, arch="sm_53")


def test_a_compiler_takes_the_source() -> None:
    code = require_compiler().compile(source_of(bound(SIGNED_DOT4, 4).mod), "sm_87")
    assert code.startswith(b"\x7fELF")
