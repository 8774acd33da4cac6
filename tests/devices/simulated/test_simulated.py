from __future__ import annotations

import math

import pytest

from devices.protocol import Artifact, BuildRequest, MeasureRequest
from devices.simulated.recorded import RecordedCandidates
from devices.simulated.simulated import (
    Drift,
    Faults,
    Landscape,
    RecordedTimes,
    SimulatedBuilder,
    SimulatedDevice,
    SimulatedLink,
    SpeedSteps,
    VirtualClock,
)
from fleet_tune.base.domain import Candidate, Measurement, Outcome, StopRule
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError
from tests.helpers.tasks import make_candidate, make_task
from tests.helpers.virtual_devices import recorded, recorded_artifact

TASK = make_task(device_class="simulated")
CLASS = TASK.device_class


def candidate(*decisions: int) -> Candidate:
    return make_candidate(TASK, *decisions)


def artifact(of: Candidate | None) -> Artifact:
    built = SimulatedBuilder().build(BuildRequest(TASK, of))
    assert isinstance(built, Artifact)
    return built


def measure(device: SimulatedDevice, of: Candidate, best: float = math.inf) -> Measurement:
    device.add_oracle(artifact(None))
    return device.measure(MeasureRequest(artifact(of), best))


def test_run_times_follow_the_landscape() -> None:
    landscape = Landscape(best_secs=2e-3)
    device = SimulatedDevice(CLASS, landscape=landscape, noise=0.0, speed=2.0)
    expected = landscape.run_secs(candidate(4, 8)) / 2
    assert measure(device, candidate(4, 8)).cost_secs == expected
    assert landscape.run_secs(candidate(4, 8)) >= 2e-3
    assert landscape.run_secs(candidate(4, 8)) != landscape.run_secs(candidate(8, 4))


def test_the_same_seed_gives_the_same_measurements() -> None:
    def run(seed: int) -> list[tuple[float, ...]]:
        device = SimulatedDevice(CLASS, seed=seed)
        return [measure(device, candidate(i, 3)).run_secs for i in range(5)]

    assert run(1) == run(1) != run(2)


def test_time_is_virtual_and_counts_every_run() -> None:
    device = SimulatedDevice(CLASS, noise=0.0, landscape=Landscape(best_secs=0.1))
    measured = measure(device, Candidate(TASK.id, 0, "s", ()))
    # One warm-up run, ten batches of one run, one run to check the output.
    assert device.elapsed_secs == pytest.approx(1.2)
    assert measured.measure_secs == pytest.approx(1.2)


def test_too_slow_is_a_timeout() -> None:
    device = SimulatedDevice(CLASS, landscape=Landscape(best_secs=20.0))
    measured = measure(device, candidate(1))
    assert (measured.outcome, device.elapsed_secs) == (Outcome.RUN_TIMEOUT, StopRule().timeout_secs)


def test_faults_come_at_their_rate_and_stay_with_the_candidate() -> None:
    faults = Faults(rates={Outcome.RUN_ERROR: 0.2, Outcome.WRONG_OUTPUT: 0.1})
    device = SimulatedDevice(CLASS, faults=faults, seed=3)
    first = [measure(device, candidate(i)).outcome for i in range(1000)]
    assert [measure(device, candidate(i)).outcome for i in range(1000)] == first
    assert 150 < first.count(Outcome.RUN_ERROR) < 250
    assert 60 < first.count(Outcome.WRONG_OUTPUT) < 140


def test_a_device_can_be_lost_for_good() -> None:
    device = SimulatedDevice(CLASS, faults=Faults(lost_after=2))
    outcomes = [measure(device, candidate(i)).outcome for i in range(4)]
    assert outcomes == [Outcome.OK, Outcome.OK, Outcome.DEVICE_LOST, Outcome.DEVICE_LOST]


@pytest.mark.parametrize("outcome", [Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT])
def test_builds_fail_on_request(outcome: Outcome) -> None:
    builder = SimulatedBuilder(faults=Faults({candidate(1).id: outcome}))
    failed = builder.build(BuildRequest(TASK, candidate(1), timeout_secs=7.0))
    assert isinstance(failed, Measurement)
    assert failed.outcome is outcome
    assert failed.build_secs == (7.0 if outcome is Outcome.BUILD_TIMEOUT else 0.5)
    assert isinstance(builder.build(BuildRequest(TASK, candidate(2))), Artifact)
    assert isinstance(builder.build(BuildRequest(TASK, None)), Artifact)


