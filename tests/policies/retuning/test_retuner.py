"""What is done next, and what follows from how it ended."""

from __future__ import annotations

import dataclasses
import math

import pytest

from policies.retuning.allowance import Hours
from policies.retuning.retuner import Retuner
from policies.retuning.rules import Moment, Rules, Subject
from policies.retuning.slowdown import Baseline, Finding, Timed
from policies.retuning.state import (
    AskDevices,
    CheckVersion,
    CheckVersionResult,
    Deployment,
    DeviceAnswer,
    LookAtFiles,
    ServiceState,
    Trigger,
    TuneDeployment,
    TuneDeploymentResult,
    UsesDevices,
    Wait,
)

NOW = 1e9
NOON, MIDNIGHT = 43200.0, 0.0
HOUR = 3600.0


class Played:
    """A retuner whose actions are played one after the other."""

    def __init__(self, *subjects: Subject, devices: int = 1, **rules: object) -> None:
        names = tuple(f"d{number}" for number in range(devices))
        self.retuner = Retuner(Rules(subjects, names, **rules), ServiceState(), lambda then, now: f"{then} to {now}")  # type: ignore[arg-type]
        self.now = NOW
        self.day_secs = NOON
        self.ask_secs = 10.0
        self.origin = "driver 1"
        self.digests = {subject.name: "first" for subject in subjects}

    def next(self) -> object:
        return self.retuner.next(Moment(self.now, self.day_secs))

    def begin(self, action: UsesDevices, secs: float) -> None:
        self.retuner.begun(action, self.now)
        self.now += secs

    def until_work(self) -> object:
        """Looks and asks; what comes then."""
        while True:
            action = self.next()
            if isinstance(action, LookAtFiles):
                self.retuner.looked(self.digests, {}, self.now)
            elif isinstance(action, AskDevices):
                self.begin(action, self.ask_secs)
                self.retuner.asked([DeviceAnswer(name, "cpu", self.origin) for name in action.devices], self.now)
            else:
                return action

    def tune(self, action: object, secs: float = 0.02, gain: float = 0.5) -> None:
        assert isinstance(action, TuneDeployment)
        self.begin(action, action.secs + 50.0)
        baselines = {name: Baseline(secs, 1e-3) for name in action.devices}
        result = TuneDeploymentResult(
            tuned_secs=action.secs, secs=secs, log_gain=gain, version=1, published=True, baselines=baselines
        )
        self.retuner.tuned(action, result, self.now)

    def until_tuning(self) -> object:
        """Waits, and checks what is as it was, until something is tuned."""
        while not isinstance(action := self.until_work(), TuneDeployment):
            if isinstance(action, CheckVersion):
                self.check(action, 0.02)
            else:
                assert isinstance(action, Wait)
                assert math.isfinite(action.until)
                self.now = action.until
        return action

    def fail(self, action: object, secs: float) -> None:
        assert isinstance(action, TuneDeployment)
        self.begin(action, secs)
        self.retuner.tuned(action, TuneDeploymentResult(problem="no linker"), self.now)

    def check(self, action: object, network_secs: float) -> CheckVersion:
        assert isinstance(action, CheckVersion)
        self.begin(action, 20.0)
        pairs = tuple(Timed(network_secs, 1e-3) for _ in range(6))
        self.retuner.checked(action, CheckVersionResult(pairs), self.now)
        return action

    def only(self) -> Deployment:
        [each] = self.retuner.view.active()
        return each


def test_what_is_new_is_tuned_the_one_that_is_called_most_first() -> None:
    played = Played(Subject("rare", 10.0), Subject("often", 1e6))
    first = played.until_work()
    assert isinstance(first, TuneDeployment)
    assert (first.network, first.device_class, first.triggers) == ("often", "cpu", [Trigger.NEW_NETWORK])
    assert first.secs == 600.0
    played.tune(first)
    second = played.until_work()
    assert isinstance(second, TuneDeployment)
    assert second.network == "rare"


