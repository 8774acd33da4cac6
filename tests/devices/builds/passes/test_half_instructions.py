"""Products of pairs of bfloat16 are those of float32 numbers, by the instructions of every kind of CPU."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from devices.builds.passes.half_instructions import has_fast_dot2
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.instruction_sets import missing_here
from devices.sketches.half_operators import pair
from devices.targets import parse_target, resolve_target
from tests.helpers.half_dots import ROWS, scheduled

Halves = npt.NDArray[Any]
BFLOAT16 = ml_dtypes.bfloat16
# With the instruction; with vectors of 16 lanes, of 8 and of 4.
CPUS = ("znver4", "icelake-server", "haswell", "x86-64")


def target_of(cpu: str) -> str:
    target = resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu", "num-cores": 1})
    missing = missing_here(target)
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    return target


def products(cpu: str, a: Halves, b: Halves, lanes: int) -> Halves:
    """Products of ``(ROWS, k)`` with ``(k, n)`` in bfloat16, by a kernel for a CPU."""
    use_kernel_passes()
    length, columns = b.shape
    packed = np.ascontiguousarray(b.reshape(-1, 2, columns).swapaxes(1, 2)).view("<i4")[..., 0]
    with tvm.target.Target(json.loads(target_of(cpu))):
        built = tvm.tirx.build(scheduled(length, columns, lanes), target=parse_target(target_of(cpu)))
    result = tvm.runtime.tensor(np.zeros((ROWS, columns), np.float32))
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(each)) for each in (a, packed)]
    tvm.runtime.Executable(built).jit()["main"](*tensors, result)
    return result.numpy()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 10, 16, 64])
def test_products_are_those_of_float32(cpu: str, lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    a, b = (rng.normal(0, 1, shape).astype(BFLOAT16) for shape in ((ROWS, 32), (32, 320)))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(products(cpu, a, b, lanes), expected, rtol=0, atol=32 * 2.0**-24 * 16)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [1, 16])
def test_sums_that_need_no_rounding_are_exact(cpu: str, lanes: int) -> None:
    """Every place of both halves counts: whole numbers of seven bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 129, shape).astype(BFLOAT16) for shape in ((ROWS, 64), (64, 32)))
    np.testing.assert_array_equal(products(cpu, a, b, lanes), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [1, 16])
