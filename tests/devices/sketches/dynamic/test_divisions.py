"""Indices without divisions by a dynamic extent."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from devices.sketches.dynamic.divisions import without_divisions

N, M, ROW, HEAD, OTHER, COLUMN = (tirx.Var(name, "int64") for name in ("n", "m", "row", "head", "other", "column"))


def simplified(index: Any) -> Any:
    analyzer = Analyzer()
    for variable, extent in ((ROW, N), (HEAD, tirx.const(4, "int64")), (COLUMN, M + N)):
        analyzer.bind(variable, tvm.ir.Range(tirx.const(0, "int64"), extent))
    return without_divisions(index, analyzer)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((HEAD * N + ROW) % N, ROW),
        ((HEAD * N + ROW) // N, HEAD),
        ((ROW + N * HEAD) % N % N, ROW),
        ((HEAD * N + ROW) // N * 8 + ROW % N, HEAD * 8 + ROW),
        ((HEAD * N + OTHER) % N, (HEAD * N + OTHER) % N),  # of unknown size
        ((HEAD * N + ROW + 1) % N, (HEAD * N + ROW + 1) % N),  # may be n
        ((HEAD + ROW) // 2, (HEAD + ROW) // 2),
        ((HEAD * (N + 1) + ROW) % (N + 1), ROW),
        (((OTHER * 4 + HEAD) * (N + 1) + ROW + 1) // (N + 1), OTHER * 4 + HEAD),
        ((HEAD * N + HEAD + ROW) // (N + 1), HEAD),  # of a product that was multiplied out
        ((HEAD * (M + N) + COLUMN) // (M + N) * 8 + (COLUMN + (M + N) * HEAD) % (M + N), HEAD * 8 + COLUMN),
        ((HEAD * (N + 1) + ROW + 2) % (N + 1), (HEAD * (N + 1) + ROW + 2) % (N + 1)),  # may be n + 1
        ((HEAD * N + COLUMN) % (M * 2), (HEAD * N + COLUMN) % (M * 2)),  # no variable is a term of it
    ],
    ids=str,
)
def test_divisions_that_leave_nothing_go(index: Any, expected: Any) -> None:
    assert structural_equal(Analyzer().simplify(simplified(index) - expected), tirx.const(0, "int64"))


def test_a_divisor_that_is_an_element_stays() -> None:
    divisors = tirx.decl_buffer((N,), "int64", "divisors")
    index = OTHER % divisors[ROW]
    assert structural_equal(simplified(index), index)
