"""The dispatch on fleets of simulated devices with faults, in virtual time: hours of a fleet's life in an instant."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from actors.board import Board, TaskTrials, Trial
from actors.dispatch import Dispatch
from actors.fleet_health import FleetHealth
from devices.protocol import Artifact, BuildRequest
from devices.simulated.simulated import Drift, Faults, Landscape, Link, SimulatedBuilder, SimulatedDevice, VirtualClock
from fleet_tune.device_state import Admin, Connectivity, DeviceEvent, DeviceState, Health
from fleet_tune.domain import Candidate, DeviceClass, Measurement, Outcome, StopRule, Task, Workload
from fleet_tune.errors import DevicesLostError
from policies.measuring import health
from policies.measuring.stopping import decide
from tests.helpers.virtual_time import VirtualDevice, run_virtual

CLASSES = ("server", "orin")


def task_of(device_class: str) -> Task:
    return Task(Workload(f"w-{device_class}", "matmul", 1e6, "{}"), DeviceClass(device_class, "{}"))


def candidate(device_class: str, number: int) -> Candidate:
    return Candidate(task_of(device_class).id, 0, "s", (number, 7))


@dataclass
class Setup:
    """One device: its class and what goes wrong with it."""

    device_class: str
    faults: Faults = field(default_factory=Faults)
    speed: float = 1.0
    link: Link = field(default_factory=Link)
    drift: Drift | None = None
    hangs_at: float | None = None


@dataclass
class Outcomes:
    """What a session left."""

    stored: dict[str, tuple[str, Measurement]]
    events: list[DeviceEvent]
    states: dict[str, DeviceState]
    devices: dict[str, VirtualDevice]
    secs: float = 0.0


def play(
    setups: Mapping[str, Setup],
    trials: int = 60,
    script: Mapping[float, Callable[[FleetHealth], None]] | None = None,
    kept: Mapping[str, DeviceState] | None = None,
    patience_secs: float = 120.0,
    pace_secs: float = 0.0,
) -> Outcomes:
    """Measure ``trials`` candidates of every class, one more every ``pace_secs``. ``script``: what happens at which
    virtual time. Raises what ends the session early."""

    async def session() -> Outcomes:
        loop = asyncio.get_running_loop()
        result = Outcomes({}, [], {}, {})
        classes = {name: setup.device_class for name, setup in setups.items()}
        tasks = {task_of(each).id: TaskTrials(task_of(each), 1e-9) for each in CLASSES}
        board = Board(tasks, CLASSES, None)

        async def keep(events: Sequence[DeviceEvent]) -> None:
            await asyncio.sleep(0.01)
            result.events.extend(events)

        async def blame(trial: Trial, measurement: Measurement) -> None:
            assert trial.candidate.id not in result.stored
            result.stored[trial.candidate.id] = ("", measurement)

        fleet = FleetHealth(classes, "run", keep, clock=loop.time)
        fleet.restore(kept or {})
        for name, setup in setups.items():
            clock = VirtualClock()
            simulated = SimulatedDevice(
                DeviceClass(setup.device_class, "{}"),
                landscape=Landscape(best_secs=0.02),
                decide=decide,
                speed=setup.speed,
                faults=setup.faults,
                link=setup.link,
                drift=setup.drift,
                clock=clock,
            )
            result.devices[name] = VirtualDevice(simulated, clock, result.stored, name, setup.hangs_at)
        dispatch = Dispatch(
            board,
            fleet,
            {name: (classes[name], device) for name, device in result.devices.items()},
            StopRule(),
            patience_secs,
            blame,
        )
        served = [each for each in CLASSES if each in classes.values()]
        for device_class in served:
            oracle = loop.create_future()
            oracle.set_result(built(device_class, None))
            board.oracles[task_of(device_class).id] = oracle

        async def arrive() -> None:
            for number in range(trials):
                for device_class in served:
                    trial = Trial(candidate(device_class, number), built(device_class, number))
                    board.built[device_class].append(trial)
                await board.notify()
                await asyncio.sleep(pace_secs)

        async def follow_script() -> None:
            for at, action in sorted((script or {}).items()):
                await asyncio.sleep(max(0.0, at - loop.time()))
                action(fleet)
                await board.notify()

        board.start()
        background = [asyncio.create_task(work) for work in (fleet.write(), arrive(), follow_script())]
        serving = [asyncio.create_task(dispatch.serve(name)) for name in setups]
        done = asyncio.create_task(board.until(lambda: len(result.stored) == trials * len(served)))
        try:
            await asyncio.wait([done, *serving], return_when=asyncio.FIRST_COMPLETED)
            for task in serving:
                if task.done():
                    task.result()
            result.secs = loop.time()
            board.stopping.set()
            await board.notify()
            await asyncio.gather(*serving)
            await fleet.flush()
        finally:
            for task in (*background, *serving, done):
                task.cancel()
        result.states = {name: fleet[name] for name in setups}
        return result

    return run_virtual(session())


def built(device_class: str, number: int | None) -> Artifact:
    of = None if number is None else candidate(device_class, number)
    artifact = SimulatedBuilder().build(BuildRequest(task_of(device_class), of))
    assert isinstance(artifact, Artifact)
    return artifact


def check_events(outcome: Outcomes) -> None:
    """What must hold of the kept events whatever happened."""
    before: dict[str, DeviceState] = {}
    for event in outcome.events:
        assert event.reason
        earlier = before.get(event.device_id)
        if earlier is not None:
            assert event.state.lease.epoch == earlier.lease.epoch + (event.kind == "leased")
        if event.kind == "leased":
            assert event.state.health is Health.GOOD
            assert event.state.connectivity is Connectivity.ONLINE
            assert event.state.admin is Admin.ACTIVE
        before[event.device_id] = event.state
    for name, device in outcome.devices.items():
        # Nothing ran without a lease of its own.
        leases = [e.state.lease.epoch for e in outcome.events if e.device_id == name and e.kind == "leased"]
        assert device.measured_under == leases == sorted(set(leases))


def kinds(outcome: Outcomes, device: str) -> list[str]:
    return [e.kind for e in outcome.events if e.device_id == device and e.kind not in ("leased", "released")]


def test_a_quiet_fleet_measures_everything_once() -> None:
    outcome = play({"server": Setup("server"), "orin-1": Setup("orin"), "orin-2": Setup("orin", speed=0.5)})
    check_events(outcome)
    assert len(outcome.stored) == 120
    assert kinds(outcome, "server") == ["joined", "probe_passed"]
    by_device = Counter(device for device, _ in outcome.stored.values())
    assert by_device["orin-1"] > 0 < by_device["orin-2"]
    assert all(state.word == "good" and not state.lease.held for state in outcome.states.values())


def test_an_outage_costs_its_time_and_no_record() -> None:
    outcome = play({"server": Setup("server", Faults(outages=((2.0, 40.0),)))})
    check_events(outcome)
    assert len(outcome.stored) == 60
    assert {m.outcome for _, m in outcome.stored.values()} == {Outcome.OK}
    assert outcome.secs > 40.0
    assert kinds(outcome, "server") == ["joined", "probe_passed", "lost", "joined", "probe_passed", "measured"]
    assert outcome.states["server"].losses == ()


def test_a_device_that_keeps_going_away_is_quarantined_for_longer_and_longer() -> None:
    # It answers for two seconds out of every three.
    outages = tuple((3.0 * k + 2.0, 3.0 * k + 3.0) for k in range(60))
    outcome = play({"a": Setup("orin", Faults(outages=outages)), "b": Setup("orin", speed=0.2)}, trials=400)
    check_events(outcome)
    assert len(outcome.stored) == 400
    quarantines = [e for e in outcome.events if e.device_id == "a" and "quarantined for" in e.reason]
    lengths = [e.state.until_unix_secs - e.unix_secs for e in quarantines]
    assert len(lengths) >= 2
    assert lengths == pytest.approx([health.probation_secs(at) for at in range(len(lengths))])
    # No candidate is blamed for it.
    assert {m.outcome for _, m in outcome.stored.values()} == {Outcome.OK}


def test_a_poison_candidate_is_tried_on_two_devices_and_blamed() -> None:
    poison = candidate("orin", 5)
    faults = Faults({poison.id: Outcome.DEVICE_LOST})
    outcome = play({"a": Setup("orin", faults), "b": Setup("orin", faults)})
    check_events(outcome)
    device, measurement = outcome.stored[poison.id]
    assert (device, measurement.outcome) == ("", Outcome.RUN_ERROR)
    assert measurement.detail.startswith("poison: its device was lost 2 times (")
    assert "a" in measurement.detail.partition("(")[2]
    assert "b" in measurement.detail.partition("(")[2]
    assert sum(m.outcome is Outcome.OK for _, m in outcome.stored.values()) == 59
    for name in ("a", "b"):
        assert kinds(outcome, name).count("lost") == 1
        assert "acquitted" in kinds(outcome, name)
        assert outcome.states[name].losses == ()


def test_poison_on_the_only_device_is_blamed_too() -> None:
    poisons = [candidate("server", number) for number in (3, 20, 41)]
    outcome = play({"only": Setup("server", Faults({each.id: Outcome.DEVICE_LOST for each in poisons}))})
    check_events(outcome)
    assert {outcome.stored[each.id][1].outcome for each in poisons} == {Outcome.RUN_ERROR}
    assert len(outcome.stored) == 60
    # Six losses, none of them its fault.
    assert outcome.states["only"].quarantines == 0


def test_a_lost_device_is_not_held_against_the_candidate_that_it_ran() -> None:
    outcome = play({"flaky": Setup("orin", Faults(outages=((1.0, 1000.0),))), "steady": Setup("orin")})
    check_events(outcome)
    assert {m.outcome for _, m in outcome.stored.values()} == {Outcome.OK}
    assert outcome.states["flaky"].word == "lost"


def test_a_probe_that_fails_keeps_the_work_away() -> None:
    broken = Faults(probe_fails=((0.0, 50.0),))
    outcome = play({"broken": Setup("orin", broken), "fine": Setup("orin", speed=0.1)}, trials=300, pace_secs=0.5)
    check_events(outcome)
    failed = [e for e in outcome.events if e.kind == "probe_failed"]
    assert len(failed) >= 3
    first_lease = next(e for e in outcome.events if e.device_id == "broken" and e.kind == "leased")
    assert first_lease.unix_secs >= 50.0


def test_a_process_that_hangs_is_restarted_and_its_batch_measured_again_one_by_one() -> None:
    outcome = play({"only": Setup("server", hangs_at=1.0)})
    check_events(outcome)
    assert outcome.devices["only"].restarts == 1
    assert len(outcome.stored) == 60
    # Signs of life were missed; nobody waited for the deadline of the batch.
    assert outcome.secs < 120.0
    assert {m.outcome for _, m in outcome.stored.values()} == {Outcome.OK}


def order(admin: Admin) -> Callable[[FleetHealth], None]:
    return lambda fleet: fleet.happened("a", health.Ordered(admin, "test"))


def test_a_device_is_drained_while_the_run_goes_on_and_comes_back() -> None:
    script = {10.0: order(Admin.DRAINING), 30.0: order(Admin.ACTIVE)}
    outcome = play({"a": Setup("orin"), "b": Setup("orin")}, trials=200, script=script, pace_secs=0.25)
    check_events(outcome)
    assert len(outcome.stored) == 200
    leased = [e.unix_secs for e in outcome.events if e.device_id == "a" and e.kind == "leased"]
    assert any(at < 10.0 for at in leased)
    assert not any(10.0 <= at < 30.0 for at in leased)
    assert any(at >= 30.0 for at in leased)
    words = [e.state.word for e in outcome.events if e.device_id == "a"]
    assert "maintenance" in words
    assert outcome.states["a"].word == "good"


def test_a_retired_device_gets_nothing_more() -> None:
    outcome = play({"a": Setup("orin"), "b": Setup("orin")}, script={0.0: order(Admin.RETIRED)})
    assert {device for device, _ in outcome.stored.values()} == {"b"}


def test_a_fleet_whose_devices_are_all_out_ends_with_what_is_wrong() -> None:
    gone = Faults(outages=((0.0, 1e9),))
    with pytest.raises(DevicesLostError, match=r"class orin has answered for \d+ s.*a is joining, b is retired"):
        play(
            {"a": Setup("orin", gone), "b": Setup("orin")},
            script={0.0: lambda fleet: fleet.happened("b", health.Ordered(Admin.RETIRED, ""))},
            patience_secs=60.0,
        )


def test_a_device_joins_later() -> None:
    late = Faults(outages=((0.0, 20.0),))
    outcome = play({"late": Setup("orin", late), "b": Setup("orin", speed=0.5)}, trials=300, pace_secs=0.2)
    check_events(outcome)
    assert outcome.events[-1].state.lease.epoch > 0
    assert any(device == "late" for device, _ in outcome.stored.values())
    assert kinds(outcome, "late")[0] == "joined"  # not lost: it had never been there


def test_the_next_run_begins_where_the_last_one_ended() -> None:
    first = play({"a": Setup("orin")})
    epoch = first.states["a"].lease.epoch
    again = play({"a": Setup("orin")}, kept=first.states)
    assert min(e.state.lease.epoch for e in again.events if e.kind == "leased") == epoch + 1


def test_a_drifting_device_is_asked_for_its_probe_every_few_minutes() -> None:
    outcome = play({"warm": Setup("server", drift=Drift(1.5, 100.0))}, trials=60, pace_secs=10.0)
    assert len(outcome.stored) == 60
    assert outcome.secs > 500.0


@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_every_candidate_is_recorded_once(seed: int) -> None:
    rng = random.Random(seed)

    def outages() -> tuple[tuple[float, float], ...]:
        begins = sorted(rng.uniform(0.0, 300.0) for _ in range(rng.randint(0, 8)))
        return tuple((begin, begin + rng.uniform(0.1, 30.0)) for begin in begins)

    def setup(device_class: str) -> Setup:
        poison = {candidate(device_class, rng.randrange(150)).id: Outcome.DEVICE_LOST for _ in range(2)}
        rates = {Outcome.RUN_ERROR: 0.05, Outcome.RUN_TIMEOUT: 0.02, Outcome.WRONG_OUTPUT: 0.05}
        faults = Faults(poison, rates, outages=outages())
        link = Link(rng.choice([0.0, 0.05, 0.5]), rng.choice([1e5, 1e8]))
        hangs_at = rng.choice([None, rng.uniform(0.0, 100.0)])
        return Setup(device_class, faults, rng.uniform(0.2, 2.0), link, Drift(rng.uniform(1.0, 2.0)), hangs_at)

    fleet = {f"{each}-{at}": setup(each) for each in CLASSES for at in range(rng.randint(1, 3))}
    outcome = play(fleet, trials=150, pace_secs=rng.choice([0.0, 1.0]), patience_secs=1e6)
    check_events(outcome)
    assert len(outcome.stored) == 300
    for _, measurement in outcome.stored.values():
        assert measurement.outcome is not Outcome.DEVICE_LOST
