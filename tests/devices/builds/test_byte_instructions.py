"""Products of bytes are exact, by the instructions of every kind of CPU."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from devices.builds.byte_instructions import has_fast_dot4
from devices.builds.kernel_passes import use_kernel_passes
from devices.instruction_sets import missing_here
from devices.sketches.byte_operators import dot4
from devices.targets import parse_target, resolve_target

Bytes = npt.NDArray[Any]
ROWS = 64
# A Zen 4 and an Alder Lake have an instruction for it, by vectors of 16 and of 8 lanes.
CPUS = ("znver4", "cascadelake", "alderlake", "haswell", "x86-64")


def target_of(cpu: str) -> str:
    target = resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu", "num-cores": 1})
    missing = missing_here(target)
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    return target


def scheduled(groups: int, columns: int, lanes: int) -> tvm.IRModule:
    """Sums of ``(ROWS, groups)`` by ``(groups, columns)``, vectorised over so many columns at once."""
    a, b = te.placeholder((ROWS, groups), "int32", "a"), te.placeholder((groups, columns), "int32", "b")
    k = te.reduce_axis((0, groups), "k")
    c = te.compute((ROWS, columns), lambda i, j: te.sum(dot4(a[i, k], b[k, j]), axis=k), "c")
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    schedule = Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock("c", "main")
    i, j, over = schedule.get_loops(block)
    outer, inner = schedule.split(j, [None, lanes])
    schedule.reorder(i, outer, over, inner)
    if lanes > 1:
        schedule.vectorize(inner)
    return schedule.mod


def products(cpu: str, a: Bytes, b: Bytes, lanes: int) -> Bytes:
    """Products of ``(ROWS, k)`` unsigned with ``(k, n)`` signed bytes, by a kernel for a CPU."""
    use_kernel_passes()
    length, columns = b.shape
    packed = np.ascontiguousarray(b.reshape(-1, 4, columns).swapaxes(1, 2)).view("<i4")[..., 0]
    module = scheduled(length // 4, columns, lanes)
    with tvm.target.Target(json.loads(target_of(cpu))):
        built = tvm.tirx.build(module, target=parse_target(target_of(cpu)))
    result = tvm.runtime.tensor(np.zeros((ROWS, columns), np.int32))
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(each)) for each in (a.view("<i4"), packed)]
    tvm.runtime.Executable(built).jit()["main"](*tensors, result)
    return result.numpy()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 10, 16, 64])
def test_products_are_exact_at_the_ends_of_their_types(cpu: str, lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    ends = rng.choice(np.array([0, 1, 127, 128, 255], np.uint8), (ROWS, 32))
    signed = rng.choice(np.array([-128, -127, -1, 0, 1, 127], np.int8), (32, 320))
    ends[0], signed[:, 0], signed[:, 1] = 255, -128, 127  # two of these saturate 16 bits
    expected = ends.astype(np.int64) @ signed.astype(np.int64)
    np.testing.assert_array_equal(products(cpu, ends, signed, lanes), expected)


def test_one_product_of_every_pair_of_bytes() -> None:
    """Rows are unsigned bytes, columns signed ones: each in its own place of the four."""
    signed = np.tile(np.arange(-128, 128, dtype=np.int8), 4)
    b = np.zeros((4, 1024), np.int8)
    for at in range(4):
        b[at, at * 256 : (at + 1) * 256] = signed[:256]
    for first in range(0, 256, ROWS):
        a = np.repeat(np.arange(first, first + ROWS, dtype=np.uint8)[:, None], 4, axis=1)
        expected = np.outer(a[:, 0].astype(np.int64), signed.astype(np.int64))
        np.testing.assert_array_equal(products("haswell", a, b, 16), expected)


@pytest.mark.parametrize("cpu", ["znver4", "alderlake"])
def test_a_sum_is_an_operand_of_the_instruction(cpu: str) -> None:
    """The addition of a product to a sum is part of the instruction."""
    use_kernel_passes()
    target = parse_target(resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"}))
    built = tvm.tirx.build(scheduled(64, 64, 64), target=target)
    text = built.inspect_source("asm")
    assert text.count("vpdpbusd") >= 4
    assert "vpaddd" not in text


@pytest.mark.parametrize(
    ("cpu", "fast"),
    [("znver4", True), ("cascadelake", True), ("alderlake", True), ("haswell", False), ("znver3", False)],
)
def test_a_cpu_with_the_instruction_is_known(cpu: str, fast: bool) -> None:
    target = resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"})
    assert has_fast_dot4(parse_target(target)) is fast


def test_a_gpu_has_none() -> None:
    assert not has_fast_dot4(parse_target(resolve_target("nvidia/jetson-orin-nano")))
