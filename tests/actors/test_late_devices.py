"""Devices that do not answer when a run begins, or are out of use then: who joins later, who is missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from actors.calls import ActorTimeoutError
from actors.tuning_session import TuningSession
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.config.fleet_file import load_fleet
from fleet_tune.device_state import Admin
from fleet_tune.domain import DeviceClass, Fingerprint
from fleet_tune.errors import DeviceUnreachableError, FleetFileError
from fleet_tune.records.orders import FleetOrders, orders_path

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


def test_a_device_of_which_nothing_is_known_is_missed_with_its_line(session: TuningSession) -> None:
    with pytest.raises(FleetFileError, match=r"fleet\.toml, line 11: device 'c' does not answer: .*no route to host"):
        session._let_join_later({"a": ORIN, "b": ORIN}, {"c": gone("c")}, set())
    with pytest.raises(FleetFileError, match="device 'a' does not answer"):
        session._let_join_later({}, {"a": gone("a"), "b": gone("b"), "c": gone("c")}, set())


def test_a_device_out_of_use_is_not_missed(session: TuningSession) -> None:
    session._let_join_later({"a": ORIN}, {}, {"b", "c"})
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
