"""Turns of devices that several runs use: one holder at a time, shares by weight, and the dead hold nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.runs.cluster.turns import SILENT_SECS, TURN_SECS, RunShare, Turns

BATCH_SECS = 1.0


class Cluster:
    """Runs that always want every device and hold each for a batch at least, in virtual time."""

    def __init__(
        self,
        parties: dict[str, RunShare],
        devices: int,
        begins: dict[str, float] | None = None,
        of_one_kind: bool = True,
    ) -> None:
        self.turns = Turns()
        self.parties = parties
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
            before = dict(self.turns.holders)
            for run_id, party in self.parties.items():
                if run_id in dead or self.now < self.begins.get(run_id, 0.0):
                    continue
                for device in self.devices:
                    turn = self.turns.ask(party, device, self.pools[device], self.now)
                    assert turn.mine == (self.turns.holders[device] == run_id)
                    assert turn.mine != bool(turn.behind)
                    if turn.mine and turn.wanted:
                        self.turns.let_go(run_id, device, self.now)
                        self.turns.ask(party, device, self.pools[device], self.now)
            held = self.turns.holders
            self.changes += sum(before.get(device) not in (None, run_id) for device, run_id in held.items())
            for device, run_id in held.items():
                self.used[run_id] += BATCH_SECS
                self.used_each[device, run_id] += BATCH_SECS
            self.now += BATCH_SECS

    def share(self, run_id: str) -> float:
        return self.used[run_id] / self.used.total()


def parties(**weights: float) -> dict[str, RunShare]:
    return {run_id: RunShare(run_id, f"run {run_id}", weight=weight) for run_id, weight in weights.items()}


def test_the_only_run_has_what_it_asks_for() -> None:
    turns = Turns()
    turn = turns.ask(RunShare("a", "run a"), "d", "d", 0.0)
    assert (turn.mine, turn.wanted, turn.behind) == (True, False, "")
    turns.let_go("a", "d", 1.0)
    assert turns.is_empty


def test_two_runs_have_a_device_in_turns() -> None:
    cluster = Cluster(parties(a=1, b=1), 1)
    cluster.play(400.0)
    assert cluster.share("a") == pytest.approx(0.5, abs=0.05)
    assert cluster.changes == pytest.approx(400.0 / (2 * TURN_SECS), rel=0.2)  # from behind by one to ahead by one


def test_shares_follow_the_weights() -> None:
    cluster = Cluster(parties(a=2, b=1), 1)
    cluster.play(900.0)
    assert cluster.share("a") == pytest.approx(2 / 3, abs=0.05)


def test_devices_are_shared_by_number_and_change_hands_no_more() -> None:
    cluster = Cluster(parties(a=1, b=1), 4, begins={"b": 50.0})
    cluster.play(60.0)
    changes = cluster.changes
    assert Counter(cluster.turns.holders.values()) == {"a": 2, "b": 2}
    cluster.play(300.0)
    assert cluster.changes == changes


def test_devices_of_several_kinds_are_everybodys_in_turn() -> None:
    cluster = Cluster(parties(a=1, b=3), 2, of_one_kind=False)
    cluster.play(900.0)
    for device in cluster.devices:
        share = cluster.used_each[device, "a"] / (cluster.used_each[device, "a"] + cluster.used_each[device, "b"])
        assert share == pytest.approx(1 / 4, abs=0.05)


def test_who_comes_late_has_nothing_saved_up() -> None:
    cluster = Cluster(parties(a=1, b=1), 1, begins={"b": 1000.0})
    cluster.play(1000.0)
    cluster.used.clear()
    cluster.play(200.0)
    assert cluster.share("b") == pytest.approx(0.5, abs=0.06)


def test_a_higher_priority_goes_first_and_the_other_has_what_is_left() -> None:
    high, low = RunShare("h", "run h", priority=1), RunShare("l", "run l", weight=100.0)
    turns = Turns()
    assert turns.ask(low, "d", "d", 0.0).mine
    told = turns.ask(high, "d", "d", 0.5)
    assert (told.mine, told.behind) == (False, "run l")
    assert turns.ask(low, "d", "d", 0.6).wanted
    turns.let_go("l", "d", 0.7)
    assert turns.ask(low, "d", "d", 0.8).behind == "run h"
    for now in range(1, 100):
        turns.ask(low, "d", "d", now)
        assert not turns.ask(high, "d", "d", now).wanted
    turns.let_go("h", "d", 100.0)
    assert turns.ask(low, "d", "d", 100.0).mine


def test_a_run_that_was_killed_holds_nothing_for_long() -> None:
    cluster = Cluster(parties(a=1, b=1), 3)
    cluster.play(30.0)
    cluster.play(SILENT_SECS + 3.0, dead=frozenset({"a"}))
    assert set(cluster.turns.holders.values()) == {"b"}


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4),
    devices=st.integers(1, 5),
    begins=st.lists(st.floats(0.0, 60.0), min_size=4, max_size=4),
)
def test_shares_are_fair_whatever_the_fleet(weights: list[float], devices: int, begins: list[float]) -> None:
    names = "abcd"[: len(weights)]
    cluster = Cluster(
        parties(**dict(zip(names, weights, strict=True))), devices, dict(zip(names, begins, strict=False))
    )
    cluster.play(200.0)
    cluster.used.clear()
    cluster.play(800.0)
    for name, weight in zip(names, weights, strict=True):
        assert cluster.share(name) == pytest.approx(weight / sum(weights), abs=0.08)
    assert len(cluster.turns.holders) == devices  # none is idle
