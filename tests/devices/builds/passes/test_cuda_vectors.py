"""Vector loops of CUDA kernels, of all widths that MetaSchedule takes: their source compiles, and copies what it must.

TVM alone fails at most of these, for the whole kernel.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16)
import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from devices.builds.passes import kernel_passes
from devices.builds.passes.cuda_vectors import narrow_cuda_vectors
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.cuda.compiler import require_compiler
from devices.targets import parse_target, resolve_target
from tests.helpers.cuda_on_cpu import EmulationError, extents, run_on_cpu
from tests.helpers.gpu_target import H200

THREADS = 32
WIDTHS = (2, 3, 4, 6, 8, 16)
STEPS = {"the same element": 0, "neighbours": 1, "a transposed matrix": 32}
SIGNED_BYTES, HALVES, FLOATS = ("int8", "int8"), ("float16", "float16"), ("float32", "float32")
TYPES = [
    SIGNED_BYTES,
    HALVES,
    ("uint8", "float32"),
    ("float32", "int8"),
    ("bfloat16", "bfloat16"),
    ("float32", "float16"),
]


def staged(dtypes: tuple[str, str], lanes: int, step: int) -> Any:
    """Each thread copies ``lanes`` elements, ``step`` apart, into shared memory; others read them."""
    size = THREADS * lanes
    of_threads = lanes * max(step, 1)

    @T.prim_func(s_tir=True)
    def copy(a: T.Buffer((THREADS * of_threads,), dtypes[0]), b: T.Buffer((size,), dtypes[1])) -> None:  # type: ignore[valid-type]
        shared = T.sblock_alloc_buffer((size,), dtypes[1], scope="shared")
        for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
            for lane in T.vectorized(lanes):
                with T.sblock("load"):
                    t, v = T.axis.remap("SS", [thread, lane])
                    shared[t * lanes + v] = T.Cast(dtypes[1], a[t * of_threads + v * step])
            for lane in T.serial(lanes):
                with T.sblock("store"):
                    t, v = T.axis.remap("SS", [thread, lane])
                    b[t * lanes + v] = shared[(THREADS - 1 - t) * lanes + v]

    return copy


@T.prim_func(s_tir=True)
def ends_of_rows(a: T.Buffer((6, 16), "float32"), b: T.Buffer((6, 16), "float32")) -> None:  # type: ignore[valid-type]
    """Vectors of three elements of rows of sixteen, each with space after it: some hold the end of a row."""
    shared = T.sblock_alloc_buffer((6, 20), "float32", scope="shared")
    for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
        for lane in T.serial(4):
            with T.sblock("load"):
                T.where(thread * 4 + lane < 120)
                i = T.axis.spatial(6, (thread * 4 + lane) // 20)
                j = T.axis.spatial(20, (thread * 4 + lane) % 20)
                shared[i, j] = a[i, j % 16]
        for lane in T.vectorized(3):
            with T.sblock("store"):
                i = T.axis.spatial(6, (thread * 3 + lane) // 16)
                j = T.axis.spatial(16, (thread * 3 + lane) % 16)
                b[i, j] = shared[i, j]


def source_of(function: Any) -> str:
    use_kernel_passes()
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return str(tvm.tirx.build(module, target=parse_target(H200.target)).imports[0].inspect_source())


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("dtypes", TYPES, ids="-".join)
def test_copies_of_every_width_are_right(dtypes: tuple[str, str], step: int, tmp_path: Path) -> None:
    for lanes in WIDTHS:
        function = staged(dtypes, lanes, step)
        a = (np.arange(THREADS * lanes * max(step, 1)) % 63).astype(dtypes[0])
        arrays = {"a": a, "b": np.zeros(THREADS * lanes, dtypes[1])}
        run_on_cpu(source_of(function), extents(function.body), arrays, tmp_path)
        taken = a.reshape(THREADS, -1)[:, : lanes * step : step] if step else a.reshape(THREADS, -1)[:, :1]
        wanted = np.broadcast_to(taken, (THREADS, lanes))[::-1].astype(dtypes[1])
        np.testing.assert_array_equal(arrays["b"].reshape(THREADS, lanes), wanted)


@pytest.mark.parametrize(("dtypes", "lanes"), [(SIGNED_BYTES, 8), (SIGNED_BYTES, 16), (HALVES, 8)])
def test_a_compiler_for_gpus_takes_copies_from_a_transposed_matrix(dtypes: tuple[str, str], lanes: int) -> None:
    assert require_compiler().compile(source_of(staged(dtypes, lanes, 32)), "sm_90")


def test_elements_across_the_ends_of_rows_are_copied_one_by_one(tmp_path: Path) -> None:
    a = np.arange(96, dtype=np.float32).reshape(6, 16)
    arrays = {"a": a, "b": np.zeros_like(a)}
    source = source_of(ends_of_rows)
    assert "float3" not in source
    run_on_cpu(source, extents(ends_of_rows.body), arrays, tmp_path)
    np.testing.assert_array_equal(arrays["b"], a)


@pytest.mark.parametrize(
    ("dtypes", "lanes", "vector"),
    [(HALVES, 8, "uint4"), (SIGNED_BYTES, 16, "int4"), (FLOATS, 4, "float4"), (FLOATS, 3, "float3")],
)
def test_neighbours_are_loaded_by_one_instruction(dtypes: tuple[str, str], lanes: int, vector: str) -> None:
    assert re.search(rf"= \*\({vector}\*\)\(a_ptr", source_of(staged(dtypes, lanes, 1)))


def test_elements_apart_are_stored_four_at_a_time() -> None:
    assert re.search(r"\*\(half4\*\)\(shared", source_of(staged(HALVES, 8, 32)))


@pytest.mark.parametrize("dtypes", [SIGNED_BYTES, HALVES])
def test_tvm_alone_makes_wrong_vectors(
    dtypes: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, TVM has been mended, and the pass can go."""
    monkeypatch.setattr(kernel_passes, "narrow_cuda_vectors", tvm.tirx.transform.StmtSimplify())
    function = staged(dtypes, 8, 32)
    arrays = {"a": np.zeros(THREADS * 8 * 32, dtypes[0]), "b": np.zeros(THREADS * 8, dtypes[1])}
    with pytest.raises(EmulationError, match=r"cannot be compiled"):
        run_on_cpu(source_of(function), extents(function.body), arrays, tmp_path)


def test_vectors_of_cpus_stay_as_they_are() -> None:
    target = tvm.target.Target(resolve_target("native", 1))
    function = staged(HALVES, 16, 32).with_attr("target", target)
    assert narrow_cuda_vectors(tvm.IRModule({"main": function}))["main"].body.same_as(function.body)