def test_a_trigger_that_has_waited_for_half_a_day_comes_first() -> None:
    played = Played(Subject("rare", 10.0), Subject("often", 1e6))
    played.until_work()
    each = played.retuner.view.deployment("rare", "cpu")
    assert each is not None
    each.pending = [type(each.pending[0])(Trigger.NEW_NETWORK, NOW - 13 * HOUR)]
    action = played.until_work()
    assert isinstance(action, TuneDeployment)
    assert action.network == "rare"


def test_it_stops_when_a_span_does_not_pay_back() -> None:
    played = Played(Subject("rare", 10.0))
    played.tune(played.until_work())
    action = played.until_work()
    assert isinstance(action, Wait)
    assert action.why == "nothing is worth doing"
    value = played.retuner.valuation.next_hour(played.only(), played.now)
    assert value.saved_secs > 0
    assert value.payback_days > 30
    assert "pays back in" in played.retuner.valuation.describe(value)


def test_what_pays_back_is_tuned_further_until_the_share_is_used() -> None:
    played = Played(Subject("often", 1e9), share=0.1)
    runs = 0
    while not isinstance(action := played.until_work(), Wait):
        assert isinstance(action, TuneDeployment)
        assert runs == 0 or "pays back" in action.why
        played.tune(action)
        runs += 1
    assert "its share of the time of cpu" in action.why
    # 8640 s of a day: one span is left for a trigger, and time to ask the devices.
    assert 8640 - 2 * 650 - 600 <= runs * 650 <= 8640 - 650
    played.digests["often"] = "second"
    played.now += 61.0
    action = played.until_work()
    assert isinstance(action, TuneDeployment)
    assert action.triggers == [Trigger.CHANGED_NETWORK]


def test_devices_are_used_in_their_hours_alone() -> None:
    played = Played(Subject("often", 1e9), share=1.0, hours=Hours(22 * HOUR, 6 * HOUR))
    action = played.until_work()
    assert isinstance(action, Wait)
    assert action.why == "outside of the hours in which devices may be used"
    played.day_secs = 22 * HOUR
    played.tune(played.until_work())
    played.day_secs = 6 * HOUR - 300.0  # a run would not end before the end of them
    action = played.until_work()
    assert isinstance(action, TuneDeployment)
    assert action.secs + 50.0 <= 300.0  # it is as short as what is left
    assert action.limit_secs <= 300.0


def test_a_share_that_is_too_small_is_told() -> None:
    played = Played(Subject("often", 1e9), share=0.001)
    action = played.until_work()
    assert isinstance(action, Wait)
    assert "too small for any run of often on cpu" in action.why
    assert action.until < math.inf  # the files are looked at meanwhile


def test_asking_that_has_become_slow_takes_half_of_the_share_and_no_more() -> None:
    played = Played(Subject("rare", 10.0), share=1.0, devices_every_secs=20.0)
    played.ask_secs = 30.0  # on a machine that is busy: longer than it is to be asked again
    played.tune(played.until_work())
    began, checks = played.now, 0
    while played.now < began + HOUR:
        action = played.until_work()
        if isinstance(action, CheckVersion):
            played.check(action, 0.02)
            checks += 1
        else:
            assert isinstance(action, Wait)
            played.now = action.until
    asked = [used for used in played.retuner.state.used if used.ended - used.began == 30.0 and used.began >= began]
    assert 0.25 * HOUR < 30.0 * len(asked) <= 0.5 * HOUR
    assert checks > 20


def test_a_changed_fingerprint_is_told_by_its_differences() -> None:
    played = Played(Subject("rare", 10.0))
    played.tune(played.until_work())
    played.origin = "driver 2"
    played.now += 6 * HOUR
    action = played.until_work()
    assert isinstance(action, TuneDeployment)
    assert action.triggers == [Trigger.CHANGED_FINGERPRINT]
    assert action.origin == "driver 2"
    assert any("driver 1 to driver 2" in event.text for event in played.retuner.state.events)


