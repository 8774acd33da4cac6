"""Kernels with a sum, computed rightly in several orders of its terms, and wrongly in the ways of broken schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, topi

Term = Callable[..., Any]
ROWS, COLUMNS = 12, 16

ORDERS = ("reversed", "split", "interleaved")
MISTAKES = (
    "last missing",
    "last twice",
    "inner missing",
    "row shifted",
    "column shifted",
    "term shifted",
    "row doubled",
)


def _sum(shape: tuple[int, ...], length: int, term: Term, how: str, dtype: str) -> te.Tensor:
    """The sum of ``term(*at, r)`` over ``length`` values of ``r``, in the order or with the mistake ``how``."""

    def reduced(extent: int, of: Callable[..., Any]) -> te.Tensor:
        axis = te.reduce_axis((0, extent), "r")
        return te.compute(shape, lambda *at: te.sum(of(*at, axis), axis=axis), name="sum")

    if how in ("split", "interleaved"):
        parts = 8
        size = length // parts
        axis, outer = te.reduce_axis((0, size), "r"), te.reduce_axis((0, parts), "p")
        place = (lambda r, p: p * size + r) if how == "split" else (lambda r, p: r * parts + p)
        partial = te.compute(
            (*shape, parts), lambda *at: te.sum(term(*at[:-1], place(axis, at[-1])), axis=axis), name="part"
        )
        return te.compute(shape, lambda *at: te.sum(partial(*at, outer), axis=outer), name="sum")
    if how == "reversed":
        return reduced(length, lambda *at: term(*at[:-1], length - 1 - at[-1]))
    if how == "last missing":
        return reduced(length - 1, term)
    if how == "inner missing":
        return reduced(
            length - 1, lambda *at: term(*at[:-1], te.if_then_else(at[-1] < length // 2, at[-1], at[-1] + 1))
        )
    if how == "last twice":
        return reduced(length + 1, lambda *at: term(*at[:-1], te.min(at[-1], length - 1)))
    if how == "term shifted":
        return reduced(length, lambda *at: term(*at[:-1], te.max(at[-1] - 1, 0)))
    if how in ("row shifted", "column shifted"):
        axis = 0 if how == "row shifted" else len(shape) - 1
        return reduced(length, lambda *at: term(*[te.max(i - 1, 0) if p == axis else i for p, i in enumerate(at)]))
    found = reduced(length, term)
    if how == "row doubled":
        last = shape[0] - 1
        two, one = tvm.tirx.const(2, dtype), tvm.tirx.const(1, dtype)
        return te.compute(shape, lambda *at: found(*at) * te.if_then_else(at[0] == last, two, one), name="scaled")
    assert how == "right", how
    return found


def product(length: int, dtype: str, sums: str, epilogue: str, how: str) -> list[te.Tensor]:
    """``epilogue(a b + bias)``; inputs and result have the type ``dtype``, its sums ``sums``."""
    a = te.placeholder((ROWS, length), dtype, name="a")
    b = te.placeholder((length, COLUMNS), dtype, name="b")
    bias = te.placeholder((COLUMNS,), sums, name="bias")
    c = _sum((ROWS, COLUMNS), length, lambda i, j, r: a[i, r].astype(sums) * b[r, j].astype(sums), how, sums)
    out = topi.cast(topi.add(c, bias), dtype)
    rules: dict[str, Callable[[te.Tensor], te.Tensor]] = {
        "none": lambda x: x,
        "relu": topi.nn.relu,
        "gelu": lambda x: topi.multiply(x, topi.sigmoid(topi.multiply(x, tvm.tirx.const(1.702, dtype)))),
        "tanh": topi.tanh,
    }
    return [a, b, bias, rules[epilogue](out)]


def softmax(length: int, dtype: str, sums: str, how: str) -> list[te.Tensor]:
    data = te.placeholder((ROWS, length), dtype, name="data")
    wide = topi.cast(data, sums)
    far = topi.max(wide, axis=1)
    grown = te.compute((ROWS, length), lambda i, j: te.exp(wide[i, j] - far[i]), name="grown")
    total = _sum((ROWS,), length, lambda i, r: grown[i, r], how, sums)
    return [data, te.compute((ROWS, length), lambda i, j: (grown[i, j] / total[i]).astype(dtype), name="out")]


def variance(length: int, dtype: str, sums: str, how: str) -> list[te.Tensor]:
    data = te.placeholder((ROWS, length), dtype, name="data")
    wide = topi.cast(data, sums)
    count = tvm.tirx.const(float(length), sums)
    whole = topi.sum(wide, axis=1)
    mean = te.compute((ROWS,), lambda i: whole[i] / count, name="mean")
    total = _sum((ROWS,), length, lambda i, r: (wide[i, r] - mean[i]) * (wide[i, r] - mean[i]), how, sums)
    return [data, te.compute((ROWS,), lambda i: (total[i] / count).astype(dtype), name="out")]


def mean(length: int, dtype: str, sums: str, how: str) -> list[te.Tensor]:
    data = te.placeholder((ROWS, length), dtype, name="data")
    total = _sum((ROWS,), length, lambda i, r: data[i, r].astype(sums), how, sums)
    count = tvm.tirx.const(1.0 / length, sums)
    return [data, te.compute((ROWS,), lambda i: (total[i] * count).astype(dtype), name="out")]
