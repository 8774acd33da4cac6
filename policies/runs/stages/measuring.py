"""The measuring stage: which device measures what next, and what a lost device means for the candidates on it.

A device gets work only while :mod:`policies.measuring.health` allows it: it answers, its probe has run, it is not in
quarantine, and people want it used. Every batch is leased: what a device stores after its lease has ended is refused.
"""

from __future__ import annotations

import enum
import itertools
import statistics
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.base.device_state import Admin, Connectivity, Health
from fleet_tune.base.domain import Candidate, Measurement, Outcome
from fleet_tune.base.errors import DevicesLostError
from policies.measuring import health
from policies.measuring.run_limit import run_limit
from policies.runs.commands import Abort, Command, Log, Measure, ProbeDevice, RecordFailure, RestartDevice
from policies.runs.events import BatchLost, BatchMeasured, DeviceProbed, DeviceProbeFailed, DeviceUnreachable
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.stages.pace import Pace
from policies.runs.tasks import OracleState, TaskTrials, Trial, killed
from policies.runs.times.timers import Timers

# Loading and unloading: beside what the rule allows.
_SPARE_SECS = 5.0


class Work(enum.Enum):
    """What a device does."""

    NOTHING = enum.auto()
    CHECK = enum.auto()
    BATCH = enum.auto()
    SHOOT_OUT = enum.auto()


@dataclass(slots=True)
class Lane:
    """One device as the run sees it. ``batch``: the trials on it under the lease ``epoch``, given at ``leased_secs``.
    ``detail``: what was wrong with it last. ``interruptions``: how often the process that owns it was ended since it
    measured something."""

    device_id: str
    device_class: str
    work: Work = Work.NOTHING
    epoch: int = 0
    leased_secs: float = 0.0
    batch: list[Trial] = field(default_factory=list)
    check_due_secs: float = float("-inf")
    rests_until: float = float("-inf")
    detail: str = ""
    interruptions: int = 0
    vitals: Mapping[str, float] = field(default_factory=dict)


