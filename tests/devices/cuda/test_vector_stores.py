"""Kernels that write a vector anew and read it again in the same scope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from devices.builds.passes import kernel_passes
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.targets import parse_target
from tests.helpers.cuda_on_cpu import extents, run_on_cpu
from tests.helpers.gpu_target import H200


@T.prim_func(s_tir=True)
def staged(a: T.Buffer((2, 32, 4), "float32"), b: T.Buffer((2, 32, 4), "float16")) -> None:  # type: ignore[valid-type]
    shared = T.sblock_alloc_buffer((32, 4), "float32", scope="shared")
    for thread in T.thread_binding(32, thread="threadIdx.x"):
        for part in T.unroll(2):
            for lane in T.vectorized(4):
                with T.sblock("copy"):
                    i, p, v = T.axis.remap("SSS", [thread, part, lane])
                    shared[i, v] = a[p, i, v]
            for lane in T.vectorized(4):
                with T.sblock("cast"):
                    i, p, v = T.axis.remap("SSS", [thread, part, lane])
                    b[p, i, v] = T.Cast("float16", shared[i, v])


def built(tmp_path: Path) -> Any:
    """Its result, and what it should be."""
    use_kernel_passes()
    module = tvm.IRModule({"main": staged.with_attr("global_symbol", "main")})
    source = tvm.tirx.build(module, target=parse_target(H200.target)).imports[0].inspect_source()
    a = np.arange(256, dtype=np.float32).reshape(2, 32, 4)
    arrays = {"a": a, "b": np.zeros(a.shape, np.float16)}
    run_on_cpu(source, extents(module["main"].body), arrays, tmp_path)
    return arrays["b"], a.astype(np.float16)


def test_what_is_read_again_is_what_was_written_last(tmp_path: Path) -> None:
    np.testing.assert_array_equal(*built(tmp_path))


def test_tvm_alone_takes_the_vector_that_it_read_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, TVM has been mended, and the pass can go."""
    monkeypatch.setattr(kernel_passes, "separate_vector_stores", tvm.tirx.transform.StmtSimplify())
    b, wanted = built(tmp_path)
    np.testing.assert_array_equal(b[0], wanted[0])
    np.testing.assert_array_equal(b[1], wanted[0])
