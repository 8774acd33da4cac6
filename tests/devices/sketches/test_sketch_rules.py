"""The register-blocked rule: where it applies, and what its kernels look like."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import IRModule, te, topi
from tvm.s_tir import Schedule
from tvm.target import Target

from devices.sketches import intrinsics
from devices.sketches.description.accesses import leaf_blocks
from devices.sketches.rules.register_blocked import describe_reduction, register_blocked

CPU = Target({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
CUDA = Target({"kind": "cuda", "arch": "sm_90"})
intrinsics.load_intrinsics('{"kind": "llvm", "mtriple": "x86_64-linux-gnu"}')


def _module(*tensors: te.Tensor) -> IRModule:
    return IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def _conv(channels: int = 16, *, epilogue: bool = True, stride: int = 1, groups: int = 1) -> IRModule:
    data = te.placeholder((1, 14, 14, channels), name="data")
    weight = te.placeholder((3, 3, channels // groups, 32), name="weight")
    out = topi.nn.conv(data, weight, stride, 1, 1, groups, "NHWC", "HWIO")
    return _module(data, weight, topi.nn.relu(out) if epilogue else out)


def _matmul(rows: int = 24, batch: tuple[int, ...] = ()) -> IRModule:
    a = te.placeholder((*batch, rows, 32), name="a")
    b = te.placeholder((*batch, 32, 48), name="b")
    return _module(a, b, topi.nn.batch_matmul(a, b, transpose_b=False) if batch else topi.matmul(a, b))


def _pool() -> IRModule:
    data = te.placeholder((1, 16, 16, 24), name="data")
    return _module(data, topi.nn.pool2d(data, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC"))


def _softmax() -> IRModule:
    data = te.placeholder((8, 32), name="data")
    return _module(data, topi.nn.softmax(data))


def _elementwise() -> IRModule:
    data = te.placeholder((8, 32), name="data")
    return _module(data, topi.nn.relu(data))


def _one_loop_nest_is_parallel(schedule: Schedule) -> bool:
    return "T.parallel(" in schedule.mod.script() and "T.vectorized(" in schedule.mod.script()


@pytest.mark.parametrize(
    "module",
    [
        _conv(),
        _conv(epilogue=False),
        _conv(stride=2),
        _conv(3),
        _conv(32, groups=32),
        _conv(32, groups=4),
        _matmul(),
        _matmul(1),
        _matmul(batch=(3,)),
        _pool(),
    ],
    ids=["conv", "no-epilogue", "stride-2", "stem", "depthwise", "grouped", "matmul", "row", "batched", "pool"],
)
def test_applies_to_reductions(module: IRModule) -> None:
    (schedule,) = register_blocked(module, CPU)
    assert _one_loop_nest_is_parallel(schedule)
    func = schedule.mod["main"]
    (sums,) = [name for name in leaf_blocks(func) if name.endswith("_init")]
    assert leaf_blocks(func)[sums].writes[0].source.scope() == "local"


@pytest.mark.parametrize("module", [_softmax(), _elementwise()], ids=["softmax", "relu"])
def test_yields_nothing_elsewhere(module: IRModule) -> None:
    assert register_blocked(module, CPU) == []


def test_yields_nothing_on_other_targets() -> None:
    assert register_blocked(_matmul(), CUDA) == []


def test_batch_axes_are_not_tiled() -> None:
    (block,) = leaf_blocks(_matmul(batch=(3,))["main"]).values()
    found = describe_reduction(block)
    assert found is not None
    assert (found.batch, found.tiled, found.vector, found.reductions) == ((0,), (1,), 2, (3,))


def test_a_convolution_reuses_weights_over_its_pixels() -> None:
    block = leaf_blocks(_conv()["main"])["conv2d_nhwc"]
    found = describe_reduction(block)
    assert found is not None
    assert (found.batch, found.tiled, found.vector, found.reductions) == ((0,), (1, 2), 3, (4, 5, 6))


def _instructions(schedule: Schedule) -> list[Any]:
    return [str(instruction.kind.name) for instruction in schedule.trace.insts]


def test_everything_open_is_sampled() -> None:
    (schedule,) = register_blocked(_conv(), CPU)
    kinds = _instructions(schedule)
    # Three tiles of rows, columns and channels, three of the reductions, and where the padding goes.
    assert kinds.count("SamplePerfectTile") == 6
    assert kinds.count("SampleComputeLocation") == 1
