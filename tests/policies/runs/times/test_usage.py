"""The time of devices, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from fleet_tune.base.results import DeviceTime, bound_by
from policies.runs.times.usage import Usage


def test_the_time_of_a_class_is_shared_out_among_what_its_devices_do() -> None:
    usage = Usage(["a", "b"])
    assert usage.whole == usage.lately == {}
    usage.count(10.0, {"a": {DeviceTime.MEASURE: 3, DeviceTime.BUILD: 1}, "b": {DeviceTime.SEARCH: 2}})
    usage.count(10.0, {"a": {DeviceTime.MEASURE: 4}, "b": {DeviceTime.BUILD: 2}})
    assert usage.whole["a"] == pytest.approx({"measure": 70 / 80, "build": 10 / 80})
    assert usage.whole["b"] == pytest.approx({"search": 0.5, "build": 0.5})
    assert usage.lately["b"]["build"] > usage.lately["b"]["search"]


def test_a_lease_is_no_measuring_where_it_waited() -> None:
    usage = Usage(["a"])
    usage.count(10.0, {"a": {DeviceTime.MEASURE: 1}})
    usage.recount("a", DeviceTime.WINDOW, 4.0)
    usage.recount("a", DeviceTime.COMMIT, 1.0)
    assert usage.whole["a"] == pytest.approx({"measure": 0.5, "window": 0.4, "commit": 0.1})
    usage.recount("a", DeviceTime.COMMIT, 100.0)  # no more than there was
    assert usage.whole["a"] == pytest.approx({"window": 0.4, "commit": 0.6})


def test_what_is_long_ago_does_not_count_lately() -> None:
    usage = Usage(["a"])
    usage.count(1000.0, {"a": {DeviceTime.SEARCH: 1}})
    for _ in range(200):
        usage.count(1.0, {"a": {DeviceTime.MEASURE: 1}})
    assert usage.lately["a"]["measure"] > 0.99
    assert usage.whole["a"]["search"] > 0.8


def test_a_class_is_bound_by_what_its_devices_wait_for_most() -> None:
    assert bound_by({}) == ""
    assert bound_by({"measure": 0.95, "build": 0.05}) == "measure"
    assert bound_by({"measure": 0.8, "build": 0.05, "search": 0.15}) == "search"
    assert bound_by({"build": 1.0}) == "build"