@pytest.mark.parametrize("second", [0.03, 0.02])
def test_a_slower_version_is_confirmed_on_another_device(second: float) -> None:
    played = Played(Subject("rare", 10.0), devices=2)
    played.tune(played.until_work())
    played.now += 6 * HOUR
    first = played.check(played.until_work(), 0.03)
    confirming = played.check(played.until_work(), second)
    assert confirming.device != first.device
    action = played.until_work()
    if second == 0.03:
        assert isinstance(action, TuneDeployment)
        assert action.triggers == [Trigger.SLOWER]
        assert played.only().lost_log == pytest.approx(math.log(1.5))
    else:
        assert isinstance(action, Wait)
        assert played.only().odd == {first.device: Finding.SLOWER}
        assert any(f"look at {first.device}" in event.text for event in played.retuner.state.events)


def test_a_baseline_of_a_slow_hour_is_taken_anew() -> None:
    played = Played(Subject("rare", 10.0))
    played.tune(played.until_work(), secs=0.04)
    played.now += 6 * HOUR
    played.check(played.until_work(), 0.02)
    assert played.only().baselines["d0"].network_secs == 0.02
    played.now += 6 * HOUR
    played.check(played.until_work(), 0.03)  # which was nothing beside 0.04
    assert played.only().suspicion is not None


def test_where_there_is_no_other_device_the_same_one_confirms_it_later() -> None:
    played = Played(Subject("rare", 10.0))
    played.tune(played.until_work())
    played.now += 6 * HOUR
    played.check(played.until_work(), 0.03)
    action = played.until_work()
    assert isinstance(action, Wait)
    played.now += 900.0
    played.check(played.until_work(), 0.02)  # it was a matter of minutes
    assert isinstance(played.until_work(), Wait)
    assert not played.only().pending


def test_a_device_that_is_new_in_the_file_is_asked_at_once() -> None:
    played = Played(Subject("rare", 10.0))
    played.tune(played.until_work())
    rules = dataclasses.replace(played.retuner.rules, devices=("d0", "d1"))
    played.retuner = Retuner(rules, played.retuner.state, lambda then, now: f"{then} to {now}")
    action = played.next()
    assert isinstance(action, LookAtFiles)
    played.retuner.looked(played.digests, {}, played.now)
    action = played.next()
    assert isinstance(action, AskDevices)
    assert action.devices == ["d1"]
    played.begin(action, 10.0)
    played.retuner.asked([DeviceAnswer("d1", "gpu", "driver 1")], played.now)
    action = played.until_work()
    assert isinstance(action, TuneDeployment)
    assert (action.device_class, action.triggers) == ("gpu", [Trigger.NEW_CLASS])


def test_devices_that_are_lost_are_asked_more_often() -> None:
    played = Played(Subject("rare", 10.0), devices=2)
    played.tune(played.until_work())
    played.now += 6 * HOUR
    action = played.next()
    while not isinstance(action, AskDevices):
        played.retuner.looked(played.digests, {}, played.now)
        action = played.next()
    played.begin(action, 10.0)
    played.retuner.asked([DeviceAnswer("d0", "cpu", "driver 1"), DeviceAnswer("d1", problem="no route")], played.now)
    assert [device.problem for device in played.retuner.state.devices] == ["", "no route"]
    assert played.retuner.state.devices[1].device_class == "cpu"  # what it was stays known
    while not isinstance(action := played.next(), AskDevices) or action.devices != ["d1"]:
        if isinstance(action, LookAtFiles):
            played.retuner.looked(played.digests, {}, played.now)
        elif isinstance(action, CheckVersion):
            played.check(action, 0.02)
        else:
            assert isinstance(action, Wait)
            played.now = action.until
    assert played.now < NOW + 7 * HOUR


