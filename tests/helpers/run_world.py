"""A world for :class:`policies.runs.state.RunState` in virtual time: it carries out the commands, and things go wrong.

No Ray, no event loop, no waiting: events lie in a heap by their time, and hours of a fleet's life pass in an instant.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections import Counter
from dataclasses import dataclass

from fleet_tune.base.device_state import DeviceEvent, DeviceState, Lease
from fleet_tune.base.domain import Measurement, Outcome, Record, Task
from fleet_tune.base.errors import FleetTuneError
from policies.runs import commands as to_do
from policies.runs import events as ev
from policies.runs.phase import Phase
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.state import RunState
from policies.search.bandits import TaskBandit
from tests.helpers.world_checks import Bounds, check_leases
from tests.helpers.world_devices import Device, task_of, within
from tests.helpers.world_drivers import Drivers
from tests.helpers.world_recorder import Recorder
from tests.helpers.world_searcher import Searcher
from tests.helpers.world_settings import Settings, timeouts_of
from tests.helpers.world_time import Timeline


@dataclass
class World(Settings):
    """A run, and all that it commands. ``records``, ``events`` (of devices): all that are durable. ``measured_under``,
    ``met``, ``probes``, ``runs``: see :class:`tests.helpers.world_drivers.Drivers`."""

    def __post_init__(self) -> None:
        classes = dict.fromkeys(device.device_class for device in self.devices.values())
        self.tasks = tuple(self.tasks) or tuple(task_of(each) for each in classes)
        self._joined: dict[str, bool] = dict.fromkeys(self.joins, False)  # classes: whether they are in the run
        self._there = {name: "" if name in self.appear else each.device_class for name, each in self.devices.items()}
        for name in self.added:
            del self._there[name]
        self._answered = {name for name in self.devices if name not in (*self.appear, *self.added)}
        self._time = Timeline()
        plan = self.plan = self._first_plan()
        self.flow = plan.flow
        self.state = RunState(plan, TaskBandit(self.seed))
        members = Counter(device.device_class for device in self.devices.values())
        self._bounds = Bounds(plan.flow, members, len(self.tasks), self.builders)
        self.events: list[DeviceEvent] = []
        self.restarts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.error: FleetTuneError | None = None
        self.finished = False
        self.built: set[str] = set()
        self.built_ever: set[str] = set()
        self.losses = 0
        self._rng = rng = random.Random(self.seed)
        self._recorder = recorder = Recorder(self, self._time, rng, self._happens)
        self.records = recorder.records
        self._searcher = Searcher(self, self._time, rng, self._happens, lambda: recorder.durable)
        self._drivers = drivers = Drivers(self, self._time, rng, recorder, self.built)
        self.measured_under, self.met = drivers.measured_under, drivers.met
        self.probes, self.runs = drivers.probes, drivers.runs

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._time.now

    def _first_plan(self) -> RunPlan:
        return RunPlan(
            run_id=self.run_id,
            tasks=tuple(
                self._planned_task(task, -1.0) for task in self.tasks if self._joined.get(task.device_class.name, True)
            ),
            devices={
                name: device_class if self._joined.get(device_class, True) else ""
                for name, device_class in self._there.items()
            },
            builders=self.builders,
            limits=self.limits,
            rule=self.rule,
            flow=self.flow,
            device_patience_secs=self.patience_secs,
            check_every_secs=self.check_every_secs,
            timeouts={name: timeouts_of(secs) for name, secs in self.candidate_secs.items() if name in self._there},
            build_timeout_secs=self.build_timeout_secs,
        )

    def _planned_task(self, task: Task, now: float) -> PlannedTask:
        return PlannedTask(
            task,
            self._rules(task.id, now),
            self.floor_secs,
            self.oracle_run_secs,
            settled=self.settled.get(task.id, ""),
            confirmation_trials=self._confirmation_trials(task.id, now),
            late=task.device_class.name in self.joins,
        )

    def _class_joins(self, device_class: str) -> None:
        """The network is prepared for the class, or turns out not to be what can be prepared."""
        tasks = [task for task in self.tasks if task.device_class.name == device_class]
        if device_class in self.unprepared or self.state.phase > Phase.TUNING:  # or it comes too late
            tasks = []
        self._joined[device_class] = bool(tasks)
        self._happens(ev.ClassAdded(device_class, tuple(self._planned_task(each, self.now) for each in tasks)))
        for name, device in self.devices.items():
            if device.device_class == device_class and name in self._answered:
                self._answers(name)

    def _answers(self, name: str) -> None:
        """A device that was waited for answers; it is used when its class is in the run."""
        device_class = self.devices[name].device_class
        self._answered.add(name)
        if self._joined.get(device_class, True) and not self._is_left(name):
            self._there[name] = device_class
            self._happens(ev.DeviceAnswered(name, device_class))

    def _builders_leave(self) -> None:
        """Those with the first numbers; others come a second later."""
        self._happens(ev.BuildersLeft(tuple(range(self.builders))))
        come = range(self.builders, 2 * self.builders)
        self._time.after(1.0, lambda: self._happens(ev.BuildersAdded(tuple(come))))

    def _is_left(self, name: str) -> bool:
        return self.leave.get(name, math.inf) <= self.now

    def _is_added(self, name: str) -> None:
        self._there[name] = ""
        state = next((each.state for each in reversed(self.events) if each.device_id == name), DeviceState())
        secs = self.candidate_secs.get(name)
        self._happens(ev.DeviceAdded(name, state, timeouts=None if secs is None else timeouts_of(secs)))

    def _leaves(self, name: str) -> None:
        self._there.pop(name, None)
        self._happens(ev.DeviceLeft(name, "it is no longer in the fleet file"))

    def _rules(self, task_id: str, now: float) -> tuple[str, ...] | None:
        """Return the sketch rules of a task as known by ``now``."""
        if self.described_at.get(task_id, -1.0) > now:
            return None
        return () if task_id in self.left_out & self.described_at.keys() else ("rule",)

    def _confirmation_trials(self, task_id: str, now: float) -> int:
        """Return the confirmation trials of a task, as known by ``now``."""
        return self.confirmation_trials.get(task_id, 0) if self.described_at.get(task_id, math.inf) <= now else 0

    # Play -------------------------------------------------------------------------------------------------------------

    def play(self, most_events: int = 200_000) -> World:
        """Until the run is over. AssertionError where nothing could ever happen again, or it does not end."""
        for at, event in self.script.items():
            self._time.later(at, event)
        for at in self.scheduler_lost_at:
            self._time.later(at, self._scheduler_is_lost)
        for at in self.searcher_killed_at:
            self._time.later(at, self._searcher.killed)
        for at in self.recorder_killed_at:
            self._time.later(at, self._recorder.killed)
        for name, at in self.added.items():
            self._time.later(at, functools.partial(self._is_added, name))
        for name, at in (dict.fromkeys(self.added, 0.0) | self.appear).items():
            self._time.later(max(at, self.added.get(name, 0.0) + 1.0), functools.partial(self._answers, name))
        for name, at in self.leave.items():
            self._time.later(at, functools.partial(self._leaves, name))
        if self.builders_left_at < math.inf:
            self._time.later(self.builders_left_at, self._builders_leave)
        for device_class, at in self.joins.items():
            self._time.later(at, ev.ClassAwaited(device_class))
            self._time.later(at + self.prepare_secs, functools.partial(self._class_joins, device_class))
        for task_id, at in self.described_at.items():
            without = task_id in self.left_out
            self._time.later(
                at,
                ev.TaskSkipped(task_id)
                if without
                else ev.SketchesReady(task_id, ("rule",), self.confirmation_trials.get(task_id, 0)),
            )
        self._happens(ev.DevicesRestored(self.device_states, {}))
        self._recorder.announce()
        self._happens(ev.RecordsCaughtUp())
        for _ in range(most_events):
            if self.finished or self.error:
                return self
            happening = self._time.go_on(self.state.wake_secs)
            assert happening is not None, f"nothing is left that could ever happen, in phase {self.state.phase.name}"
            if callable(happening):
                happening()
            elif self.stall_secs:
                self._happens(happening, *self._time.meanwhile(self.stall_secs))
            else:
                self._happens(happening)
            self._bounds.check(self.state, self.now)
        raise AssertionError(f"no end after {most_events} events, in phase {self.state.phase.name} at {self.now} s")

    def check_end(self) -> None:
        """Check the end of a run that has ended by itself: nothing lost, nothing twice, nothing under way."""
        assert self.finished
        trials = self.trials()
        assert len({record.candidate.id for record in trials}) == len(trials)
        # The oracle of a task all of whose candidates did not build may come too late.
        wanted = any(job.candidate is not None for job in self.state._builds._jobs.values())
        assert not wanted or self.state._run_end.is_stop_requested or self.limits.time_budget_secs is not None
        for task in self.state.tasks.values():
            assert task.trials == sum(record.task_id == task.task.id for record in trials)
        for record in self.records:
            assert record.measurement.outcome.blames_candidate
        if not self.losses:  # a lease that nobody was told of may be given twice
            check_leases(self.events, self.measured_under)

    def trials(self) -> list[Record]:
        """The records of trials, without revisions."""
        return [record for record in self.records if record.revision == 0]

    def outcomes(self) -> Counter[Outcome]:
        """Count the trials by outcome."""
        return Counter(record.measurement.outcome for record in self.trials())

    def kinds(self, device_id: str) -> list[str]:
        """Return the kinds of a device's events, without leases."""
        kinds = [event.kind for event in self.events if event.device_id == device_id]
        return [kind for kind in kinds if kind not in ("leased", "released")]

    # Carry out --------------------------------------------------------------------------------------------------------

    def _happens(self, *events: ev.Event) -> None:
        for event in events:
            self.plan = self.plan.after(event, self.now)
        for command in self.state.handle_all(events, self.now):
            self._carry_out(command)

    def _carry_out(self, command: to_do.Command) -> None:
        match command:
            case to_do.Propose():
                self._searcher.propose(command)
            case to_do.Build():
                self._build(command)
            case to_do.ProbeDevice(device_id):
                self._drivers.probe(device_id)
            case to_do.Measure():
                self._drivers.measure(command)
            case to_do.ShootOut():
                self._drivers.shoot_out(command)
            case to_do.RestartDevice(device_id):
                self.restarts[device_id] += 1
            case to_do.RestartSearcher(task_id):
                self.restarts[task_id] += 1
            case to_do.RecordFailure(candidate, measurement):
                self._recorder.append_failure(self._recorder.record(candidate, "", measurement, ""))
            case to_do.StoreDeviceEvents(events):
                for event in events:
                    self.events.append(event)
                    self._recorder.lease(event.device_id, event.state.lease)
                self._time.after(self._recorder.durable_secs(), ev.DeviceEventsStored())
            case to_do.CatchUpRecords():
                self._recorder.catch_up()
            case to_do.Log(_, text):
                self.lines.append(text)
            case to_do.DropArtifacts(candidate_ids):
                self.built -= set(candidate_ids)
            case to_do.Finish():
                self.finished = True
            case to_do.Abort(error):
                self.error = error

    def _scheduler_is_lost(self) -> None:
        """With all that it waited for. The one that takes its place ends the leases, has the searchers forget what
        they proposed, and begins with what is durable."""
        if self.state._run_end.is_stop_requested or self.finished or self.error:
            return
        self.losses += 1
        others = (ev.AdminRequested, ev.StopRequested, ev.ClassAwaited, ev.SketchesReady, ev.TaskSkipped)
        self._time.keep(lambda happening: callable(happening) or isinstance(happening, others))
        self._recorder.scheduler_is_lost()
        progress = self.state.progress(self.now)
        states = dict(self.device_states) | {event.device_id: event.state for event in self.events}
        for name in self.devices:
            state = states.get(name, DeviceState())
            states[name] = dataclasses.replace(state, lease=Lease(epoch=state.lease.epoch + 1))
            self._recorder.lease(name, states[name].lease)
        self._searcher.begin_anew()
        self.built.clear()
        before = dataclasses.replace(
            self.plan.before,
            secs=max(self.now, 1e-3),
            notices=progress.notices,
            device_changes=progress.device_changes,
        )
        self.state = RunState(dataclasses.replace(self.plan, before=before), TaskBandit(self.seed))
        given = {at: each for at, each in self.script.items() if isinstance(each, ev.AdminRequested) and at <= self.now}
        orders = {given[at].device_id: (given[at].admin, given[at].reason) for at in sorted(given)}
        self._happens(ev.DevicesRestored(states, orders))
        self._recorder.tell_anew()
        self._happens(ev.RecordsCaughtUp())

    def _build(self, command: to_do.Build) -> None:
        secs = self.build_secs * self._rng.uniform(0.5, 1.5)
        secs += (
            self.oracle_secs if command.candidate is None else self.slow_builds.get(command.candidate.decisions[0], 0.0)
        )
        at = self.now + min(secs, command.timeout_secs)
        if command.builder % self.builders >= self.builders_that_start and within(self.starts_fail, self.now):
            self._time.after(0.1, ev.BuilderLost(command.builder, "it does not start", ev.BuilderLossCause.NOT_BEGUN))
            return
        if self.builders_absent and self._rng.random() < self.builders_absent:
            self._time.after(0.01, ev.BuilderLost(command.builder, "it is not there", ev.BuilderLossCause.ABSENT))
            return
        if self._rng.random() < self.builders_lost:
            self._time.later(at, ev.BuilderLost(command.builder, "no answer", ev.BuilderLossCause.JOB))
            return
        if self.builds_killed and self._rng.random() < self.builds_killed:
            self._time.later(at, ev.BuilderLost(command.builder, "its process ended", ev.BuilderLossCause.OUTSIDE))
            return
        failure = Measurement(Outcome.BUILD_ERROR, detail="it does not build")
        if secs > command.timeout_secs:
            failure = Measurement(Outcome.BUILD_TIMEOUT, build_secs=command.timeout_secs, detail="it takes too long")
            self._time.later(at, ev.Built(command.builder, failure))
            return
        if command.candidate is None:
            fails = command.task.workload.name in self.oracle_fails
        else:
            fails = command.candidate.decisions[0] in self.build_fails
        if not fails:
            name = command.task.id if command.candidate is None else command.candidate.id
            self.built.add(name)
            self.built_ever.add(name)
        self._time.later(at, ev.Built(command.builder, failure if fails else None))


def played(devices: dict[str, Device], **settings: object) -> World:
    """A run to its end, with nothing lost or doubled where that is no error."""
    world = World(devices, **settings).play()  # type: ignore[arg-type]
    if world.error is None:
        world.check_end()
    return world
