"""Products of bytes are exact, by the instructions of every kind of processor."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm

from devices.builds.passes.byte_instructions import fast_integer_dot
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.instruction_sets import missing_here
from devices.networks.tasks.extraction import workload_hash
from devices.sketches.byte_operators import DOT4, INT16_DOT2, INTEGER_DOTS, SIGNED_DOT4, IntegerDot
from devices.targets import parse_target, resolve_target
from tests.helpers.integer_dots import ROWS, Numbers, ends, operands, scheduled

# A Zen 4 and an Alder Lake have an instruction for bytes, by vectors of 16 and of 8 lanes.
CPUS = ("znver4", "cascadelake", "skylake-avx512", "alderlake", "haswell", "x86-64")
BY_NAME = pytest.mark.parametrize("dot", INTEGER_DOTS, ids=lambda dot: dot.name.rsplit(".", 1)[-1])


def x86(cpu: str) -> str:
    return resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu", "num-cores": 1})


def arm(*attributes: str, cpu: str = "generic") -> str:
    mattr = {"mattr": list(attributes)} if attributes else {}
    return resolve_target({"kind": "llvm", "mcpu": cpu, "mtriple": "aarch64-linux-gnu", "num-cores": 1, **mattr})


def assembly(target: str, dot: IntegerDot, lanes: int = 64) -> str:
    use_kernel_passes()
    return str(tvm.tirx.build(scheduled(dot, 64, 64, lanes), target=parse_target(target)).inspect_source("asm"))


@cache
def built(cpu: str, dot: IntegerDot, groups: int, columns: int, lanes: int) -> Any:
    """The kernel :func:`scheduled` for a CPU, ready to be called."""
    use_kernel_passes()
    module = scheduled(dot, groups, columns, lanes)
    with tvm.target.Target(json.loads(x86(cpu))):
        return tvm.runtime.Executable(tvm.tirx.build(module, target=parse_target(x86(cpu)))).jit()["main"]


def products(cpu: str, dot: IntegerDot, a: Numbers, b: Numbers, lanes: int) -> Numbers:
    """Products of numbers ``(ROWS, k)`` with ``(k, n)``, by a kernel for a CPU."""
    missing = missing_here(x86(cpu))
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    left, right = operands(dot, a, b)
    result = tvm.runtime.tensor(np.zeros((ROWS, b.shape[1]), np.int32))
    built(cpu, dot, *right.shape, lanes)(tvm.runtime.tensor(left), tvm.runtime.tensor(right), result)
    return result.numpy()


@BY_NAME
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 10, 16, 20, 64])
def test_products_are_exact_at_the_ends_of_their_types(cpu: str, dot: IntegerDot, lanes: int) -> None:
    a, b = ends(dot, 32, 320)
    np.testing.assert_array_equal(products(cpu, dot, a, b, lanes), a @ b)


@BY_NAME
@pytest.mark.parametrize("cpu", ["haswell", "znver4"])
def test_one_product_of_every_pair_of_bytes(cpu: str, dot: IntegerDot) -> None:
    """Rows are the numbers on the left, columns those on the right: each in its own place."""
    b = np.zeros((dot.terms, dot.terms * 256), np.int64)
    for at in range(dot.terms):
        b[at, at * 256 : (at + 1) * 256] = np.arange(-128, 128)
    for first in range(dot.least, dot.least + 256, ROWS):
        a = np.repeat(np.arange(first, first + ROWS)[:, None], dot.terms, axis=1)
        np.testing.assert_array_equal(products(cpu, dot, a, b, 16), a @ b)


def test_kernels_of_different_operators_are_different_workloads() -> None:
    """So that no record of one is taken for the other."""
    assert len({workload_hash(scheduled(dot, 8, 16, 16)["main"]) for dot in INTEGER_DOTS}) == len(INTEGER_DOTS)


@pytest.mark.parametrize("cpu", ["znver4", "alderlake"])
def test_a_sum_is_an_operand_of_the_instruction(cpu: str) -> None:
    """The addition of a product to a sum is part of the instruction."""
    text = assembly(x86(cpu), DOT4)
    assert text.count("vpdpbusd") >= 4
    assert "vpaddd" not in text


def test_a_cpu_with_avx2_alone_multiplies_pairs() -> None:
    text = assembly(x86("haswell"), INT16_DOT2)
    assert text.count("vpmaddwd") >= max(8, text.count("vpaddd"))  # of 8 lanes each
    assert "vpmaddubsw" not in text  # it saturates


@pytest.mark.parametrize(
    ("target", "dot", "instruction", "corrected"),
    [
        (arm("+dotprod"), SIGNED_DOT4, "sdot", False),
        (arm(cpu="cortex-a78ae"), SIGNED_DOT4, "sdot", False),
        (arm("+dotprod", "+i8mm"), DOT4, "usdot", False),
        (arm(cpu="neoverse-n2"), DOT4, "usdot", False),
        # Mixed signs without an instruction for them: two products, and a subtraction.
        (arm("+dotprod"), DOT4, "udot", True),
    ],
)
def test_arm_computes_four_products_of_a_lane_at_once(
    target: str, dot: IntegerDot, instruction: str, corrected: bool
) -> None:
    text = assembly(target, dot)
    assert len(re.findall(rf"\t{instruction}\s", text)) >= 16
    assert bool(re.search(r"\tsub\s+v", text)) is corrected
    assert not re.search(r"\tmla?\s+v", text)


@pytest.mark.parametrize("dot", [DOT4, SIGNED_DOT4])
def test_arm_without_the_instructions_multiplies_number_by_number(dot: IntegerDot) -> None:
    text = assembly(arm(cpu="cortex-a72"), dot)
    assert "dot" not in re.findall(r"\t(\w+)\s", text)
    assert re.search(r"\tmla?\s+v", text)


@pytest.mark.parametrize(
    ("target", "dot"),
    [
        *((x86(cpu), DOT4) for cpu in ("znver4", "cascadelake", "alderlake")),
        *((x86(cpu), INT16_DOT2) for cpu in ("haswell", "znver3")),
        (x86("x86-64"), None),
        *((arm(cpu=cpu), SIGNED_DOT4) for cpu in ("cortex-a55", "cortex-a76", "neoverse-n1", "apple-m1")),
        *((arm(cpu=cpu), DOT4) for cpu in ("neoverse-v1", "apple-m2")),
        *((arm(cpu=cpu), None) for cpu in ("cortex-a53", "cortex-a72")),
        (resolve_target("nvidia/jetson-orin-nano"), SIGNED_DOT4),
        (resolve_target("nvidia/jetson-nano"), None),
    ],
)
def test_the_fast_operator_of_a_target_is_known(target: str, dot: IntegerDot | None) -> None:
    assert fast_integer_dot(parse_target(target)) == dot