class MeasureStage:
    """The devices of a run with the queue of built candidates of each class."""

    def __init__(
        self,
        plan: RunPlan,
        fleet: Fleet,
        tasks: Mapping[str, TaskTrials],
        pace: Pace,
        timers: Timers,
        classes: Collection[str],
    ) -> None:
        """``classes``: of the tasks; devices of other classes have no work and are left alone."""
        self.lanes: dict[str, Lane] = {}
        self._plan = plan
        self._fleet = fleet
        self._tasks = tasks
        self._pace = pace
        self._timers = timers
        self._built: dict[str, deque[Trial]] = {}
        # Devices with nothing to do, the one that has been so for the longest first.
        self._idle: dict[str, dict[str, None]] = {}
        self._members: Counter[str] = Counter()  # devices by class
        self._leased: Counter[str] = Counter()  # devices with a lease, by class
        self._on_devices: Counter[str] = Counter()  # candidates on them
        self._unchecked: dict[str, list[Trial]] = {}  # built trials of tasks whose oracle is not, by task id
        self._returned: set[str] = set()  # candidates that were put back; one of them may have been stored after all
        self._given_up: list[tuple[Trial, Measurement]] = []
        self._hopeless_since: dict[str, float] = {}  # classes of which no device can work
        self._deserted_since: dict[str, float] = {}  # classes without any device
        self._candidate_secs = dict(plan.candidate_secs)
        self.awaited_classes = set(plan.awaited_classes)  # for which the network is just being prepared
        self._tuning = True
        for device_class in classes:
            self.add_class(device_class)
        for device_id, device_class in plan.devices.items():
            if device_class in classes:
                self.open_lane(device_id, device_class)

    # What others see -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Built candidates that wait for a device."""
        return sum(map(len, self._built.values())) + sum(map(len, self._unchecked.values()))

    @property
    def measuring(self) -> bool:
        """Whether a device has a lease."""
        return self._leased.total() > 0

    @property
    def vitals(self) -> dict[str, Mapping[str, float]]:
        """What each device told of its hardware last."""
        return {each: lane.vitals for each, lane in self.lanes.items() if lane.vitals}

    def usual_speed(self, device_class: str) -> float:
        """The usual speed of the devices of a class as a multiple of that at which their seconds are counted."""
        lanes = (lane for lane in self.lanes.values() if lane.device_class == device_class)
        speeds = [lane.vitals["usual_speed"] for lane in lanes if "usual_speed" in lane.vitals]
        return statistics.median(speeds) if speeds else 1.0

    def idle_devices(self, device_class: str) -> list[str]:
        """Devices that could be given work now."""
        return list(self._idle.get(device_class, ()))

    def add_class(self, device_class: str) -> None:
        """A class more has tasks."""
        self._built[device_class] = deque()
        self._idle[device_class] = {}

    def open_lane(self, device_id: str, device_class: str) -> None:
        """A device of a class that has tasks is there from now on."""
        if not self._members[device_class]:
            self._deserted_since.pop(device_class, None)
        self._members[device_class] += 1
        self.lanes[device_id] = Lane(device_id, device_class)

    def close_lane(self, device_id: str, now: float) -> None:
        """The device is of the fleet no more. What it works on is tried again elsewhere."""
        lane = self.lanes.pop(device_id)
        self._members[lane.device_class] -= 1
        if not self._members[lane.device_class]:
            self._hopeless_since.pop(lane.device_class, None)  # another one would begin anew
        self._idle[lane.device_class].pop(device_id, None)
        if lane.work in (Work.BATCH, Work.SHOOT_OUT):
            batch = lane.batch
            self._ended(lane)
            self._fleet.happened(device_id, health.Released(lane.epoch), now)
            self._put_back(lane.device_class, batch)

    def deserted(self, now: float) -> tuple[list[str], list[Command]]:
        """The classes whose devices have all left the fleet, for longer than a device is waited for; and what people
        are told of one whose last has left just now."""
        given_up: list[str] = []
        commands: list[Command] = []
        patience_secs = self._plan.device_patience_secs
        for device_class in self._built:
            if self._members[device_class]:
                continue
            if device_class not in self._deserted_since:
                self._deserted_since[device_class] = now
                # With a space, which the name of no device has.
                self._timers.at(now + patience_secs, f"class {device_class}")
                text = f"no device of class {device_class} is left: its tasks wait {patience_secs:.0f} s for another"
                commands.append(Log("warning", text))
            elif now >= self._deserted_since[device_class] + patience_secs:
                given_up.append(device_class)
        return given_up, commands

    def occupied(self, device_class: str) -> tuple[int, int, int]:
        """Devices of the class with a lease and with nothing to do, and the candidates on the former."""
        return self._leased[device_class], len(self._idle[device_class]), self._on_devices[device_class]

    # The queue -------------------------------------------------------------------------------------------------------

    def add(self, trial: Trial) -> None:
        """A trial is built. It waits for its task's oracle first, without which nothing can be checked."""
        task = self._tasks[trial.candidate.task_id]
        if task.oracle is OracleState.READY:
            self._built[task.device_class].append(trial)
        else:
            self._unchecked.setdefault(trial.candidate.task_id, []).append(trial)

    def may_check(self, task_id: str) -> None:
        """The task's oracle is built."""
        self._built[self._tasks[task_id].device_class].extend(self._unchecked.pop(task_id, ()))

    def end_tuning(self) -> None:
        """Nothing more of the queues is wanted. From now on devices that work are not asked for their probe, and no
        missing device ends the run."""
        self._tuning = False
        self._unchecked.clear()
        for queue in self._built.values():
            queue.clear()

    def drop_task(self, task_id: str) -> list[Trial]:
        """The task's candidates cannot be checked: none of those that wait is measured."""
        device_class = self._tasks[task_id].device_class
        queue = self._built[device_class]
        self._built[device_class] = deque(trial for trial in queue if trial.candidate.task_id != task_id)
        queued = [trial for trial in queue if trial.candidate.task_id == task_id]
        return queued + self._unchecked.pop(task_id, [])

    def recorded(self, candidate: Candidate) -> None:
        """A record of the candidate is durable. Where it was put back because nobody knew, it need not run again."""
        if candidate.id in self._returned:
            self._returned.discard(candidate.id)
            device_class = self._tasks[candidate.task_id].device_class
            queue = self._built[device_class]
            self._built[device_class] = deque(trial for trial in queue if trial.candidate.id != candidate.id)

    # A device becomes usable -----------------------------------------------------------------------------------------

    def look_at(self, device_id: str, now: float) -> list[Command]:
        """One step of a device that does nothing towards work: a check, or its place among the idle ones."""
        lane = self.lanes[device_id]
        idle = self._idle[lane.device_class]
        if lane.work is not Work.NOTHING:
            return []
        state = self._fleet[device_id]
        due = self._tuning and now >= lane.check_due_secs
        if health.may_work(state) and not due:
            idle.setdefault(device_id)
            return self._hopeful(lane.device_class)
        idle.pop(device_id, None)
        if now < lane.rests_until:
            return []
        if state.admin is not Admin.ACTIVE:
            lane.detail = f"it is in {state.admin}"
            return self._give_up_if_hopeless(lane, now)
        if state.health is Health.QUARANTINED:
            if not self._fleet.quarantine_is_over(device_id, now):
                lane.detail = "it is quarantined"
                self._timers.at(self._fleet.quarantine_ends(device_id), device_id)
                return self._give_up_if_hopeless(lane, now)
            self._fleet.happened(device_id, health.ProbationBegun(), now)
        lane.work = Work.CHECK
        return [ProbeDevice(device_id)]

    def checked(self, event: DeviceProbed | DeviceProbeFailed | DeviceUnreachable, now: float) -> list[Command]:
        """A check has ended."""
        device_id = event.device_id
        lane = self.lanes.get(device_id)
        if lane is None or lane.work is not Work.CHECK:
            return []
        lane.work = Work.NOTHING
        if isinstance(event, DeviceProbed):
            lane.check_due_secs = now + self._plan.check_every_secs
            self._timers.at(lane.check_due_secs, device_id)
            self._fleet.happened(device_id, health.Joined(), now)
            self._fleet.happened(device_id, health.ProbePassed(event.secs), now)
            return []
        commands: list[Command] = []
        lane.detail = event.detail
        if isinstance(event, DeviceProbeFailed):
            self._fleet.happened(device_id, health.Joined(), now)
            self._fleet.happened(device_id, health.ProbeFailed(event.detail), now)
        else:
            commands.append(Log("warning", f"device {device_id}: {event.detail}"))
            if event.outside:
                self._interrupted(lane, event.detail, now)
            else:
                self._fleet.happened(device_id, health.Lost(event.detail), now)
            if event.hangs:
                commands.append(RestartDevice(device_id))
        lane.rests_until = now + self._plan.flow.retry_secs
        self._timers.at(lane.rests_until, device_id)
        return [*commands, *self._give_up_if_hopeless(lane, now)]

    def _give_up_if_hopeless(self, lane: Lane, now: float) -> list[Command]:
        if not self._tuning:
            return []
        device_class = lane.device_class
        why = self._fleet.hopeless(device_class)
        if not why:
            return self._hopeful(device_class)
        commands: list[Command] = []
        patience_secs = self._plan.device_patience_secs
        since = self._hopeless_since.get(device_class, now)
        if device_class not in self._hopeless_since:
            self._hopeless_since[device_class] = now
            told = f"no device of class {device_class} can work: {lane.detail} ({why})"
            others = "its tasks wait for one" if self._others_go_on(device_class) else ""
            then = others or f"the run ends in {patience_secs:.0f} s unless one comes back"
            commands.append(Log("warning", f"{told}; {then}"))
        if now < since + patience_secs:
            self._timers.at(since + patience_secs, lane.device_id)
            return commands
        if self._others_go_on(device_class) or not self._is_wanted(device_class):
            self._timers.at(now + patience_secs / 8, lane.device_id)
            return commands
        waited_secs = now - since
        error = DevicesLostError(
            f"no device of class {device_class} has answered for {waited_secs:.0f} s: {lane.detail} ({why})",
            "bring one back and run the same command again: it resumes",
        )
        return [*commands, Abort(error)]

    def _hopeful(self, device_class: str) -> list[Command]:
        """A device of the class works, or will be tried again by itself."""
        if self._hopeless_since.pop(device_class, None) is None:
            return []
        return [Log("notice", f"a device of class {device_class} answers again")]

    def _others_go_on(self, device_class: str) -> bool:
        """Whether another class has a device that can work, and something to tune: the run has not come to a stop."""
        if self.awaited_classes:
            return True
        stuck = {device_class} | self._hopeless_since.keys() | self._deserted_since.keys()
        others = {task.device_class for task in self._tasks.values()} - stuck
        return any(self._is_wanted(each) for each in others)

    def _is_wanted(self, device_class: str) -> bool:
        """Whether there is something to tune for the class."""
        of_class = (task for task in self._tasks.values() if task.device_class == device_class)
        return any(task.in_flight or task.wanted(1) for task in of_class)

    # A batch ---------------------------------------------------------------------------------------------------------

    def start(self, now: float, builders_idle: bool) -> list[Command]:
        """Give every idle device a batch for which there is enough work."""
        commands: list[Command] = []
        for device_class, idle in self._idle.items():
            queue = self._built[device_class]
            while idle and queue:
                device_id = next(iter(idle))
                batch = self._next_batch(device_id, builders_idle)
                if not batch:
                    break
                commands.append(self._measure(device_id, batch, now))
            if idle and any(trial.losses for trial in queue):  # what the first one may not try, another may
                for device_id in itertools.islice(list(idle), 1, None):
                    batch = self._next_batch(device_id, builders_idle)
                    if batch:
                        commands.append(self._measure(device_id, batch, now))
        return commands

    def _next_batch(self, device_id: str, builders_idle: bool) -> list[Trial]:
        """Artifacts for one quiet window, as many as fit into its time and no more than leaves the other idle devices
        their share; several, since the builders of a shared host stand still meanwhile. None while there are too few
        and more are being built. Taken from the queue."""
        lane = self.lanes[device_id]
        queue = self._built[lane.device_class]
        least = self._pace.least_batch(lane.device_class)
        if len(queue) < least and not builders_idle and not any(trial.alone for trial in queue):
            return []
        share = -(-len(queue) // len(self._idle[lane.device_class]))
        most = min(max(least, share), self._pace.batch(device_id, lane.device_class))
        least = min(least, most)
        usable: list[str] | None = None
        batch: list[Trial] = []
        looked_at: list[Trial] = []
        while queue and len(batch) < most:
            trial = queue.popleft()
            looked_at.append(trial)
            if trial.losses:
                usable = self._fleet.usable(lane.device_class) if usable is None else usable
                if not health.may_try(trial.losses, device_id, usable):
                    continue
            if trial.alone:
                if not batch:
                    batch = [trial]
                    break
                continue
            batch.append(trial)
        if not batch or (len(batch) < least and not batch[0].alone and not builders_idle):
            batch = []
        taken = {trial.candidate.id for trial in batch}
        queue.extendleft(trial for trial in reversed(looked_at) if trial.candidate.id not in taken)
        return batch

    def _measure(self, device_id: str, batch: list[Trial], now: float) -> Measure:
        limits = {each: self.limit_secs(device_id, each) for each in {trial.candidate.task_id for trial in batch}}
        # Measured, once more, and against the incumbent.
        measuring_secs = sum(7 * limits[trial.candidate.task_id] + 4 * _SPARE_SECS for trial in batch)
        # An oracle runs on both kinds of inputs, and once more with twice the time where that was not enough.
        oracles_secs = 6 * sum(self._tasks[each].oracle_secs for each in limits)
        deadline_secs = self._plan.window_wait_secs + measuring_secs + oracles_secs
        epoch = self.lease(device_id, Work.BATCH, deadline_secs, now)
        self.lanes[device_id].batch = batch
        self._on_devices[self.lanes[device_id].device_class] += len(batch)
        incumbents = {each: self._tasks[each].ranking.incumbent for each in limits}
        candidates = tuple(trial.candidate for trial in batch)
        return Measure(device_id, epoch, candidates, incumbents, deadline_secs, limits)

    def limit_secs(self, device_id: str, task_id: str) -> float:
        """Seconds that measuring a candidate of the task may take on the device."""
        candidate_secs = self._candidate_secs.get(device_id, self._plan.rule.timeout_secs)
        return run_limit(candidate_secs, self._tasks[task_id].floor_secs)

    def restrict(self, device_id: str, candidate_secs: float | None) -> None:
        """A device more, with the limit of its candidates (see :attr:`RunPlan.candidate_secs`)."""
        self._candidate_secs.pop(device_id, None)
        if candidate_secs is not None:
            self._candidate_secs[device_id] = candidate_secs

    def lease(self, device_id: str, work: Work, secs: float, now: float) -> int:
        """An idle device begins ``work`` that takes ``secs`` at most; the epoch of its lease."""
        lane = self.lanes[device_id]
        self._idle[lane.device_class].pop(device_id)
        lane.work, lane.leased_secs = work, now
        self._leased[lane.device_class] += 1
        lane.epoch = self._fleet.lease(device_id, secs, now)
        return lane.epoch

    def holds(self, device_id: str, epoch: int) -> bool:
        """Whether the device still works under this lease: else the answer is late."""
        lane = self.lanes.get(device_id)
        return lane is not None and lane.work in (Work.BATCH, Work.SHOOT_OUT) and lane.epoch == epoch

    def released(self, device_id: str, now: float) -> None:
        """The work under the device's lease is done."""
        lane = self.lanes[device_id]
        self._ended(lane)
        self._fleet.happened(device_id, health.Released(lane.epoch), now)

    def _ended(self, lane: Lane) -> None:
        self._leased[lane.device_class] -= 1
        self._on_devices[lane.device_class] -= len(lane.batch)
        lane.work = Work.NOTHING
        lane.batch = []

    def measured(self, event: BatchMeasured, now: float) -> list[Command]:
        """What a report means for the device and for the candidates."""
        device_id = event.device_id
        lane = self.lanes[device_id]
        batch = lane.batch
        lane.vitals = event.vitals
        lost = [trial for trial in batch if event.outcomes.get(trial.candidate.id) is Outcome.DEVICE_LOST]
        ended = [trial for trial in batch if event.outcomes.get(trial.candidate.id) is Outcome.KILLED]
        measured = len(event.outcomes) - len(lost) - len(ended)
        if measured:
            lane.interruptions = 0
            self._fleet.happened(device_id, health.Measured(measured), now)
            if not lost:
                waited_secs = sum(event.waits.values())
                self._pace.measured(device_id, lane.device_class, measured, now - lane.leased_secs - waited_secs)
        untried = [trial for trial in batch if trial.candidate.id not in event.outcomes]
        self._killed(lane.device_class, ended, "that measured it", f"on device {device_id}")
        if event.detail:
            return self.lost(device_id, [*lost, *untried], lost[0] if lost else None, event.detail, now)
        self.released(device_id, now)
        self._put_back(lane.device_class, untried)
        return []

    def postponed(self, device_id: str, now: float) -> None:
        """Nothing of what was given to the device was begun: others may have it."""
        lane = self.lanes[device_id]
        batch = lane.batch
        self.released(device_id, now)
        self._put_back(lane.device_class, batch)

    def batch_lost(self, event: BatchLost, now: float) -> list[Command]:
        """The process that owns the device is ours: nobody knows at which candidate it ended, if for one at all. One
        that was ended from outside is held against nobody."""
        commands: list[Command] = [Log("warning", f"device {event.device_id}: {event.detail}")]
        if event.hangs:
            commands.append(RestartDevice(event.device_id))
        lane = self.lanes[event.device_id]
        batch = lane.batch
        if event.outside:
            self._ended(lane)
            lane.detail = event.detail
            self._interrupted(lane, event.detail, now)
            self._killed(lane.device_class, batch, f"that owns device {event.device_id}", event.detail)
            return commands
        return commands + self.lost(event.device_id, batch, batch[0] if len(batch) == 1 else None, event.detail, now)

    def _interrupted(self, lane: Lane, detail: str, now: float) -> None:
        """The process that owns the device was ended. A device with which that happens again and again is taken for one
        that is lost: it rests for longer and longer."""
        lane.interruptions += self._fleet[lane.device_id].connectivity is Connectivity.ONLINE
        often = lane.interruptions > self._plan.flow.kills
        self._fleet.happened(lane.device_id, health.Lost(detail) if often else health.Interrupted(detail), now)

    def _killed(self, device_class: str, trials: Iterable[Trial], what: str, detail: str) -> None:
        """A process was ended from outside while it did ``what`` to these. They wait behind all others, since none of
        those is to wait for them; from the second time on each is measured alone, and in the end given up."""
        back = []
        for trial in trials:
            trial.kills += 1
            trial.alone = trial.kills > 1
            if trial.kills >= self._plan.flow.kills and self._is_under_way(trial):
                self._given_up.append((trial, killed(what, trial.kills, detail)))
            else:
                back.append(trial)
        self._put_back(device_class, back, behind=True)

    def drain_given_up(self) -> list[tuple[Trial, Measurement]]:
        """The trials that were given up since the last call, and why."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def lost(
        self, device_id: str, batch: Sequence[Trial], suspect: Trial | None, detail: str, now: float
    ) -> list[Command]:
        """The device was lost with ``batch`` on it. ``suspect``: what it was running; None where that is not known, and
        then each of the batch is measured alone from now on."""
        lane = self.lanes[device_id]
        self._ended(lane)
        lane.detail = detail
        self._fleet.happened(device_id, health.Lost(detail, suspect.candidate.id if suspect else ""), now)
        commands: list[Command] = []
        if suspect is None:
            for trial in batch:
                trial.alone = True
        else:
            suspect.losses.append(device_id)
            if health.is_poison(len(suspect.losses)):
                batch = [trial for trial in batch if trial is not suspect]
                commands.append(self._blame(suspect, detail, now))
        self._put_back(lane.device_class, batch)
        return commands

    def _blame(self, poison: Trial, detail: str, now: float) -> Command:
        """The candidate is recorded as a failure, and the devices that it took down are acquitted."""
        where = ", ".join(poison.losses)
        text = f"poison: its device was lost {len(poison.losses)} times ({where}): {detail}"
        for device_id in dict.fromkeys(poison.losses):
            self._fleet.happened(device_id, health.Acquitted(poison.candidate.id), now)
        return RecordFailure(poison.candidate, "", Measurement(Outcome.RUN_ERROR, detail=text))

    def _put_back(self, device_class: str, trials: Iterable[Trial], *, behind: bool = False) -> None:
        """At the head of the queue, if not ``behind``: what lost a device is tried again soon, so that the blame does
        not stay with the wrong one for long."""
        back = [trial for trial in trials if self._is_under_way(trial)]
        self._returned |= {trial.candidate.id for trial in back}
        if behind:
            self._built[device_class].extend(back)
        else:
            self._built[device_class].extendleft(reversed(back))

    def _is_under_way(self, trial: Trial) -> bool:
        """Whether it has no record yet."""
        return trial.candidate.id in self._tasks[trial.candidate.task_id].under_way
