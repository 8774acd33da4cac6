"""Buffers of growing caches, without a network: a run is played by numpy."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from devices.builds.tensors import array_of
from devices.networks.caches.cache_buffers import Array, CacheBuffers, GrowingCache, filled, without_spare_rows
from devices.networks.torch import arrays

MOST = 12
KEYS = GrowingCache(input=0, output=1, axis=1, most=MOST, added="tokens")
VALUES = GrowingCache(input=1, output=0, axis=1, most=MOST, added="tokens")


def rows(count: int, first: float) -> Array:
    """(2, count, 3) numbers, each row with its own."""
    numbers = first + np.arange(2 * count * 3, dtype="float32")
    return numbers.reshape(2, count, 3)


def run(buffers: CacheBuffers, inputs: Sequence[object], new: Sequence[Array]) -> dict[int, Array]:
    """Grow both caches by ``new`` as the kernels do, and return them by their outputs."""
    step = buffers.step(inputs, {"tokens": new[0].shape[1]})
    first_rows = array_of(step.arguments[-1])
    for at, cache in enumerate((KEYS, VALUES)):
        given_rows = np.asarray(inputs[cache.input])
        buffer = array_of(step.arguments[at])
        before, first = given_rows.shape[1], int(first_rows[at])
        assert first == 0 or step.kept[cache.input].shape == given_rows.shape
        buffer[:, first:before] = given_rows[:, first:]
        buffer[:, before : before + new[at].shape[1]] = new[at]
    return {cache.output: buffers.returned(step, cache.output, as_torch=False) for cache in (KEYS, VALUES)}


def first_rows(buffers: CacheBuffers, *inputs: object) -> list[int]:
    """The rows from which on a run on these inputs and one token more writes its buffers."""
    return [int(row) for row in array_of(buffers.step(inputs, {"tokens": 1}).arguments[-1])]


def test_rows_are_written_behind_those_of_before() -> None:
    buffers = CacheBuffers((KEYS, VALUES))
    keys, values = rows(3, 0), rows(3, 100)
    first = run(buffers, [keys, values], [rows(2, 200), rows(2, 300)])
    second = run(buffers, [first[1], first[0]], [rows(1, 400), rows(1, 500)])
    assert np.shares_memory(first[1], second[1])
    assert np.shares_memory(first[0], second[0])
    np.testing.assert_array_equal(second[1], np.concatenate([keys, rows(2, 200), rows(1, 400)], 1))
    np.testing.assert_array_equal(second[0], np.concatenate([values, rows(2, 300), rows(1, 500)], 1))


def test_only_an_own_cache_is_not_copied() -> None:
    buffers = CacheBuffers((KEYS, VALUES))
    keys, values = rows(3, 0), rows(3, 100)
    new = [rows(1, 200), rows(1, 300)]
    assert first_rows(buffers, keys, values) == [0, 0]
    grown = run(buffers, [keys, values], new)
    contiguous = np.ascontiguousarray(grown[1])
    assert first_rows(buffers, contiguous, grown[0]) == [0, 4]
    assert first_rows(buffers, grown[1], grown[0]) == [4, 0]  # the values have grown in place meanwhile
    other = CacheBuffers((KEYS, VALUES))
    assert first_rows(other, grown[1], grown[0]) == [0, 0]


def test_other_views_of_a_cache_are_known_by_their_memory() -> None:
    buffers = CacheBuffers((KEYS,))
    grown = run_alone(buffers, rows(5, 0), 1)
    same = grown[:]
    assert first_rows(buffers, grown[:, 1:]) == [0]
    assert first_rows(buffers, grown[:, :3]) == [0]
    assert first_rows(buffers, same) == [6]


def test_one_cache_in_two_places_is_written_once() -> None:
    buffers = CacheBuffers((KEYS, VALUES))
    grown = run(buffers, [rows(3, 0), rows(3, 100)], [rows(1, 200), rows(1, 300)])[1].copy()
    own = run(buffers, [grown, grown], [rows(1, 400), rows(1, 500)])[1]
    both = run(buffers, [own, own], [rows(1, 600), rows(1, 700)])
    np.testing.assert_array_equal(both[1], np.concatenate([own, rows(1, 600)], 1))
    np.testing.assert_array_equal(both[0], np.concatenate([own, rows(1, 700)], 1))


def run_alone(buffers: CacheBuffers, keys: object, tokens: int, as_torch: bool = False) -> Any:
    return buffers.returned(buffers.step([keys], {"tokens": tokens}), KEYS.output, as_torch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_grow_in_place(dtype: torch.dtype) -> None:
    buffers = CacheBuffers((KEYS,))
    kept = torch.arange(18.0).reshape(2, 3, 3).to(dtype)
    tensor = run_alone(buffers, kept, 2, as_torch=True)
    assert (tensor.shape, tensor.dtype) == ((2, 5, 3), dtype)
    after = buffers.step([tensor], {"tokens": 1})
    assert array_of(after.arguments[-1]).tolist() == [5]
    assert after.kept[0].shape == (2, 5, 3)
    assert after.arguments[0].data_ptr() == tensor.data_ptr()
    placed = buffers.placed(KEYS, arrays.array_of(kept), as_torch=True)
    assert torch.equal(placed, kept)
    assert first_rows(buffers, placed) == [3]


def test_memory_lives_as_long_as_a_cache() -> None:
    buffers = CacheBuffers((KEYS,))
    cache = rows(1, 0)
    for _ in range(5):
        cache = run_alone(buffers, cache, 1)
    assert (len(buffers), len(buffers._by_view)) == (1, 1)
    tensor = run_alone(buffers, cache, 1, as_torch=True)
    del cache
    gc.collect()
    assert (len(buffers), len(buffers._by_view)) == (1, 1)
    del tensor
    gc.collect()
    assert (len(buffers), len(buffers._by_view)) == (0, 0)


def test_the_arguments_of_a_run_that_is_timed() -> None:
    buffer, first_rows = filled((KEYS,), [rows(3, 7)])
    np.testing.assert_array_equal(buffer[:, :3], rows(3, 7))
    assert (buffer.shape, first_rows.tolist()) == ((2, MOST, 3), [3])
    (_, keys) = without_spare_rows((KEYS,), [rows(3, 7)], [np.zeros(1), buffer], {"tokens": 2})
    assert keys.shape == (2, 5, 3)
    assert filled((), [rows(3, 7)]) == []


@given(steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 3)), max_size=12))
def test_no_cache_changes_whatever_is_grown(steps: list[tuple[int, int, int]]) -> None:
    buffers = CacheBuffers((KEYS, VALUES))
    caches = [rows(1, 0), rows(1, 50), rows(2, 80)]
    expected = [each.copy() for each in caches]
    for number, (one, other, count) in enumerate(steps):
        chosen = [one % len(caches), other % len(caches)]
        if any(caches[at].shape[1] + count > MOST for at in chosen):
            continue
        new = [rows(count, 1000.0 * number), rows(count, 1000.0 * number + 500)]
        grown = run(buffers, [caches[at] for at in chosen], new)
        caches += [grown[1], grown[0]]
        expected += [np.concatenate([expected[at], added], 1) for at, added in zip(chosen, new, strict=True)]
        for found, right in zip(caches, expected, strict=True):
            np.testing.assert_array_equal(found, right)
