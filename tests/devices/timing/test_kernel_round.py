"""Kernels that run in a round, and what each of them reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

from devices.builds.tensors import array_of
from devices.protocol import Artifact, TensorSpec
from devices.timing import kernel_round
from devices.timing.cold_weights import WeightCopies
from devices.timing.kernel_round import (
    KernelsAlone,
    LoadedKernel,
    RoundArguments,
    decode_round,
    encode_round,
    extra_secs,
    in_chain,
    loaded_kernels,
    most_round_secs,
    one_round,
)


def _artifact(args: list[TensorSpec], outputs: tuple[int, ...], packed: tuple[int, ...] = ()) -> Artifact:
    return Artifact("task", None, b"", tuple(args), tuple(args), outputs, packed, "", 0.0)


def _tensor(count: int, dtype: str = "float32") -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.arange(count).astype(dtype))


@pytest.mark.parametrize(
    ("args", "outputs", "packed", "expected"),
    [
        ([("float32", 8), ("float32", 64), ("float32", 4)], (2,), (1,), RoundArguments(3, 0, 2, (1,))),
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
    kernels = loaded_kernels(
        [RoundArguments(2, 0, 1), RoundArguments(3, 1, 2), RoundArguments(2, None, 1)],
        [module(), _tensor(64), _tensor(8), module(), weights, _tensor(16), _tensor(2), module(), index, _tensor(1)],
    )
    run = one_round(kernels)
    run()
    first, second, third = called
    places = [[array_of(each).ctypes.data for each in tensors] for tensors in called]
    assert places[0][1] == places[1][1]
    assert places[1][2] == places[0][0], "two pieces of memory take turns"
    assert places[0][0] != places[0][1]
    assert second[0].same_as(weights)
    assert third[0].same_as(index)
    assert [each.shape for each in first] == [(64,), (8,)]
    np.testing.assert_array_equal(second[1].numpy(), np.arange(16))
    run()
    assert len(called) == 6
    assert [len(each.tensors) for each in kernels] == [2, 3, 2]
    assert kernels[1].tensors[0].same_as(weights)
    assert not kernels[0].tensors[1].same_as(first[1]), "alone it has its own tensors"


def test_kernels_that_pass_nothing_on_keep_their_tensors() -> None:
    called: list[Any] = []
    tensor = _tensor(4, "int32")
    one_round([LoadedKernel(RoundArguments(1, None, None), {"main": called.append}, [tensor])])()
    assert called[0].same_as(tensor)


def test_kernels_follow_those_that_write_as_much_as_they_read() -> None:
    sizes = {"pool": (8, 2), "head": (2, 1), "input": (100, 60), "body": (64, 64), "neck": (60, 9)}
    kernels = [
        LoadedKernel(RoundArguments(2, 0, 1), name, [_tensor(reads), _tensor(writes)])
        for name, (reads, writes) in sizes.items()
    ]
    kernels.insert(0, LoadedKernel(RoundArguments(1, None, 0), "table", [_tensor(9)]))
    # After 60 comes 60, after 9 comes 8, after 2 comes 2; 1 is nearer to 0 than to 64.
    assert [each.module for each in in_chain(kernels)] == ["input", "neck", "pool", "head", "table", "body"]
    assert in_chain([]) == []


class Clock:
    """A clock that only calls move."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def passes(self, secs: Sequence[float]) -> Callable[[], None]:
        """Return a function that takes these seconds, the last ones from then on."""
        left = list(secs)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(kernel_round, "time", clock)
    return clock


def test_rounds_and_kernels_alone_are_compared_in_turn(clock: Clock) -> None:
    # The first round makes pages, and the next one finds other things in the caches.
    rounds = [0.03, 0.02, 0.02, 0.03, 0.04, 0.02, 0.01, 0.02, 0.03, 0.02, 0.08, 0.08, 0.08]
    alone = [0.02, 0.01, 0.02]

    def alone_secs() -> float:
        clock.now += 0.03
        return alone.pop(0)

    # Medians of 0.02, 0.03, 0.04; of 0.01, 0.02, 0.03; of 0.08: 0.01, 0.01 and 0.06 longer. After the first two
    # comparisons 0.28 s have passed.
    assert extra_secs(clock.passes(rounds), alone_secs, 1.0) == pytest.approx(0.01)
    assert not alone


def test_a_slow_round_is_compared_once_and_a_slower_one_not_at_all(clock: Clock) -> None:
    asked: list[float] = []

    def alone_secs() -> float:
        asked.append(clock.now)
        clock.now += 4 * 0.9
        return 0.9

    limit = most_round_secs(13.0)
    assert limit == 1.0
    assert extra_secs(clock.passes([1.0]), alone_secs, limit) == pytest.approx(0.1)
    assert asked == [5.0]
    assert clock.now <= 13.0
    assert extra_secs(clock.passes([1.1]), alone_secs, limit) is None
    assert len(asked) == 1


def test_kernels_alone_run_until_the_clock_can_tell_and_with_weights_as_cold_as_in_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[str, int, int]] = []
    secs = {"quick": 1e-7, "slow": 1e-3, "middle": 1e-4}

    def batch_timer(module: str, _entry: str, _device: Any, sets: Sequence[Any]) -> Callable[[int], float]:
        def run(runs: int) -> float:
            ran.append((module, runs, len(sets)))
            return secs[module]

        return run

    monkeypatch.setattr(kernel_round, "batch_timer", batch_timer)
    large, small = _tensor(1 << 17), _tensor(16)  # 512 KiB, which count, and 64 B, which do not
    kernels = [
        LoadedKernel(RoundArguments(1, None, None), "quick", [small]),
        LoadedKernel(RoundArguments(2, None, None, (1,)), "slow", [small, large]),
        LoadedKernel(RoundArguments(2, None, None, (0, 1)), "middle", [large, large]),
    ]
    assert KernelsAlone(kernels, WeightCopies(1 << 20)).secs() == pytest.approx(1.1001e-3)
    # Between two runs 1.5 MiB of weights are read.
    assert ran[:2] == [("quick", 1, 1), ("quick", 100, 1)]
    assert ran[2:] == [("slow", 1, 1), ("slow", 3, 3), ("middle", 1, 1), ("middle", 5, 2)]


def test_bits_of_another_type_are_not_read() -> None:
    called: list[tuple[Any, ...]] = []
    module = {"main": lambda *tensors: called.append(tensors)}
    half, wide = _tensor(4, "float16"), _tensor(64)
    arguments = RoundArguments(2, 0, 1)
    one_round([LoadedKernel(arguments, module, [half, wide]), LoadedKernel(arguments, module, [half, half])])()
    (first, second) = called
    assert first[0].same_as(half)
    assert not first[1].same_as(wide)
    assert (second[0].same_as(half), second[1].same_as(half)) == (True, True)
