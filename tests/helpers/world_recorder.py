"""The recorder of a :class:`tests.helpers.run_world.World`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from fleet_tune.base.device_state import Lease
from fleet_tune.base.domain import Candidate, Measurement, Record
from policies.runs import events as ev
from tests.helpers.world_settings import RESTART_SECS, Settings
from tests.helpers.world_time import Timeline


class Recorder:
    """``records``: what is durable, or will be in a moment. ``happens``: is given each event of the run. A result that
    was measured under a lease that has ended is refused, and the same record is stored once."""

    def __init__(
        self, settings: Settings, time: Timeline, rng: random.Random, happens: Callable[[ev.Event], None]
    ) -> None:
        self._settings, self._time, self._rng, self._happens = settings, time, rng, happens
        self.records: list[Record] = list(settings.stored)
        self._uids = {record.uid for record in self.records}
        self._told = 0  # records that the run has been told of
        self._failures: dict[str, Record] = {}  # of the run's own making, on their way to the recorder
        self._epochs = {name: state.lease.epoch for name, state in settings.device_states.items()}
        self._held: dict[str, int] = {}
        self._back_secs = 0.0  # when its process is there again
        self._calls: list[Callable[[], None]] = []  # that wait for it

    @property
    def durable(self) -> set[str]:
        """Ids of the candidates that have a record."""
        return {record.candidate.id for record in self.records}

    def durable_secs(self) -> float:
        """Draw the seconds until something is durable."""
        secs = self._settings.recorder_secs * self._rng.uniform(0.5, 2.0)
        return max(0.0, self._back_secs - self._time.now) + secs

    def killed(self) -> None:
        """Be away for a while. Who calls meanwhile waits, each in its turn."""
        self._back_secs = self._time.now + RESTART_SECS
        self._time.later(self._back_secs, self._come_back)

    def _come_back(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:  # those wait again that another kill has met
            call()

    @property
    def _is_away(self) -> bool:
        return self._time.now < self._back_secs

    def lease(self, device_id: str, lease: Lease) -> None:
        if self._is_away:
            self._calls.append(lambda: self.lease(device_id, lease))
            return
        self._epochs[device_id] = lease.epoch
        self._held[device_id] = lease.epoch if lease.held else -1

    def record(
        self, candidate: Candidate, trace: str, measurement: Measurement, device_id: str, revision: int = 0
    ) -> Record:
        run_id = self._settings.run_id
        uid = f"{run_id}-{candidate.id}-{revision}"
        return Record(uid, run_id, candidate, trace, measurement, device_id, self._time.now, revision=revision)

    def append(self, records: Sequence[Record], device_id: str = "", epoch: int = 0) -> None:
        if self._is_away:
            self._calls.append(lambda: self.append(records, device_id, epoch))
            return
        if device_id and not (self._held.get(device_id) == epoch or epoch > self._epochs.get(device_id, 0)):
            return
        fresh = [record for record in records if record.uid not in self._uids]
        self._uids |= {record.uid for record in fresh}
        start = len(self.records) + 1
        fresh = [dataclasses.replace(record, seq=start + at_) for at_, record in enumerate(fresh)]
        self.records += fresh
        if fresh:
            self._time.after(self.durable_secs(), self.announce)

    def append_failure(self, record: Record) -> None:
        """One that the run makes itself, and that is lost with it unless it has come by then."""
        self._failures[record.uid] = record
        self._time.after(self.durable_secs(), lambda: self._failure_comes(record))

    def _failure_comes(self, record: Record) -> None:
        if self._failures.pop(record.uid, None) is not None:
            self.append([record])

    def scheduler_is_lost(self) -> None:
        """Lose half of the failures that the scheduler has sent, and what it waits for. The next one begins when the
        recorder is there."""
        self._calls.clear()
        self._back_secs = self._time.now
        sent = [record for record in self._failures.values() if self._rng.random() < 0.5]
        self._failures.clear()
        self.append(sent)

    def announce(self) -> None:
        """Everything that is durable is told now, the last records twice."""
        fresh = tuple(self.records[max(0, self._told - 2) :])
        self._told = len(self.records)
        self._happens(ev.RecordsCommitted(fresh))

    def catch_up(self) -> None:
        """Tell everything that was handed in by now."""
        if self._is_away:
            self._calls.append(self.catch_up)
            return
        self.announce()
        self._time.later(self._time.now, ev.RecordsCaughtUp())

    def tell_anew(self) -> None:
        """Tell all records to a scheduler that knows none."""
        self._told = 0
        self.announce()
