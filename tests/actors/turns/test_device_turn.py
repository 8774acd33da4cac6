"""A device that two runs use: one at a time, each has its turn, and who lets go leaves the device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.clients.device import fingerprints_in_turn, turn_of_actor
from actors.processes.device import device_actor
from actors.turns.arbiter import turn_arbiter
from actors.turns.client import TurnClient
from actors.turns.device_turn import DeviceTurn
from actors.turns.run_turns import pool_of
from devices.protocol import Device
from devices.simulated.simulated import SimulatedDevice
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Fingerprint
from policies.measuring.adaptive_stopping import decide
from policies.runs.cluster.turns import RunShare, TurnStatus
from tests.actors.conftest import CLASS


class Told:
    """A requester that is told what the test says: whether the turn is its own, and whether somebody else is due."""

    def __init__(self, *turns: TurnStatus) -> None:
        self.turns = list(turns)
        self.asked = threading.Event()
        self.releases = 0

    def request(self) -> TurnStatus:
        self.asked.set()
        return self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]

    def release(self) -> None:
        self.releases += 1


MINE, DUE, THEIRS = (
    TurnStatus(True),
    TurnStatus(True, yield_after_use=True, yield_when_idle=True),
    TurnStatus(False, holder="net (run 1)"),
)
AWAITED = TurnStatus(True, yield_when_idle=True)


def nothing(_secs: float = 0.0) -> None:
    """Instead of waiting."""


def within(condition: Callable[[], bool], secs: float = 30.0) -> None:
    changed = threading.Event()
    for _ in range(int(secs / 0.02)):
        if condition():
            return
        changed.wait(0.02)
    raise AssertionError("it did not happen")


ORIN = "nvidia/jetson-agx-orin-64gb"


@pytest.mark.parametrize(
    ("entry", "pool"),
    [
        ({"connect": "10.0.0.1:9090"}, "place"),
        ({"connect": "local"}, "place"),
        ({"connect": "10.0.0.1:9090", "device_class": "epyc"}, "epyc"),
        ({"connect": "10.0.0.1:9090", "target": ORIN}, ORIN),
        (
            {"connect": "10.0.0.1:9090", "target": {"kind": "cuda", "arch": "sm_90"}},
            '{"arch": "sm_90", "kind": "cuda"}',
        ),
        ({"connect": "tracker://10.0.0.1:9190/epyc"}, "tracker://10.0.0.1:9190/epyc"),
    ],
)
def test_shares_are_by_number_among_devices_that_are_known_to_be_of_one_class(entry: Any, pool: str) -> None:
    assert pool_of(DeviceConfig(name="a", **entry), "place") == pool


def test_who_has_to_wait_is_told_for_whom() -> None:
    turn = DeviceTurn(Told(THEIRS), nothing, sleep=nothing)
    assert turn.wait(0.0) == "net (run 1)"


def test_a_device_is_kept_while_nobody_else_is_due() -> None:
    left: list[str] = []
    requester = Told(THEIRS, MINE)
    turn = DeviceTurn(requester, lambda: left.append("left"), sleep=nothing)
    with turn.used(), turn.used():
        assert not left
    assert (left, requester.releases) == ([], 0)
    turn.close()
    assert (left, requester.releases) == ([], 1)


@pytest.mark.parametrize("answer", [DUE, THEIRS], ids=["somebody is due", "somebody has it"])
def test_who_is_due_has_the_device_after_what_is_done_there(answer: TurnStatus) -> None:
    left: list[str] = []
    requester = Told(MINE, answer)
    with DeviceTurn(requester, lambda: left.append("left"), sleep=nothing).used():
        assert not left
    assert (left, requester.releases) == (["left"], 1)


def test_who_waits_has_a_device_that_is_not_used_though_it_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two runs with a device each, of which both need both, would wait for each other."""
    monkeypatch.setattr("actors.turns.device_turn._REPEAT_EVERY_SECS", 0.01)
    left = threading.Event()
    requester = Told(AWAITED)
    turn = DeviceTurn(requester, left.set, sleep=nothing)
    with turn.used():
        pass
    assert not left.is_set(), "what comes next may come at once"
    within(left.is_set)
    turn.close()


def test_a_device_is_kept_for_what_it_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.turns.device_turn._REPEAT_EVERY_SECS", 0.01)
    left = threading.Event()
    requester = Told(DUE)
    turn = DeviceTurn(requester, left.set, sleep=nothing)
    assert not turn.wait(0.0)
    for _ in range(5):
        requester.asked.clear()
        assert requester.asked.wait(30.0)
    assert not left.is_set()
    with turn.used():
        assert not left.is_set()
    assert left.is_set()
    turn.close()


