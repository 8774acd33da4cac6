"""The occupation of devices, with stand-ins for the work under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet_tune.base.results import DeviceTime
from policies.runs.stages.device_time_shares import DeviceTimeShares


def occupation(
    leased: int = 0, idle: int = 0, measured: int = 0, in_flight: int = 0, builds: int = 0, **others: bool
) -> DeviceTimeShares:
    """Make the occupation of class ``a``, which has device ``a-0``; ``others``: true if all builders work, and if a
    searcher does."""
    building: Any = SimpleNamespace(under_way=lambda _: builds, saturated=others.get("saturated", False))
    devices: Any = SimpleNamespace(
        occupied=lambda _: (leased, idle, measured),
        slots={"a-0": SimpleNamespace(device_class="a", is_leased=leased > 0)},
    )
    tasks = [SimpleNamespace(candidates=SimpleNamespace(under_way=range(in_flight)), reserved=0)]
    granting: Any = SimpleNamespace(is_asking=lambda _: others.get("asking", False), by_class={"a": tasks})
    return DeviceTimeShares(building, devices, granting)


@pytest.mark.parametrize(
    ("under_way", "awaited"),
    [
        ({"builds": 3, "saturated": True, "asking": True}, DeviceTime.BUILD),
        ({"builds": 3, "asking": True}, DeviceTime.SEARCH),
        ({"saturated": True, "asking": True}, DeviceTime.SEARCH),  # the builders work for another class
        ({"builds": 3}, DeviceTime.BUILD),
        ({"in_flight": 5, "measured": 4}, DeviceTime.COMMIT),
        ({"in_flight": 4, "measured": 4}, DeviceTime.TASKS),
    ],
)
def test_a_device_with_nothing_to_do_waits_for_what_would_come_next(
    under_way: dict[str, Any], awaited: DeviceTime
) -> None:
    counts = occupation(leased=2, idle=3, **under_way).of("a")
    assert counts == {DeviceTime.MEASURE: 2, DeviceTime.TURN: 0, awaited: 3}


def test_a_lease_under_which_others_have_the_device_is_a_turn_that_is_waited_for() -> None:
    of = occupation(leased=1)
    of.waits("a-0", "net (run 1)", 5.0)
    of.waits("a-0", "net (run 2)", 8.0)  # one after the other: it waits since the first
    of.waits("b-0", "net (run 1)", 5.0)  # a device that the run does not use
    assert of.behind == {"a-0": ("net (run 2)", 5.0)}
    assert of.of("a") == {DeviceTime.MEASURE: 0, DeviceTime.TURN: 1}
    of.waits("a-0", "", 9.0)
    assert of.behind == {}
    assert of.of("a") == {DeviceTime.MEASURE: 1, DeviceTime.TURN: 0}


def test_what_waits_without_a_lease_is_counted_once() -> None:
    of = occupation(leased=0, idle=1)
    of.waits("a-0", "net (run 1)", 5.0)
    assert of.of("a") == {DeviceTime.MEASURE: 0, DeviceTime.TURN: 0, DeviceTime.TASKS: 1}
