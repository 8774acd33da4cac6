"""What lowers a Jetson's clock: heat, by cooling devices, and over-current events, by counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.host.clock_watch import ClockCauses, ClockWatch
from tests.helpers.jetson_files import JetsonFiles


@pytest.fixture(params=[5, 6])
def orin(tmp_path: Path, request: pytest.FixtureRequest) -> JetsonFiles:
    return JetsonFiles(tmp_path, request.param)


def test_a_machine_that_tells_nothing_has_no_causes(tmp_path: Path) -> None:
    watch = ClockWatch(tmp_path)
    assert watch.is_blind
    assert watch.look().since(watch.look()) == ()


def test_a_cool_board_with_its_fan_running_has_no_causes(orin: JetsonFiles) -> None:
    for kind in ("cpu", "cuda"):
        watch = ClockWatch(orin.root, kind)
        assert not watch.is_blind
        assert watch.look() == ClockCauses(frozenset(), {"oc1": 0, "oc2": 0, "oc3": 0})


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gpu-throttle-alert", {"cuda"}),
        ("cpu-throttle-alert", {"cpu"}),
        ("tj-throttle-alert", {"cpu", "cuda"}),
        ("hot-surface-alert", {"cpu", "cuda"}),
        ("cv0-throttle-alert", set()),
        ("cpufreq-cpu4", {"cpu"}),
        ("thermal-cpufreq-1", {"cpu"}),
        ("devfreq-17000000.gpu", {"cuda"}),
        ("devfreq-17000000.ga10b", {"cuda"}),
        ("thermal-devfreq-0", {"cuda"}),
        ("devfreq-15340000.vic", set()),
        ("pwm-fan", set()),
    ],
)
def test_each_kind_of_device_has_its_causes(orin: JetsonFiles, name: str, kinds: set[str]) -> None:
    orin.cooling(20, name, 2)
    assert {kind for kind in ("cpu", "cuda") if ClockWatch(orin.root, kind).look().heat == {name}} == kinds


def test_causes_are_those_of_the_time_in_between(orin: JetsonFiles) -> None:
    orin.events(3, 1729)  # many since the machine started
    watch = ClockWatch(orin.root, "cuda")
    before = watch.look()
    assert watch.look().since(before) == ()
    orin.events(3, 1730)
    orin.cooling(2, "gpu-throttle-alert", 1)
    hot = watch.look()
    assert hot.since(before) == ("gpu-throttle-alert", "oc3")
    orin.cooling(2, "gpu-throttle-alert", 0)
    assert watch.look().since(hot) == ("gpu-throttle-alert",)  # it was hot when that time began
    assert watch.look().since(watch.look()) == ()


def test_a_sensor_that_cannot_be_read_is_no_cause(orin: JetsonFiles) -> None:
    watch = ClockWatch(orin.root, "cuda")
    orin.put("sys/class/thermal/cooling_device2/cur_state", "off")
    (orin.root / "sys/class/hwmon/hwmon3/oc1_event_cnt").unlink()
    assert watch.look() == ClockCauses(frozenset(), {"oc1": 0, "oc2": 0, "oc3": 0})
