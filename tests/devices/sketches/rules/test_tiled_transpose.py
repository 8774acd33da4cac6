"""The rule for kernels that read across the lines they write: where it applies, and what its kernels look like."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, compile, runtime, te, topi
from tvm.s_tir import Schedule
from tvm.target import Target

from devices.sketches.rules.tiled_transpose import crossed_axes, tiled_transposes

CPU = Target({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
CUDA = Target({"kind": "cuda", "arch": "sm_90"})


def _module(*tensors: te.Tensor) -> IRModule:
    return IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def _image() -> te.Tensor:
    return te.placeholder((1, 6, 10, 32), name="image")


def _transposed() -> IRModule:
    image = _image()
    return _module(image, topi.transpose(image, (0, 3, 1, 2)))


def _added_to_what_lies_straight() -> IRModule:
    image, straight = _image(), te.placeholder((1, 32, 6, 10), name="straight")
    return _module(image, straight, topi.nn.relu(topi.add(topi.transpose(image, (0, 3, 1, 2)), straight)))


def _bias_for_each_row() -> IRModule:
    image, bias = te.placeholder((1, 32, 6, 10), name="image"), te.placeholder((1, 32, 1, 1), name="bias")
    return _module(image, bias, topi.add(image, bias))


def _heads() -> IRModule:
    """Heads are moved before tokens: both sides are contiguous along the same axis."""
    tokens = te.placeholder((1, 8, 4, 16), name="tokens")
    return _module(tokens, topi.transpose(tokens, (0, 2, 1, 3)))


def _product() -> IRModule:
    a, b = te.placeholder((16, 32), name="a"), te.placeholder((48, 32), name="b")
    return _module(a, b, topi.matmul(a, b, transp_b=True))


@pytest.mark.parametrize(("module", "axes"), [(_transposed(), (1, 3)), (_bias_for_each_row(), None), (_heads(), None)])
def test_an_input_that_is_contiguous_along_another_axis_is_crossed(
    module: IRModule, axes: tuple[int, int] | None
) -> None:
    schedule = Schedule(module, debug_mask="none")
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root", "main"))
    assert crossed_axes(schedule.get(block)) == axes


@pytest.mark.parametrize("module", [_transposed(), _added_to_what_lies_straight()])
def test_both_axes_are_tiled_and_the_kernel_is_right(module: IRModule) -> None:
    (schedule,) = tiled_transposes(module, CPU)
    sampled = [inst for inst in schedule.trace.insts if inst.kind.name == "SamplePerfectTile"]
    assert len(sampled) == 2
    crossed, contiguous = ([2, 16], [2, 5])
    closed = schedule.trace.with_decision(sampled[0], crossed, True).with_decision(sampled[1], contiguous, True)
    tiled = Schedule(module, debug_mask="none")
    closed.apply_to_schedule(tiled, remove_postproc=True)

    (block,) = tiled.get_child_blocks(tiled.get_sblock("root", "main"))
    extents = [int(tiled.get(loop).extent) for loop in tiled.get_loops(block)]
    assert extents == [6 * 2 * 2, 16, 5]
    script = tiled.mod.script()
    assert "T.parallel(24)" in script
    assert "T.vectorized(5)" in script

    rng = np.random.default_rng(3)
    image, straight = (rng.standard_normal(shape, dtype=np.float32) for shape in ((1, 6, 10, 32), (1, 32, 6, 10)))
    inputs = [image, straight][: len(module["main"].params) - 1]
    out = runtime.tensor(np.zeros((1, 32, 6, 10), np.float32))
    compile(tiled.mod, target=CPU)["main"](*map(runtime.tensor, inputs), out)
    expected = image.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(out.numpy(), expected if len(inputs) == 1 else np.maximum(expected + straight, 0))


@pytest.mark.parametrize("module", [_bias_for_each_row(), _heads(), _product()])
def test_what_crosses_nothing_has_no_such_sketch(module: IRModule) -> None:
    assert tiled_transposes(module, CPU) == []


def test_it_is_a_rule_for_cpus() -> None:
    assert tiled_transposes(_transposed(), CUDA) == []
