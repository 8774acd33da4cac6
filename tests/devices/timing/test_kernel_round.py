"""Kernels that run in a round, and what each of them reads."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

from devices.builds.tensors import array_of
from devices.protocol import Artifact, TensorSpec
from devices.timing import kernel_round
from devices.timing.kernel_round import (
    RoundArguments,
    decode_round,
    encode_round,
    median_secs,
    most_secs,
    one_round,
)


def _artifact(args: list[TensorSpec], outputs: tuple[int, ...], packed: tuple[int, ...] = ()) -> Artifact:
    return Artifact("task", None, b"", tuple(args), tuple(args), outputs, packed, "", 0.0)


def _tensor(count: int, dtype: str = "float32") -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.arange(count).astype(dtype))


@pytest.mark.parametrize(
    ("args", "outputs", "packed", "expected"),
    [
        ([("float32", 8), ("float32", 64), ("float32", 4)], (2,), (1,), RoundArguments(3, 0, 2)),  # 1 is a weight
        ([("float32", 8), ("float32", 64), ("float32", 4)], (2,), (), RoundArguments(3, 1, 2)),
        ([("int64", 64), ("float16", 8), ("float16", 4), ("float16", 9)], (2, 3), (), RoundArguments(4, 1, 3)),
        ([("int32", 64), ("bool", 4)], (1,), (), RoundArguments(2, None, None)),
    ],
)
def test_the_largest_floats_are_passed_on(
    args: list[tuple[str, int]], outputs: tuple[int, ...], packed: tuple[int, ...], expected: RoundArguments
) -> None:
    artifact = _artifact([TensorSpec((count,), dtype) for dtype, count in args], outputs, packed)
    assert RoundArguments.of(artifact, any_values=True) == expected
    assert RoundArguments.of(artifact, any_values=False) == replace(expected, reads=None)
    assert decode_round(encode_round([expected, expected])) == [expected, expected]


def test_each_kernel_reads_what_the_one_before_it_wrote() -> None:
    called: list[tuple[Any, ...]] = []

    def module() -> dict[str, Any]:
        return {"main": lambda *tensors: called.append(tensors)}

    index, weights = _tensor(4, "int32"), _tensor(32)
    run = one_round(
        [RoundArguments(2, 0, 1), RoundArguments(3, 1, 2), RoundArguments(2, None, 1)],
        [module(), _tensor(16), _tensor(8), module(), weights, _tensor(64), _tensor(2), module(), index, _tensor(1)],
    )
    run()
    first, second, third = called
    places = [[array_of(each).ctypes.data for each in tensors] for tensors in called]
    assert places[0][1] == places[1][1]
    assert places[1][2] == places[0][0], "two pieces of memory take turns"
    assert places[0][0] != places[0][1]
    assert second[0].same_as(weights)
    assert third[0].same_as(index)
    assert [each.shape for each in first] == [(16,), (8,)]
    np.testing.assert_array_equal(second[1].numpy(), np.arange(64))
    run()
    assert len(called) == 6


def test_kernels_that_pass_nothing_on_keep_their_tensors() -> None:
    called: list[Any] = []
    tensor = _tensor(4, "int32")
    one_round([RoundArguments(1, None, None)], [{"main": called.append}, tensor])()
    assert called[0].same_as(tensor)


class Clock:
    """A clock that only calls move."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("secs", "rounds"), [(1.0, 3), (0.015, 5), (1e-6, 101)])
def test_rounds_fit_the_time(monkeypatch: pytest.MonkeyPatch, secs: float, rounds: int) -> None:
    clock = Clock()
    monkeypatch.setattr(kernel_round, "time", clock)
    lasted: list[float] = []

    def run() -> None:
        lasted.append(secs if lasted else 3 * secs)  # the first one makes pages
        clock.now += lasted[-1]

    assert median_secs(run, nullcontext) == pytest.approx(secs)
    assert len(lasted) == rounds
    assert sum(lasted) <= most_secs(3 * secs)


def test_bits_of_another_type_are_not_read() -> None:
    called: list[tuple[Any, ...]] = []
    module = {"main": lambda *tensors: called.append(tensors)}
    half, wide = _tensor(4, "float16"), _tensor(64)
    one_round([RoundArguments(2, 0, 1), RoundArguments(2, 0, 1)], [module, half, wide, module, half, half])()
    (first, second) = called
    assert first[0].same_as(half)
    assert not first[1].same_as(wide)
    assert (second[0].same_as(half), second[1].same_as(half)) == (True, True)