def test_what_fails_waits_longer_each_time_and_keeps_its_trigger() -> None:
    played = Played(Subject("rare", 10.0))
    for failures in (1, 2, 3):
        action = played.until_work()
        assert isinstance(action, TuneDeployment)
        played.begin(action, 100.0)
        played.retuner.tuned(action, TuneDeploymentResult(problem="no linker"), played.now)
        each = played.only()
        assert each.failures == failures
        assert each.retry_at == played.now + 600.0 * 2**failures
        assert each.pending
        played.now = each.retry_at + 1.0
    assert played.only().problem == "no linker"


def test_runs_that_fail_at_once_do_not_count_as_long_ones() -> None:
    played = Played(Subject("rare", 10.0))
    played.tune(played.until_work())
    played.digests = {"rare": "second"}
    played.now += HOUR
    for _ in range(12):
        played.fail(played.until_tuning(), 5.0)
    assert played.only().overhead_secs is not None
    assert played.only().overhead_secs <= 300.0
    played.tune(played.until_tuning())


def test_runs_that_took_too_long_are_tried_again_with_half_of_the_share() -> None:
    played = Played(Subject("rare", 10.0))
    for _ in range(8):
        action = played.until_tuning()
        assert isinstance(action, TuneDeployment)
        played.fail(action, action.limit_secs)
    played.tune(played.until_tuning())


def test_a_corrected_network_is_tried_at_once() -> None:
    played = Played(Subject("rare", 10.0))
    for _ in range(6):
        played.fail(played.until_tuning(), 5.0)
    failed = played.now
    assert played.only().retry_at > failed + 5 * HOUR
    played.digests = {"rare": "corrected"}
    action = played.until_tuning()
    assert isinstance(action, TuneDeployment)
    assert action.digest == "corrected"
    assert played.now <= failed + played.retuner.rules.files_every_secs


@pytest.mark.parametrize("secs", [3.0 * HOUR, 1e9])
def test_a_clock_that_is_set_forward_while_devices_are_asked_ends_nothing(secs: float) -> None:
    played = Played(Subject("rare", 10.0), devices=4)
    played.tune(played.until_tuning())
    played.now += 7 * HOUR
    played.ask_secs = secs
    played.until_work()
    played.ask_secs = 10.0
    played.digests = {"rare": "second"}
    since = played.now
    played.tune(played.until_tuning())
    assert played.now < since + 3 * 24 * HOUR


def test_a_clock_that_is_set_back_is_not_waited_for() -> None:
    played = Played(Subject("rare", 10.0))
    played.fail(played.until_tuning(), 5.0)
    played.now -= 365 * 24 * HOUR
    since = played.now
    played.tune(played.until_tuning())
    assert played.now < since + 2 * HOUR


def test_a_check_that_fails_is_not_repeated_at_once() -> None:
    played = Played(Subject("rare", 10.0))
    played.tune(played.until_work())
    played.now += 7 * HOUR
    played.check(played.until_work(), 0.04)  # suspicious: to be confirmed
    played.now += HOUR
    action = played.until_work()
    assert isinstance(action, CheckVersion)
    played.begin(action, 20.0)
    played.retuner.checked(action, CheckVersionResult(problem="out of memory"), played.now)
    assert isinstance(played.until_work(), Wait)


def test_what_becomes_free_in_the_share_is_for_a_trigger_that_waits_for_it() -> None:
    played = Played(Subject("first", 1e9), Subject("second", 10.0))
    played.tune(played.until_tuning())
    played.tune(played.until_tuning())
    while not isinstance(played.until_work(), Wait):  # the share of the day is used
        played.tune(played.until_tuning())
    played.digests = {"first": "first", "second": "changed"}
    while not isinstance(action := played.until_work(), TuneDeployment):
        assert isinstance(action, Wait)  # and no check of the first
        played.now = action.until
    assert action.network == "second"
