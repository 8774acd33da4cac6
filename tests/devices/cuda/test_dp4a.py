"""Products of bytes in CUDA kernels: the source computes them exactly, and a compiler takes it.

No GPU runs here. A host compiler runs the source, thread after thread, with the instruction written in C.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule

from devices.builds.kernel_passes import use_kernel_passes
from devices.cuda.compiler import require_compiler
from devices.sketches.byte_operators import DOT4, INTEGER_DOTS, SIGNED_DOT4, IntegerDot
from devices.targets import parse_target, resolve_target
from tests.helpers.integer_dots import ROWS, ends, operands, scheduled

GROUPS, COLUMNS = 9, 64
# What a GPU has and C has not. CUDA defines the instruction as the sum of a number and four products of signed bytes.
IN_C = """
typedef struct { int x, y, z, w; } int4;
static int4 make_int4(int x, int y, int z, int w) { int4 v = {x, y, z, w}; return v; }
static struct { int x, y, z; } threadIdx, blockIdx;
static int __dp4a(int a, int b, int c) {
  for (int at = 0; at < 32; at += 8) c += (signed char)(a >> at) * (signed char)(b >> at);
  return c;
}
#define __global__
#define __launch_bounds__(n)
"""
BY_NAME = pytest.mark.parametrize("dot", INTEGER_DOTS, ids=lambda dot: dot.name.rsplit(".", 1)[-1])


def source_of(dot: IntegerDot, lanes: int, arch: str = "sm_87") -> str:
    """Products of rows with columns: a block for each row, a thread for each vector of columns."""
    use_kernel_passes()
    schedule = Schedule(scheduled(dot, GROUPS, COLUMNS, lanes))
    row, thread, *_ = schedule.get_loops(schedule.get_sblock("c", "main"))
    schedule.bind(row, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    target = parse_target(resolve_target({"kind": "cuda", "arch": arch}))
    return str(tvm.tirx.build(schedule.mod, target=target).imports[0].inspect_source())


@BY_NAME
@pytest.mark.parametrize("lanes", [1, 4])
def test_the_source_computes_exact_products(tmp_path: Path, dot: IntegerDot, lanes: int) -> None:
    kernel = source_of(dot, lanes).split('extern "C" ')[-1]
    threads = COLUMNS // lanes
    loops = f"for (blockIdx.x = 0; blockIdx.x < {ROWS}; ++blockIdx.x)"
    loops += f" for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x)"
    (tmp_path / "kernel.c").write_text(
        f"{IN_C}{kernel}\nvoid run(int* a, int* b, int* c) {{ {loops} main_kernel(a, b, c); }}"
    )
    library = tmp_path / "kernel.so"
    subprocess.run(
        ["gcc", "-O1", "-fwrapv", "-shared", "-fPIC", "-o", library, tmp_path / "kernel.c"], check=True, timeout=60
    )
    a, b = ends(dot, GROUPS * dot.terms, COLUMNS)
    result = np.zeros((ROWS, COLUMNS), np.int32)
    arrays = (*operands(dot, a, b), result)
    ctypes.CDLL(str(library)).run(*(array.ctypes.data_as(ctypes.c_void_p) for array in arrays))
    np.testing.assert_array_equal(result, a @ b)


@pytest.mark.parametrize("lanes", [1, 4])
def test_four_products_of_signed_bytes_are_one_instruction(lanes: int) -> None:
    source = source_of(SIGNED_DOT4, lanes)
    assert source.count("__dp4a(") == lanes
    assert ">>" not in source.split('extern "C" ')[-1]


def test_a_gpu_without_the_instruction_multiplies_byte_by_byte() -> None:
    assert "__dp4a(" not in source_of(DOT4, 1, arch="sm_53")


def test_a_compiler_takes_the_source() -> None:
    code = require_compiler().compile(source_of(SIGNED_DOT4, 4), "sm_87")
    assert code.startswith(b"\x7fELF")
