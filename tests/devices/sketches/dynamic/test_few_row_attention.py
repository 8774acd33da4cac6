"""Attention of a few rows over a dynamic number of columns: what its kernel computes, against numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from tvm import te, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import SeqStmt

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.sketches.dynamic.attention import dynamic_attention
from devices.sketches.dynamic.few_row_attention import FewRows, few_rows_fit
from devices.sketches.dynamic.many_row_attention import AttentionTiles
from devices.sketches.rules.attention import pattern
from devices.targets import parse_target, resolve_target
from tests.helpers.properties import examples

CPU = resolve_target("native", 2)
SCALE = 0.375
NO_MASK, ADDED, CHOSEN = "no mask", "added", "chosen"
Floats = npt.NDArray[np.float32]
Program = list[Any]


@dataclass(frozen=True)
class Form:
    """An attention. Its columns, and rows of which there is no fixed number, are arguments of its kernel."""

    heads: int = 2
    shared: int = 1
    """Heads with the same keys and values."""
    rows: int | None = 1
    terms: int = 16
    width: int = 16
    mask: str = NO_MASK
    guarded: bool = False
    threads: int = 2

    def program(self) -> tirx.PrimFunc:
        """Return the program, with the variables of its extents as parameters."""
        past = tirx.Var("past", "int64")
        rows: Any = tirx.Var("rows", "int64") if self.rows is None else tirx.const(self.rows, "int64")
        columns, outer = past + rows, (2, self.heads)
        query = te.placeholder((*outer, rows, self.terms), name="query")
        key, value = (
            te.placeholder((2, self.heads // self.shared, columns, size), name=name)
            for name, size in (("key", self.terms), ("value", self.width))
        )
        mask = te.placeholder((2, 1, rows, columns), "bool" if self.mask == CHOSEN else "float32", "mask")
        term, column, other, last, place = (
            te.reduce_axis((0, extent), name)
            for name, extent in (
                *(("term", self.terms), ("column", columns), ("other", columns), ("last", columns)),
                ("place", columns),
            )
        )
        scaled = te.compute(
            (*outer, self.terms, columns),
            lambda n, h, k, c: key[n, h // self.shared, c, k] * tirx.const(SCALE, "float32"),
        )
        scores = te.compute(
            (*outer, rows, columns), lambda n, h, r, c: te.sum(query[n, h, r, term] * scaled[n, h, term, c], term)
        )
        products, lowest = scores, tirx.const(-np.inf, "float32")
        if self.mask == ADDED:
            scores = te.compute(products.shape, lambda n, h, r, c: products[n, h, r, c] + mask[n, 0, r, c])
        elif self.mask == CHOSEN:
            scores = te.compute(
                products.shape, lambda n, h, r, c: tirx.Select(mask[n, 0, r, c], products[n, h, r, c], lowest)
            )
        each = (*outer, rows)
        largest = te.compute(each, lambda *at: te.max(scores[(*at, column)], column))
        powers = te.compute(scores.shape, lambda *at: tirx.exp(scores[at] - largest[at[:-1]]))
        totals = te.compute(each, lambda *at: te.sum(powers[(*at, other)], other))
        weights = te.compute(scores.shape, lambda *at: powers[at] * (tirx.const(1.0, "float32") / totals[at[:-1]]))
        plain = weights
        if self.guarded:
            lowest = tirx.min_value("float32")
            below = te.compute(scores.shape, lambda *at: scores[at] < lowest, name="below")
            above = te.compute(scores.shape, lambda *at: tirx.Not(below[at]), name="above")
            number = te.compute(scores.shape, lambda *at: tirx.Cast("int8", above[at]), name="number")
            some = te.compute(each, lambda *at: te.max(number[(*at, last)], last), name="some")
            weights = te.compute(
                scores.shape,
                lambda *at: tirx.Select(
                    tirx.const(0, "int64") < tirx.Cast("int64", tirx.Not(tirx.Cast("bool", some[at[:-1]]))),
                    tirx.const(0.0, "float32"),
                    plain[at],
                ),
            )
        repeated = te.compute((*outer, columns, self.width), lambda n, h, c, d: value[n, h // self.shared, c, d])
        result = te.compute(
            (*outer, rows, self.width),
            lambda n, h, r, d: te.sum(weights[n, h, r, place] * repeated[n, h, place, d], place),
        )
        extents = [past] if self.rows is not None else [past, rows]
        tensors = [query, key, value, *([] if self.mask == NO_MASK else [mask]), result]
        function = te.create_prim_func([*extents, *tensors], index_dtype_override="int64")
        return _with_guard_last(function) if self.guarded else function

    def arrays(self, rows: int, columns: int, seed: int = 0) -> list[npt.NDArray[Any]]:
        rng = np.random.default_rng(seed)
        kept = self.heads // self.shared
        drawn = [
            rng.standard_normal(shape).astype(np.float32)
            for shape in (
                (2, self.heads, rows, self.terms),
                (2, kept, columns, self.terms),
                (2, kept, columns, self.width),
            )
        ]
        if self.mask == NO_MASK:
            return drawn
        mask = rng.random((2, 1, rows, columns)) < 0.7
        mask[..., 0] = True
        added = np.where(mask, rng.standard_normal(mask.shape), -np.inf).astype(np.float32)
        return [*drawn, mask if self.mask == CHOSEN else added]

    def expected(self, query: Any, key: Any, value: Any, mask: Any = None) -> npt.NDArray[Any]:
        """Return the result in double precision."""
        query, key, value = (each.astype(np.float64) for each in (query, key, value))
        key, value = (np.repeat(each, self.shared, 1) for each in (key, value))
        scores = SCALE * (query @ key.transpose(0, 1, 3, 2))
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        if self.guarded:
            weights[(scores == -np.inf).all(-1)] = 0
        return np.asarray(weights @ value)


def _with_guard_last(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a program whose guard comes behind the totals of its softmax, as in exported networks."""
    realized = function.body
    nests = list(realized.block.body.seq)
    names = ("below", "above", "number", "some")
    guard = [each for each in nests if any(f'sblock("{name}")' in str(each) for name in names)]
    others = [each for each in nests if each not in guard]
    body = SeqStmt([*others[:-3], *guard, *others[-3:]])
    root = SBlock([], [], [], "root", body, None, realized.block.alloc_buffers)
    return tirx.PrimFunc(function.params, SBlockRealize([], True, root), function.ret_type, function.attrs)