def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.turns.device_turn._REPEAT_EVERY_SECS", 0.01)
    requester = Told(MINE)
    failed = threading.Event()

    def leave() -> None:
        failed.set()
        raise OSError("the device is gone")

    turn = DeviceTurn(requester, leave, sleep=nothing)
    with turn.used():
        pass
    requester.turns = [DUE]
    assert failed.wait(30.0)
    requester.turns = [MINE]
    with turn.used():
        requester.asked.clear()
        assert requester.asked.wait(30.0)
    turn.close()


def test_a_device_that_is_not_used_is_given_up_once_somebody_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.turns.device_turn._REPEAT_EVERY_SECS", 0.01)
    left = threading.Event()
    requester = Told(MINE)
    turn = DeviceTurn(requester, left.set, sleep=nothing)
    with turn.used():
        requester.asked.clear()
        assert requester.asked.wait(30.0), "while a device is used it is said again that it is"
        requester.turns = [DUE]
    within(left.is_set)
    within(lambda: requester.releases == 1)
    turn.close()


@contextlib.contextmanager
def open_alone(lock: Path, path: Path) -> Iterator[Device]:
    """A simulated device that serves one client at a time: others are refused. ``path``: notes who comes and goes."""
    lock.touch(exist_ok=False)
    try:
        with path.open("a") as log:
            log.write("in\n")
        yield SimulatedDevice(CLASS, decide=decide)
    finally:
        lock.unlink()


@pytest.mark.usefixtures("ray_cluster")
async def test_two_runs_of_a_cluster_use_one_device_in_turns(tmp_path: Path) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"

    def run(name: str, priority: int) -> Any:
        requester = TurnClient(turn_arbiter, RunShare(name, f"net (run {name})", priority), str(tmp_path), "simulated")

        def opened() -> contextlib.AbstractContextManager[Device]:
            return open_alone(lock, log)

        return device_actor().remote("board", opened, name, None, requester)

    first, second = run("1", 0), run("2", 1)
    told: list[str] = []
    try:
        assert await turn_of_actor(first, told.append) >= 0.0
        assert (await first.fingerprint.remote()).device_class == CLASS
        assert lock.exists(), "nobody else is due: the first one stays connected"
        # The second one goes first by its priority, and the first has to leave for it.
        assert (await second.fingerprint.remote()).device_class == CLASS
        assert await first.wait_for_turn.remote(0.0) == "net (run 2)"
        await second.close.remote()
        assert (await first.fingerprint.remote()).device_class == CLASS
        assert log.read_text().split() == ["in"] * 3
        assert not told
    finally:
        for actor in (first, second):
            ray.kill(actor)


@pytest.mark.usefixtures("ray_cluster")
def test_where_nobody_keeps_order_a_run_goes_on_and_another_arbiter_is_found() -> None:
    arbiter = turn_arbiter()
    requester = TurnClient(turn_arbiter, RunShare("1", "net"), "board", "board")
    assert requester.request().granted
    ray.kill(arbiter, no_restart=True)
    assert requester.request().granted
    # The name of the one that was killed may stay for a moment.
    other = TurnClient(turn_arbiter, RunShare("2", "net"), "board", "board")
    within(lambda: requester.request().granted and not other.request().granted)
    ray.kill(turn_arbiter(), no_restart=True)


@pytest.mark.usefixtures("ray_cluster")
async def test_two_runs_with_two_devices_both_begin_and_end(tmp_path: Path) -> None:
    """The second one begins with the device that the first one leaves it, and each comes to its end on both."""

    def run(name: str) -> dict[str, Any]:
        actors = {}
        for board in ("x", "y"):
            requester = TurnClient(turn_arbiter, RunShare(name, f"net (run {name})"), f"{tmp_path} {board}", "boards")
            opened = partial(open_alone, tmp_path / board, tmp_path / "log")
            actors[board] = device_actor().remote(board, opened, name, None, requester)
        return actors

    first, second = run("1"), run("2")
    told: list[str] = []
    try:
        assert [each.device_class for each in await fingerprints_in_turn(first, told.append)] == [CLASS, CLASS]
        answers = await fingerprints_in_turn(second, told.append)
        assert any(isinstance(each, Fingerprint) for each in answers)
        # Both go on to want both, and nobody has one for ever.
        for _ in range(2):
            for actors in (first, second):
                for actor in actors.values():
                    await turn_of_actor(actor, told.append)
                    await actor.ping.remote()
    finally:
        for actor in (*first.values(), *second.values()):
            ray.kill(actor)
