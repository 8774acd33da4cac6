"""On which CPUs the pools of a process run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.host.limits.pool import cpus_of_pool


@pytest.mark.parametrize(
    ("number", "expected"), [(0, [1, 3]), (1, [5, 7]), (2, [1, 3])], ids=["first", "beside it", "all are taken"]
)
def test_two_of_four_cpus(number: int, expected: list[int]) -> None:
    assert cpus_of_pool({7, 5, 3, 1}, 2, number) == expected


def test_what_is_left_over_at_the_end_is_used_too() -> None:
    assert [cpus_of_pool(range(5), 2, number) for number in range(3)] == [[0, 1], [2, 3], [4, 0]]


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 300), st.integers(0, 1000))
def test_a_cpu_for_each_thread_as_far_as_there_are_some(allowed: set[int], threads: int, number: int) -> None:
    cpus = cpus_of_pool(allowed, threads, number)
    assert len(cpus) == len(set(cpus)) == min(threads, len(allowed))
    assert set(cpus) <= allowed
