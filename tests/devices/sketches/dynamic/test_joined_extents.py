"""Kernels over the product of two dynamic extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.tirx import PrimFunc, Var

from devices.sketches.dynamic.joined_extents import factors, join_extents
from devices.sketches.dynamic.rows import Rows, dynamic_extents, rows_of

B, T = Var("b", "int64"), Var("t", "int64")


def kernel(*shape: Any, of: Any = topi.exp) -> PrimFunc:
    """A kernel as Relax calls it: extents that no axis tells are parameters."""
    x = te.placeholder(shape, name="x")
    made = te.create_prim_func([x, of(x)])
    return PrimFunc([made.params[0], B, T, made.params[1]], made.body, made.ret_type, made.attrs)


def joined(function: PrimFunc) -> PrimFunc:
    return join_extents(tvm.IRModule({"main": function}))["main"]


def test_rows_of_two_extents_are_those_of_their_product() -> None:
    function = joined(kernel(B * T, 8))
    (extent,) = dynamic_extents(function)
    assert factors(str(extent.name)) == ["b", "t"]
    assert rows_of(function, extent) == {0: Rows(0, 1), 1: Rows(0, 1)}
    assert len(function.params) == 4, "its callers stay as they are"
    library = tvm.tirx.build(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), target="llvm")
    x = np.random.default_rng(0).standard_normal((6, 8)).astype("float32")
    result = tvm.runtime.tensor(np.zeros_like(x))
    library["main"](tvm.runtime.tensor(x), 2, 3, result)
    np.testing.assert_allclose(result.numpy(), np.exp(x), rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        kernel(B, T, 8),
        kernel(B * T * 4, 8),  # no axis tells what the product is
        kernel(B * T + B, 8),
        kernel(B * T, B),
        kernel(B * T, 8, of=lambda x: te.compute(x.shape, lambda i, j: x[i, j] * (i % T).astype("float32"))),
    ],
    ids=["apart", "a multiple", "a sum", "one alone", "the place in a sample"],
)
def test_other_kernels_stay_as_they_are(function: PrimFunc) -> None:
    assert joined(function).same_as(function)
    assert len(dynamic_extents(joined(function))) == 2
