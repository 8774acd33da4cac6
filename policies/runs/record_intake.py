"""The intake of committed records into the state of a run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from fleet_tune.base.domain import Outcome, Record
from fleet_tune.base.results import THROTTLED_SHARE
from policies.runs.commands import Command, DropArtifacts, Log, RecordFailure
from policies.runs.stages.built_queue import BuiltQueue
from policies.runs.stages.task_finisher import TaskFinisher
from policies.runs.tasks import TaskTrials

_RATE_WINDOW_SECS = 20.0


class RecordIntake:
    """Takes in the records of the run and of earlier runs, each once, and counts them."""

    def __init__(self, run_id: str, tasks: Mapping[str, TaskTrials], queue: BuiltQueue, finisher: TaskFinisher) -> None:
        self.outcomes: Counter[Outcome] = Counter()  # of trials
        self.new_trials = 0  # of this run
        self._run_id = run_id
        self._tasks = tasks
        self._queue = queue
        self._finisher = finisher
        self._cursor = 0  # sequence number of the last record
        self._early: dict[str, list[Record]] = {}  # records of tasks that are not part of the run, or not yet
        self._recent: deque[float] = deque()  # seconds of the run at which its last trials were committed
        self._recording: set[str] = set()  # candidates whose failure is being made durable
        self._throttled: set[str] = set()  # devices whose throttling was reported
        self._slowed: set[str] = set()  # devices whose lowered clock was reported

    @property
    def is_recording(self) -> bool:
        """True while the record of a failure is not durable."""
        return bool(self._recording)

    def take(self, records: Sequence[Record], now: float) -> list[Command]:
        """Take in committed records, in the order of their sequence numbers; one may come twice."""
        commands: list[Command] = []
        for record in records:
            if record.seq <= self._cursor:
                continue  # read twice
            self._cursor = record.seq
            is_ours = record.run_id == self._run_id
            if record.revision == 0:
                self.outcomes[record.measurement.outcome] += 1
                if is_ours:
                    self.new_trials += 1
                    self._recent.append(now)
                    commands += self._tell_of_throttling(record) + self._tell_of_lower_clock(record)
            task = self._tasks.get(record.task_id)
            if task is None:
                self._early.setdefault(record.task_id, []).append(record)
                continue
            if is_ours:
                task.candidates.end(record.candidate.id)
                self._recording.discard(record.candidate.id)
                self._queue.drop_recorded(record.candidate)
            commands += self._learn(task, record)
        return commands

    def _tell_of_throttling(self, record: Record) -> list[Command]:
        share, device_id = record.measurement.throttled, record.device_id
        if share < THROTTLED_SHARE or device_id in self._throttled:
            return []
        self._throttled.add(device_id)
        text = (
            f"device {device_id} is throttled: the CPU quota of its control group stopped it in {share:.0%} of the "
            "periods of a measurement; its times are those of the quota (raise it, or give the device fewer threads)"
        )
        return [Log("warning", text)]

    def _tell_of_lower_clock(self, record: Record) -> list[Command]:
        causes, device_id = record.measurement.slowed_by, record.device_id
        if not causes or device_id in self._slowed:
            return []
        self._slowed.add(device_id)
        text = (
            f"the hardware of device {device_id} lowers its clock ({causes}): its times are corrected by its probe, "
            "which not every kernel follows (cool it, check its power supply, or choose a lower power mode)"
        )
        return [Log("warning", text)]

    def add_task(self, task: TaskTrials) -> list[Command]:
        """Take in the records of earlier runs for a task that joins."""
        return [command for record in self._early.pop(task.task.id, ()) for command in self._learn(task, record)]

    def _learn(self, task: TaskTrials, record: Record) -> list[Command]:
        unwanted = task.learn(record, is_ours=record.run_id == self._run_id)
        dropped = [DropArtifacts(unwanted)] if unwanted else []
        return [*dropped, *self._finisher.finish_if_complete(task)]

    def expect(self, commands: Iterable[Command]) -> None:
        """Wait for the records of the failures that these commands make durable."""
        # A candidate that has a record gets no second one, so nothing waits for it.
        self._recording |= {
            each.candidate.id
            for each in commands
            if isinstance(each, RecordFailure)
            and each.candidate.id not in self._tasks[each.candidate.task_id].candidates.recorded
        }

    def begin_rate(self) -> None:
        """Count the rate from now on: the records so far are those of earlier runs."""
        self._recent.clear()

    def records_per_sec(self, now: float) -> float:
        """Return the run's trials per second in the last ``_RATE_WINDOW_SECS``."""
        while self._recent and self._recent[0] < now - _RATE_WINDOW_SECS:
            self._recent.popleft()
        return len(self._recent) / min(_RATE_WINDOW_SECS, max(now, 1e-9))
