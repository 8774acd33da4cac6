"""Turns of devices that several runs use: one holder at a time, shares by weight, and the dead hold nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.runs.cluster.turns import SILENT_SECS, TURN_SECS, RunShare, TurnArbiter

BATCH_SECS = 1.0


class Cluster:
    """Runs that always want every device and hold each for a batch at least, in virtual time."""

    def __init__(
        self,
        runs: dict[str, RunShare],
        devices: int,
        begins: dict[str, float] | None = None,
        of_one_kind: bool = True,
    ) -> None:
        self.arbiter = TurnArbiter()
        self.runs = runs
        self.devices = [f"d{number}" for number in range(devices)]
        self.begins = begins or {}
        self.pools = {device: "pool" if of_one_kind else device for device in self.devices}
        self.used: Counter[str] = Counter()  # device seconds by run
        self.used_each: Counter[tuple[str, str]] = Counter()  # by device and run
        self.changes = 0  # of hands
        self.now = 0.0

    def play(self, secs: float, dead: frozenset[str] = frozenset()) -> None:
        until = self.now + secs
        while self.now < until:
            before = dict(self.arbiter.holders)
            for run_id, run in self.runs.items():
                if run_id in dead or self.now < self.begins.get(run_id, 0.0):
                    continue
                for device in self.devices:
                    turn = self.arbiter.request(run, device, self.pools[device], self.now)
                    assert turn.granted == (self.arbiter.holders[device] == run_id)
                    assert turn.granted != bool(turn.holder)
                    if turn.granted and turn.yield_after_use:
                        self.arbiter.release(run_id, device, self.now)
                        self.arbiter.request(run, device, self.pools[device], self.now)
            held = self.arbiter.holders
            self.changes += sum(before.get(device) not in (None, run_id) for device, run_id in held.items())
            for device, run_id in held.items():
                self.used[run_id] += BATCH_SECS
                self.used_each[device, run_id] += BATCH_SECS
            self.now += BATCH_SECS

    def share(self, run_id: str) -> float:
        return self.used[run_id] / self.used.total()


def runs(**weights: float) -> dict[str, RunShare]:
    return {run_id: RunShare(run_id, f"run {run_id}", weight=weight) for run_id, weight in weights.items()}


def test_the_only_run_has_what_it_asks_for() -> None:
    arbiter = TurnArbiter()
    turn = arbiter.request(RunShare("a", "run a"), "d", "d", 0.0)
    assert (turn.granted, turn.yield_after_use, turn.holder) == (True, False, "")
    arbiter.release("a", "d", 1.0)
    assert not arbiter._devices


def test_two_runs_have_a_device_in_turns() -> None:
    cluster = Cluster(runs(a=1, b=1), 1)
    cluster.play(400.0)
    assert cluster.share("a") == pytest.approx(0.5, abs=0.05)
    assert cluster.changes == pytest.approx(400.0 / (2 * TURN_SECS), rel=0.2)  # from behind by one to ahead by one


def test_shares_follow_the_weights() -> None:
    cluster = Cluster(runs(a=2, b=1), 1)
    cluster.play(900.0)
    assert cluster.share("a") == pytest.approx(2 / 3, abs=0.05)


def test_devices_are_shared_by_number_and_change_hands_no_more() -> None:
    cluster = Cluster(runs(a=1, b=1), 4, begins={"b": 50.0})
    cluster.play(60.0)
    changes = cluster.changes
    assert Counter(cluster.arbiter.holders.values()) == {"a": 2, "b": 2}
    cluster.play(300.0)
    assert cluster.changes == changes


def test_devices_of_several_kinds_are_everybodys_in_turn() -> None:
    cluster = Cluster(runs(a=1, b=3), 2, of_one_kind=False)
    cluster.play(900.0)
    for device in cluster.devices:
        share = cluster.used_each[device, "a"] / (cluster.used_each[device, "a"] + cluster.used_each[device, "b"])
        assert share == pytest.approx(1 / 4, abs=0.05)


def test_who_comes_late_has_nothing_saved_up() -> None:
    cluster = Cluster(runs(a=1, b=1), 1, begins={"b": 1000.0})
    cluster.play(1000.0)
    cluster.used.clear()
    cluster.play(200.0)
    assert cluster.share("b") == pytest.approx(0.5, abs=0.06)


def test_a_higher_priority_goes_first_and_the_other_has_what_is_left() -> None:
    high, low = RunShare("h", "run h", priority=1), RunShare("l", "run l", weight=100.0)
    arbiter = TurnArbiter()
    assert arbiter.request(low, "d", "d", 0.0).granted
    told = arbiter.request(high, "d", "d", 0.5)
    assert (told.granted, told.holder) == (False, "run l")
    assert arbiter.request(low, "d", "d", 0.6).yield_after_use
    arbiter.release("l", "d", 0.7)
    assert arbiter.request(low, "d", "d", 0.8).holder == "run h"
    for now in range(1, 100):
        arbiter.request(low, "d", "d", now)
        assert not arbiter.request(high, "d", "d", now).yield_after_use
    arbiter.release("h", "d", 100.0)
    assert arbiter.request(low, "d", "d", 100.0).granted


def test_a_run_that_was_killed_holds_nothing_for_long() -> None:
    cluster = Cluster(runs(a=1, b=1), 3)
    cluster.play(30.0)
    cluster.play(SILENT_SECS + 3.0, dead=frozenset({"a"}))
    assert set(cluster.arbiter.holders.values()) == {"b"}


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4),
    devices=st.integers(1, 5),
    begins=st.lists(st.floats(0.0, 60.0), min_size=4, max_size=4),
)
def test_shares_are_fair_whatever_the_fleet(weights: list[float], devices: int, begins: list[float]) -> None:
    names = "abcd"[: len(weights)]
    cluster = Cluster(runs(**dict(zip(names, weights, strict=True))), devices, dict(zip(names, begins, strict=False)))
    cluster.play(200.0)
    cluster.used.clear()
    cluster.play(800.0)
    for name, weight in zip(names, weights, strict=True):
        assert cluster.share(name) == pytest.approx(weight / sum(weights), abs=0.08)
    assert len(cluster.arbiter.holders) == devices  # none is idle
