"""What a virtual machine tells of its calls, as times of kernels."""

from __future__ import annotations

import pytest

from devices.timing import in_network
from devices.timing.in_network import InNetworkTimes, KernelClock, kernel_of, time_in_turn, weighted_sum


class Time:
    """A clock that only calls move."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(in_network, "time", time)
    return time


def test_runs_take_turns_and_what_all_calls_of_a_kernel_take_counts(time: Time) -> None:
    clock = KernelClock()
    order: list[str] = []

    def call(name: str, secs: float) -> None:
        clock(None, name, True, None)
        time.now += secs
        clock(None, name, False, None)

    def plain() -> None:
        order.append("plain")
        time.now += 1.0

    def watched() -> None:
        order.append("watched")
        call("vm.builtin.alloc_storage", 0.05)
        call("conv_prepacked", 0.3)
        time.now += 0.1  # between the calls
        call("conv_prepacked", 0.2)
        call("add", 0.25)

    found = time_in_turn(plain, watched, clock, 6.5)
    assert order == ["plain", "watched", "plain"] + 3 * ["plain", "watched"]
    assert found.secs == pytest.approx(1.0)
    # The machine's own call does next to nothing: the clock takes 0.05 of each call.
    assert found.kernel_secs == pytest.approx({"conv_prepacked": 0.4, "add": 0.2})
    assert found.clock_secs == pytest.approx(0.05)
    assert found.calls == {"conv_prepacked": 2, "add": 1}
    assert {kernel_of(name) for name in found.kernel_secs} == {"conv", "add"}


def test_a_busy_moment_is_no_time_of_a_kernel(time: Time) -> None:
    clock = KernelClock()
    slower = iter([1, 1, 1, 1, 9, 2, 7])  # of the watched runs, the first of which is not counted

    def plain() -> None:
        time.now += 1.0

    def watched() -> None:
        factor = next(slower)
        clock(None, "conv", True, None)
        time.now += 0.9 * factor
        clock(None, "conv", False, None)
        time.now += 0.1 * factor

    found = time_in_turn(plain, watched, clock, 12.5)
    assert next(slower, None) is None
    assert found.kernel_secs == pytest.approx({"conv": 0.9 * 1.5})
    assert found.clock_secs == 0.0, "nothing shows it"


def test_the_clock_takes_more_of_a_call_with_more_arguments(time: Time) -> None:
    clock = KernelClock()
    for name, secs, count in (("vm.builtin.null_value", 0.3, 0), ("vm.builtin.alloc_tensor", 1.2, 4), ("add", 2.0, 3)):
        clock(None, name, True, None, *range(count))
        time.now += secs
        clock(None, name, False, None, *range(count))
    assert clock.own_secs("add", 0.1) == pytest.approx(0.6)
    assert KernelClock().least_secs == {}


def test_a_kernel_that_takes_less_than_the_clock_takes_nothing(time: Time) -> None:
    clock = KernelClock()

    def watched() -> None:
        for name in ("vm.builtin.null_value", "add"):
            clock(None, name, True, None)
            time.now += 0.1 if name == "add" else 0.2
            clock(None, name, False, None)

    assert time_in_turn(lambda: None, watched, clock, 1.0).kernel_secs == {"add": 0.0}


def test_an_argument_takes_a_moment_to_become_an_object() -> None:
    assert 1e-9 < in_network._argument_secs() < 1e-5


def test_a_slow_network_is_run_as_seldom_as_can_be(time: Time) -> None:
    order: list[str] = []

    def run(name: str) -> None:
        order.append(name)
        time.now += 60.0

    time_in_turn(lambda: run("plain"), lambda: run("watched"), KernelClock(), 3.0)
    assert order == ["plain", "plain", "watched"]


def test_a_device_that_computes_beside_its_calls_is_waited_for(time: Time) -> None:
    waiting: list[float] = []

    def sync() -> None:
        time.now += sum(waiting)
        waiting.clear()

    clock = KernelClock(sync)
    waiting.append(5.0)  # of what came before
    clock(None, "kernel", True, None)
    waiting.append(2.0)
    clock(None, "kernel", False, None)
    assert clock.secs == {"kernel": 2.0}


def test_times_over_several_inputs_count_by_their_weights() -> None:
    few = InNetworkTimes(1.0, {"a": 0.5, "b": 0.25}, {"a": 1, "b": 2}, 1e-6)
    many = InNetworkTimes(8.0, {"a": 6.0}, {"a": 1})
    assert weighted_sum([few, many], [0.5, 0.25]) == InNetworkTimes(2.5, {"a": 1.75, "b": 0.125}, few.calls, 1e-6)
    assert weighted_sum([few], [1.0]) == few
