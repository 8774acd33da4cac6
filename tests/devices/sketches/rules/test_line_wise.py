"""The rule for element-wise kernels along the lines that they write: where it applies, and what its kernels compute."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import IRModule, compile, runtime, te, topi
from tvm.s_tir import Schedule, Trace
from tvm.target import Target

from devices.sketches import intrinsics
from devices.sketches.rules.line_wise import line_wise
from devices.targets import parse_target, resolve_target

CPU = Target({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
CUDA = Target({"kind": "cuda", "arch": "sm_90"})
intrinsics.load_intrinsics('{"kind": "llvm", "mtriple": "x86_64-linux-gnu"}')


def _module(*tensors: te.Tensor) -> IRModule:
    return IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def _gated() -> IRModule:
    """Of the two halves of each line, one gates the other."""
    x = te.placeholder((6, 96), name="x")
    first, second = (topi.strided_slice(x, [0, at], [6, at + 48], [1, 1]) for at in (0, 48))
    return _module(x, topi.multiply(topi.sigmoid(first), second))


def _scaled_image() -> IRModule:
    x, scale = te.placeholder((1, 70, 7, 7), name="x"), te.placeholder((1, 70, 1, 1), name="scale")
    return _module(x, scale, topi.nn.relu(topi.multiply(x, scale)))


def _sum() -> IRModule:
    x = te.placeholder((4, 6, 10), name="x")
    return _module(x, topi.add(x, x))


def _enlarged() -> IRModule:
    x = te.placeholder((1, 3, 5, 6), name="x")
    return _module(x, topi.image.resize2d(x, [0.0] * 4, (10, 12), method="nearest_neighbor"))


def _transposed() -> IRModule:
    x = te.placeholder((64, 64), name="x")
    return _module(x, topi.transpose(x))


def _copied_rows() -> IRModule:
    x = te.placeholder((6, 128), name="x")
    return _module(x, topi.strided_slice(x, [1, 16], [5, 112], [1, 1]))


def _softmax() -> IRModule:
    x = te.placeholder((6, 64), name="x")
    return _module(x, topi.nn.softmax(x))


def _decided(schedule: Schedule, module: IRModule, tiles: list[int]) -> str:
    """The program with other tiles."""
    (tile,) = [inst for inst in schedule.trace.insts if inst.kind.name == "SamplePerfectTile"]
    other = Schedule(module)
    Trace(schedule.trace.insts, {tile: tiles}).apply_to_schedule(other, remove_postproc=True)
    return str(other.mod.script())


@pytest.mark.parametrize(
    ("module", "tiles", "loops"),
    [
        (_gated, [2, 3, 8], ("T.parallel(12)", "range(3)", "T.vectorized(8)")),  # few lines
        (_scaled_image, [7, 7], ("T.parallel(70)", "range(7)", "T.vectorized(7)")),  # a line of a whole image
        (_sum, [3, 5, 16], ("T.parallel(3)", "range(5)", "T.vectorized(16)")),  # all axes are one line
    ],
)
def test_lines_are_as_long_as_all_operands_allow(
    module: Callable[[], IRModule], tiles: list[int], loops: tuple[str, ...]
) -> None:
    (schedule,) = line_wise(module(), CPU)
    program = _decided(schedule, module(), tiles)
    assert all(loop in program for loop in loops), program


@pytest.mark.parametrize("module", [_transposed, _copied_rows, _softmax])
def test_what_other_rules_are_for_is_left_to_them(module: Callable[[], IRModule]) -> None:
    assert line_wise(module(), CPU) == []


def test_it_is_a_rule_for_cpus() -> None:
    assert line_wise(_gated(), CUDA) == []


@pytest.mark.parametrize("module", [_gated, _scaled_image, _sum, _enlarged])
def test_the_kernels_compute_what_the_program_does(module: Callable[[], IRModule]) -> None:
    program = module()
    (schedule,) = line_wise(program, CPU)
    target = parse_target(resolve_target("native", 2))
    rng = np.random.default_rng(5)
    shapes = [[int(n) for n in parameter.shape] for parameter in program["main"].params]
    given = [runtime.tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes[:-1]]
    results = []
    for each in (program, schedule.mod):
        result = runtime.tensor(np.full(shapes[-1], np.nan, np.float32))
        compile(each, target=target)["main"](*given, result)
        results.append(result.numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "cpu",
    [
        {"mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"},
        {"mcpu": "x86-64-v4", "mtriple": "x86_64-linux-gnu"},
        {"mcpu": "cortex-a76", "mtriple": "aarch64-linux-gnu"},
    ],
    ids=lambda cpu: cpu["mcpu"],
)
def test_any_cpu_has_vectors_for_it(cpu: dict[str, str]) -> None:
    target = parse_target(resolve_target({"kind": "llvm", **cpu}, 1))
    (schedule,) = line_wise(_scaled_image(), target)
    tiles = next(inst for inst in schedule.trace.insts if inst.kind.name == "SamplePerfectTile")
    other = Schedule(_scaled_image())
    Trace(schedule.trace.insts, {tiles: [49, 1]}).apply_to_schedule(other, remove_postproc=True)
    assert re.search(r"fmul.*<\d+ x float>", tvm.tirx.build(other.mod, target=target).inspect_source("ll"))
