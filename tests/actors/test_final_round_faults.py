"""What becomes of the shoot-outs of a run when a device hangs, goes away or is taken out meanwhile. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from actors.board import TaskTrials
from actors.final_round import FinalRound
from actors.fleet_health import FleetHealth
from actors.recorder import make_record
from devices.protocol import Artifact, BuildRequest
from devices.simulated.simulated import Faults, SimulatedBuilder, SimulatedDevice, VirtualClock
from fleet_tune.device_state import Admin, DeviceEvent
from fleet_tune.domain import Candidate, DeviceClass, Measurement, Outcome, StopRule, Task, Workload
from policies.measuring import health
from policies.measuring.stopping import decide
from tests.helpers.virtual_time import VirtualDevice, run_virtual

CLASS = DeviceClass("board", "{}")


def finished_task(name: str, weight: int) -> TaskTrials:
    """A task whose two candidates took the same time."""
    state = TaskTrials(Task(Workload(name, name, 1e6, "{}"), CLASS, weight), 1e-9)
    for number in range(2):
        candidate = Candidate(state.task.id, 0, "s", (number, 7))
        state.learn(make_record(candidate, "", Measurement(Outcome.OK, (1e-3,) * 3, verified=True), "run", "only"))
        state.artifacts[candidate.id] = built(state.task, candidate)
    return state


def built(task: Task, candidate: Candidate | None) -> Artifact:
    artifact = SimulatedBuilder().build(BuildRequest(task, candidate))
    assert isinstance(artifact, Artifact)
    return artifact


class Asked:
    """What ``make`` returns when it is awaited."""

    def __init__(self, make: Callable[[], Artifact]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, None, Artifact]:
        yield
        return self._make()


class Hold:
    """The final round of two tasks, ``first`` and ``second``, on one device. ``secs``: what it took."""

    def __init__(
        self,
        faults: Faults | None = None,
        hangs_at: float | None = None,
        meanwhile: Admin | None = None,
        joined: bool = True,
    ) -> None:
        self.first, self.second = finished_task("first", 2), finished_task("second", 1)
        self.secs = 0.0
        self._meanwhile = meanwhile
        self._joined = joined
        clock = VirtualClock()
        simulated = SimulatedDevice(CLASS, decide=decide, faults=faults, clock=clock)
        self.device = VirtualDevice(simulated, clock, {}, "only", hangs_at)
        run_virtual(self._hold())

    @property
    def met(self) -> list[str]:
        """The tasks whose candidates met."""
        tasks = {candidate_id: state for state in (self.first, self.second) for candidate_id in state.artifacts}
        return [tasks[ids[0]].task.workload.name for ids in self.device.met]

    async def _hold(self) -> None:
        async def keep(_events: Sequence[DeviceEvent]) -> None: ...

        clock = asyncio.get_running_loop().time
        self.fleet = FleetHealth({"only": CLASS.name}, "run", keep, clock=clock)
        if self._joined:
            self.fleet.happened("only", health.Joined())
            self.fleet.happened("only", health.ProbePassed(1e-3))
        devices = {"only": (CLASS.name, self.device)}
        final = FinalRound(self.fleet, [], devices, StopRule(), 60.0, lambda: False)
        states = [self.first, self.second]
        await final.hold(states, {state.task.id: Asked(partial(self._oracle, state.task)) for state in states})
        self.secs = clock()

    def _oracle(self, task: Task) -> Artifact:
        if self._meanwhile is not None:
            self.fleet.happened("only", health.Ordered(self._meanwhile, "moving the rack"))
        return built(task, None)


def test_every_task_has_its_shoot_out_the_heaviest_first() -> None:
    held = Hold()
    assert held.met == ["first", "second"]
    assert held.fleet["only"].word == "good"


def test_a_process_that_hangs_is_restarted_and_the_next_task_has_its_shoot_out() -> None:
    held = Hold(hangs_at=0.0)
    assert held.device.restarts == 1
    assert held.met == ["second"]
    assert held.secs < 60.0  # of a deadline of a quarter of an hour
    assert not held.fleet["only"].lease.held


def test_a_device_that_does_not_come_back_ends_the_round_and_not_the_run() -> None:
    held = Hold(Faults(outages=((0.0, 1e6),)))
    assert held.met == []
    assert held.fleet["only"].word == "lost"
    assert 30.0 <= held.secs < 60.0


def test_a_device_that_comes_back_serves_the_next_task() -> None:
    held = Hold(Faults(outages=((0.0, 10.0),)))
    assert held.met == ["second"]
    assert held.secs < 30.0


def test_a_device_that_people_take_out_meanwhile_is_left_alone() -> None:
    held = Hold(meanwhile=Admin.MAINTENANCE)
    assert held.met == []
    assert held.device.measured_under == []
    assert held.fleet["only"].word == "maintenance"


def test_a_device_that_had_no_time_to_join_does_so_now() -> None:
    held = Hold(joined=False)
    assert held.met == ["first", "second"]
    assert held.secs < 30.0
