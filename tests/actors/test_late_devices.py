"""Devices that do not answer when a run begins, or are out of use then: who joins later, who is missed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from actors.clients.calls import ActorTimeoutError, ask
from actors.tuning_session import TuningSession
from devices.protocol import Device
from devices.simulated.simulated import SIMULATED_CPU, Faults, SimulatedDevice
from fleet_tune.config.fleet_file import load_fleet
from fleet_tune.device_state import Admin
from fleet_tune.domain import DeviceClass, Fingerprint
from fleet_tune.errors import DeviceUnreachableError, FleetFileError
from fleet_tune.records.orders import FleetOrders, orders_path
from fleet_tune.results import Progress
from policies.measuring.stopping import decide
from tests.actors.conftest import CLASS, Fleet, OpenDevice, open_simulated, trials
from tests.actors.scheduling.test_scheduler import run, until

ORIN = Fingerprint(DeviceClass("orin", "{}"), SIMULATED_CPU, "cpu", 8, "none", 1e-3)


@pytest.fixture
def session(tmp_path: Path) -> TuningSession:
    """A session whose devices are a, b (both said to be of the class orin) and c; nothing is started."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[[device]]\nname = "a"\nconnect = "10.0.0.1:9090"\ndevice_class = "orin"\n'
        '[[device]]\nname = "b"\nconnect = "10.0.0.2:9090"\ndevice_class = "orin"\n'
        '[[device]]\nname = "c"\nconnect = "10.0.0.3:9090"\n'
    )
    made = TuningSession(cast(Any, None), load_fleet(path), "run")
    made._devices = {"a": object(), "b": object(), "c": object()}
    return made


def gone(name: str) -> DeviceUnreachableError:
    return DeviceUnreachableError(name, "no route to host")


def test_a_device_of_a_class_that_another_one_shows_joins_later(session: TuningSession) -> None:
    session._let_join_later({"a": ORIN, "c": ORIN}, {"b": ActorTimeoutError("device b: no answer")}, set())
    assert session._late == {"b": "orin"}
    assert set(session._devices) == {"a", "b", "c"}


def test_a_device_of_which_nothing_is_known_is_missed_and_waited_for(session: TuningSession) -> None:
    session._let_join_later({"a": ORIN, "b": ORIN}, {"c": gone("c")}, set())
    assert session._late == {"c": ""}
    assert set(session._devices) == {"a", "b", "c"}
    assert session._notices == ["device c: no route to host: the run begins without it, and takes it when it answers"]


def test_devices_of_a_class_that_nobody_shows_are_waited_for(session: TuningSession) -> None:
    nano = dataclasses.replace(ORIN, device_class=DeviceClass("nano", "{}"))
    session._let_join_later({"c": nano}, {"a": gone("a"), "b": gone("b")}, set())
    assert session._late == {"a": "", "b": ""}


def test_a_fleet_of_which_no_device_answers_is_missed_with_a_line(session: TuningSession) -> None:
    with pytest.raises(FleetFileError, match=r"fleet\.toml, line 3: device 'a' does not answer: .*no route to host"):
        session._let_join_later({}, {"a": gone("a"), "b": gone("b"), "c": gone("c")}, set())


def test_a_device_out_of_use_is_not_missed(session: TuningSession) -> None:
    session._let_join_later({"a": ORIN}, {}, {"b", "c"})
    assert session._notices == [
        "device b is out of use: it joins when it is resumed",
        "device c is out of use, and nothing is known of its class: it is left out",
    ]
    assert session._late == {"b": "orin"}  # joins when it is resumed
    assert set(session._devices) == {"a", "b"}  # nothing is known of c


def test_a_fleet_that_is_out_of_use_altogether_says_so(session: TuningSession) -> None:
    with pytest.raises(FleetFileError, match=r"every device of .*fleet\.toml is out of use: a, b, c.*resume"):
        session._let_join_later({}, {}, {"a", "b", "c"})


async def test_who_is_out_of_use_is_what_the_orders_say(session: TuningSession, tmp_path: Path) -> None:
    assert await session._out_of_use() == set()
    orders = FleetOrders(orders_path(tmp_path / "fleet.toml"))
    orders.give("a", Admin.RETIRED, "")
    orders.give("b", Admin.DRAINING, "")
    orders.give("b", Admin.ACTIVE, "")
    orders.give("of another time", Admin.RETIRED, "")
    assert await session._out_of_use() == {"a"}


async def test_a_run_is_noted_for_the_commands_that_look_at_the_fleet(session: TuningSession, tmp_path: Path) -> None:
    records = tmp_path / "records.db"
    records.touch()
    path = await session._noted(records)
    assert path == orders_path(tmp_path / "fleet.toml")
    assert FleetOrders(path).last_records() == records


async def test_a_file_of_orders_that_cannot_be_written_does_not_stop_a_run(
    session: TuningSession, tmp_path: Path
) -> None:
    orders_path(tmp_path / "fleet.toml").mkdir()
    assert await session._noted(tmp_path / "records.db") is not None


class AtLast(SimulatedDevice):
    """Answers once a file is there."""

    def __init__(self, there: Path, device_class: DeviceClass) -> None:
        super().__init__(device_class, decide=decide, seed=7)
        self._there = there

    def ping(self) -> float:
        if not self._there.exists():
            raise DeviceUnreachableError("device-1", "no route to host")
        return super().ping()


@contextlib.contextmanager
def open_at_last(there: Path, device_class: DeviceClass) -> Iterator[Device]:
    yield AtLast(there, device_class)


def mixed(faults: Faults, there: Path, device_class: DeviceClass) -> tuple[OpenDevice, ...]:
    """A device that is there, and one of this class that comes."""
    return partial(open_simulated, faults, 0), partial(open_at_last, there, device_class)


async def test_a_device_that_comes_at_last_is_taken(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    there = tmp_path / "there"
    made = fleet(
        open_devices=mixed(Faults(lost_after=20), there, CLASS),
        newcomers=frozenset({"device-1"}),
    )
    scheduler = made.start(trials=60)
    running = asyncio.ensure_future(run(scheduler))
    progress = await until(scheduler, lambda progress: progress.devices["device-0"] == "lost")
    assert progress.devices["device-1"] == "joining"
    there.touch()
    progress = await running
    assert progress.trials == 60
    assert progress.devices == {"device-0": "lost", "device-1": "good"}
    assert "device device-1 answers: it is of class simulated" in [each.text for each in progress.notices]
    assert sum(record.device_id == "device-1" for record in trials(made.store)) >= 40


async def test_a_device_of_another_class_that_comes_is_told_and_left_alone(
    fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.touch()
    other = DeviceClass("another", CLASS.target)
    made = fleet(open_devices=mixed(Faults(lost_after=5), there, other), newcomers=frozenset({"device-1"}))
    scheduler = made.start(time_budget_secs=1000.0)
    running = asyncio.ensure_future(run(scheduler))

    def told(progress: Progress) -> list[str]:
        return [each.text for each in progress.notices if "device-1" in each.text]

    progress = await until(scheduler, lambda progress: bool(told(progress)))
    assert told(progress) == [
        "device device-1 answers: it is of class another, and none of that class answered when the run began: the next "
        "run tunes for it"
    ]
    await ask(scheduler.stop.remote(), 10.0, "stop")
    await running