def attention_of(form: Form) -> pattern.Attention:
    found = pattern.attention_of(tvm.IRModule({"main": form.program()}))
    assert found is not None
    return found


@cache
def built(form: Form) -> Any:
    use_kernel_passes()
    scheduled = dynamic_attention(form.program(), AttentionTiles(), form.threads)
    assert scheduled is not None
    module = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    return tvm.tirx.build(module, target=parse_target(CPU))["main"]


def result(form: Form, rows: int, arrays: list[npt.NDArray[Any]]) -> Floats:
    columns = arrays[1].shape[2]
    out = tvm.runtime.tensor(np.full((2, form.heads, rows, form.width), np.nan, np.float32))
    built(form)(columns - rows, *([] if form.rows else [rows]), *map(tvm.runtime.tensor, arrays), out)
    return np.asarray(out.numpy())


def is_right(form: Form, rows: int, columns: int) -> None:
    arrays = form.arrays(rows, columns)
    expected = form.expected(*arrays)
    assert np.isfinite(expected).all()
    assert np.abs(result(form, rows, arrays) - expected).max() < 2e-6 * max(1, np.abs(expected).max()), columns


SIZES = st.sampled_from([4, 8, 16, 20, 24, 32, 40, 48, 64, 80])
FORMS = st.builds(
    lambda kept, shared, **others: Form(kept * shared, shared, **others),
    kept=st.integers(1, 3),
    shared=st.integers(1, 4),
    rows=st.sampled_from([1, 2, 3]),
    terms=SIZES,
    width=SIZES,
    mask=st.sampled_from([NO_MASK, ADDED, CHOSEN]),
    guarded=st.booleans(),
    threads=st.sampled_from([1, 2, 3]),
)


@given(form=FORMS)
@example(form=Form(8, 4, terms=64, width=64))
@example(form=Form(2, 1, 3, terms=8, width=4, mask=CHOSEN, guarded=True))
@examples(6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_number_of_columns_is_right(form: Form) -> None:
    for columns in (*range(form.rows or 1, 19), 31, 32, 33, 47, 48, 49, 64, 70, 200):
        is_right(form, form.rows or 1, columns)


def test_rows_and_columns_may_be_dynamic_both() -> None:
    form = Form(4, 2, rows=None, mask=ADDED)
    for rows in (1, 2, 3, 4, 5, 9):
        for columns in (rows, rows + 1, rows + 16, rows + 40):
            is_right(form, rows, columns)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_row_that_is_masked_as_a_whole_has_the_weights_of_the_program(is_guarded: bool) -> None:
    form = Form(rows=2, mask=CHOSEN, guarded=is_guarded)
    arrays = form.arrays(2, 20)
    arrays[3][:, :, 1] = False
    got = result(form, 2, arrays)
    assert np.abs(got[:, :, 0] - form.expected(*arrays)[:, :, 0]).max() < 1e-5
    assert (got[:, :, 1] == 0).all() if is_guarded else np.isnan(got[:, :, 1]).all()


def test_an_infinite_value_of_the_last_column_is_summed_up_once() -> None:
    """Columns behind the last one stand for it, without a weight: infinity times zero would be NaN."""
    form = Form()
    arrays = form.arrays(1, 21)
    arrays[2][:, :, -1, 3] = np.inf
    got = result(form, 1, arrays)
    assert np.isinf(got[..., 3]).all()
    assert np.isfinite(np.delete(got, 3, -1)).all()


def test_heads_that_share_keys_are_together_unless_threads_have_no_work() -> None:
    found = {
        (heads, shared, threads): FewRows(attention_of(Form(heads, shared, threads=threads)), threads).heads_together
        for heads, shared, threads in ((16, 4, 1), (16, 4, 2), (12, 4, 2), (2, 2, 4), (4, 1, 2))
    }
    assert found == {(16, 4, 1): 4, (16, 4, 2): 4, (12, 4, 2): 4, (2, 2, 4): 1, (4, 1, 2): 1}


def test_extents_that_fit() -> None:
    assert few_rows_fit(3, 20, 36)
    assert few_rows_fit(None, 64, 64)
    assert not few_rows_fit(4, 64, 64)
    assert not few_rows_fit(1, 3, 64)
    assert not few_rows_fit(1, 64, 6)
    assert not few_rows_fit(1, None, 64)