def test_special_values_stay(cpu: str, lanes: int) -> None:
    """NaN, infinities and large numbers in either half, and zeros that infinities meet."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 3e18, -3e18]
    a = np.zeros((ROWS, 4), BFLOAT16)
    a[:, 1] = special
    a[:, 2] = special[::-1]
    b = np.zeros((4, 64), BFLOAT16)
    b[1], b[2] = np.repeat(special, 8), np.tile(special, 8)
    with np.errstate(all="ignore"):
        wide = [each.astype(np.float32) for each in (a, b)]
        expected = wide[0][:, 1:2] * wide[1][1] + wide[0][:, 2:3] * wide[1][2] + (wide[0][:, :1] * wide[1][0])
    finite = np.isfinite(expected)
    got = products(cpu, a, b, lanes)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-6)
    np.testing.assert_array_equal(got[np.isinf(expected)], expected[np.isinf(expected)])


def test_a_sum_is_an_operand_of_the_instruction() -> None:
    use_kernel_passes()
    target = parse_target(resolve_target({"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu"}))
    text = tvm.tirx.build(scheduled(64, 64, 64), target=target).inspect_source("asm")
    assert text.count("vdpbf16ps") >= 4
    assert "vaddps" not in text
    assert "vfmadd" not in text


def pairs_of(dtype: str, count: int, lanes: int, staged: bool, odd: bool = False) -> tvm.IRModule:
    """Pairs of ``(count, 2)`` numbers of a type, converted to bfloat16 where they are read or in a buffer before. The
    last one is zero where they are ``odd``."""
    zero = tirx.const(0.0, "bfloat16")
    given = te.placeholder((count, 2), dtype, "given")
    halves = te.compute((count, 2), lambda *at: given[at].astype("bfloat16"), "halves")

    def paired(i: Any) -> Any:
        last = halves[i, 1]
        return pair(halves[i, 0], tirx.if_then_else(i < count - 1, last, zero) if odd else last)

    pairs = te.compute((count,), paired, "pairs")
    function = te.create_prim_func([given, pairs]).with_attr("global_symbol", "main")
    schedule = Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock("pairs", "main")
    if not staged:
        schedule.compute_inline(schedule.get_sblock("halves", "main"))
    if lanes > 1:
        schedule.vectorize(schedule.split(schedule.get_loops(block)[0], [None, lanes])[1])
    return schedule.mod


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("staged", [False, True])
def test_numbers_that_become_bfloat16_in_a_kernel_are_rounded(cpu: str, lanes: int, staged: bool) -> None:
    """As ml_dtypes rounds: ties to even, from the largest numbers to infinity, NaN and denormal numbers as they are."""
    use_kernel_passes()
    upper = np.array(
        [0, 1, 2, 0x7E, 0x7F, 0x80, 0x3F7F, 0x3F80, 0x3F81, 0x7F7E, 0x7F7F, 0x7F80, 0x7FBF, 0x7FC0, 0x7FFF]
    )
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    positive = (upper[:, None] << 16 | lower).ravel()
    bits = np.concatenate([positive, positive | 1 << 31]).astype(np.uint32)
    numbers = np.resize(bits, (-(-len(bits) // 32) * 32,)).view(np.float32).reshape(-1, 2)
    target = target_of(cpu)
    built = tvm.tirx.build(pairs_of("float32", len(numbers), lanes, staged), target=parse_target(target))
    result = tvm.runtime.tensor(np.zeros(len(numbers), np.int32))
    tvm.runtime.Executable(built).jit()["main"](tvm.runtime.tensor(numbers), result)
    got = result.numpy().view(BFLOAT16).reshape(-1, 2)
    with np.errstate(invalid="ignore", over="ignore"):
        expected, nan = numbers.astype(BFLOAT16), np.isnan(numbers)
        np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


@pytest.mark.parametrize(("lanes", "odd"), [(1, False), (16, False), (1, True)])
def test_numbers_that_are_read_as_bfloat16_are_not_rounded_again(lanes: int, odd: bool) -> None:
    use_kernel_passes()
    target = parse_target(resolve_target({"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu"}))
    rounded, read = (
        tvm.tirx.build(pairs_of(dtype, 64, lanes, False, odd), target=target).inspect_source("ll")
        for dtype in ("float32", "bfloat16")
    )
    assert "32767" in rounded
    assert "32767" not in read


@pytest.mark.parametrize(
    ("cpu", "fast"), [("znver4", True), ("cooperlake", True), ("sapphirerapids", True), ("icelake-server", False)]
)
def test_a_cpu_with_the_instruction_is_known(cpu: str, fast: bool) -> None:
    target = resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu"})
    assert has_fast_dot2(parse_target(target)) is fast


@pytest.mark.parametrize(
    ("cpu", "fast"), [("neoverse-v1", True), ("neoverse-n2", True), ("cortex-a78ae", False), ("cortex-a72", False)]
)
def test_an_arm_cpu_with_the_instruction_uses_it(cpu: str, fast: bool) -> None:
    """That its sums are right is shown on an emulated board: ``make test-arm64``."""
    use_kernel_passes()
    target = parse_target(resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "aarch64-linux-gnu"}, 1))
    assert has_fast_dot2(target) is fast
    text = tvm.tirx.build(scheduled(16, 8, 8), target=target).inspect_source("s")
    assert ("bfdot" in text) is fast


def test_a_gpu_has_none() -> None:
    assert not has_fast_dot2(parse_target(resolve_target("nvidia/jetson-orin-nano")))