def test_a_drifting_device_slows_down_towards_its_factor() -> None:
    drift = Drift(2.0, settles_secs=10.0, begins_secs=5.0)
    assert (drift.at(0.0), drift.at(5.0)) == (1.0, 1.0)
    assert drift.at(15.0) == pytest.approx(2.0 - math.exp(-1.0))
    assert drift.at(1e6) == pytest.approx(2.0)
    clock = VirtualClock()
    device = SimulatedDevice(CLASS, noise=0.0, landscape=Landscape(best_secs=0.1), drift=drift, clock=clock)
    cool, cool_probe = measure(device, Candidate(TASK.id, 0, "s", ())), device.probe_secs()
    clock.advance(1e6)
    hot, hot_probe = measure(device, Candidate(TASK.id, 0, "s", ())), device.probe_secs()
    assert cool.cost_secs == pytest.approx(0.1)
    assert hot.cost_secs == pytest.approx(0.2)
    # The probe tells the drift.
    assert hot_probe / cool_probe == pytest.approx(2.0)


def test_a_device_may_have_several_speeds() -> None:
    speeds = SpeedSteps(((1.0, 2.0), (3.0, 0.5)))
    assert [speeds.at(secs) for secs in (0.0, 0.99, 1.0, 2.99, 3.0, 1e6)] == [1.0, 1.0, 2.0, 2.0, 0.5, 0.5]
    again = SpeedSteps(((0.0, 1.0), (1.0, 1.4)), period_secs=2.0)
    assert [again.at(secs) for secs in (0.5, 1.5, 2.5, 3.5)] == [1.0, 1.4, 1.0, 1.4]
    clock = VirtualClock()
    device = SimulatedDevice(CLASS, noise=0.0, landscape=Landscape(best_secs=1e-3), drift=speeds, clock=clock)
    before = device.probe_secs()
    clock.advance(1.0)
    assert device.probe_secs() == pytest.approx(2 * before)


def test_a_slow_link_takes_its_time_and_changes_no_result() -> None:
    link = SimulatedLink(round_trip_secs=0.2, bytes_per_sec=1e5, round_trips=5, library_bytes=50_000)
    assert link.secs == pytest.approx(5 * 0.2 + 0.5)
    near, far = SimulatedDevice(CLASS), SimulatedDevice(CLASS, link=link)
    fast, slow = measure(near, candidate(3)), measure(far, candidate(3))
    assert slow.run_secs == fast.run_secs
    assert slow.measure_secs - fast.measure_secs == pytest.approx(1.5)
    assert far.ping() == 0.2


def test_an_outage_loses_what_runs_into_it_and_ends_by_itself() -> None:
    clock = VirtualClock()
    device = SimulatedDevice(CLASS, faults=Faults(outages=((10.0, 20.0),)), landscape=Landscape(0.1), clock=clock)
    long = Candidate(TASK.id, 0, "s", ())  # takes over a second
    assert measure(device, long).outcome is Outcome.OK
    clock.advance(9.5 - clock.now_secs)
    assert measure(device, long).outcome is Outcome.DEVICE_LOST
    clock.advance(15.0 - clock.now_secs)
    with pytest.raises(DeviceUnreachableError):
        device.probe_secs()
    clock.advance(20.0 - clock.now_secs)
    assert device.probe_secs() > 0
    assert measure(device, long).outcome is Outcome.OK


def test_a_device_may_answer_and_its_probe_fail() -> None:
    device = SimulatedDevice(CLASS, faults=Faults(probe_fails=((0.0, 1.0),)))
    device.ping()
    with pytest.raises(ProbeError):
        device.probe_secs()


def test_devices_of_a_fleet_share_a_clock() -> None:
    clock = VirtualClock(100.0)
    devices = [SimulatedDevice(CLASS, seed=seed, clock=clock) for seed in (1, 2)]
    spent = sum(measure(device, candidate(2)).measure_secs for device in devices)
    assert clock.now_secs == pytest.approx(100.0 + spent)
    assert devices[0].elapsed_secs + devices[1].elapsed_secs == pytest.approx(spent)


def test_run_times_may_come_from_a_dataset() -> None:
    device = SimulatedDevice(CLASS, landscape=RecordedTimes(RecordedCandidates(recorded())), noise=0.0, speed=0.5)
    device.add_oracle(recorded_artifact(oracle=True))
    measured = device.measure(MeasureRequest(recorded_artifact("ok"), math.inf))
    assert measured.cost_secs == pytest.approx(2 * 1.05e-3)  # recorded: 1.0 and 1.1 ms, on a device of speed 1
    for unknown in (recorded_artifact("crash"), recorded_artifact("ok", number=7)):
        failed = device.measure(MeasureRequest(unknown, math.inf))
        assert (failed.outcome, failed.detail) == (Outcome.RUN_ERROR, "no run time is known")
