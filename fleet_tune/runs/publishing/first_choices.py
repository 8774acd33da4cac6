"""First choices of the analyzer, measured on a device for tasks that have no verified record after the tuning.

A short run does not reach every task, and all candidates of a task may have failed. A kernel without a schedule may
take a hundred times as long as with almost any schedule. The first choice of the analyzer is seldom far from good, and
takes a second to build and check.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from actors.processes.recorder import make_record
from actors.processes.searcher import group_observations, pools_of
from devices.builds.builder import BuildWorker
from devices.error_text import last_line
from devices.protocol import BuildRequest, BuildResult, Device, MeasureRequest
from fleet_tune.base.config.fleet_file import DeviceConfig, MeasureConfig
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.domain import UNKNOWN_SPREAD, Candidate, Measurement, Outcome, Record, StopRule, Task
from fleet_tune.base.records.stores.reader import RecordReader, split_task_id
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.fleet.device_access import opened
from fleet_tune.runs.preparing.ready_tasks import ReadyTasks
from policies.measuring.adaptive_stopping import following
from policies.search.methods import method_named
from policies.search.search import TaskSearch

BUDGET_SECS = 30.0
# Candidates of a task that are built in the first round, for all tasks, and in the second round, for tasks that still
# have no verified record.
_CHOICES = (1, 5)
_BUILD_SECS = 15.0


@dataclass(frozen=True)
class FirstChoices:
    """Measures the first choices of the analyzer for tasks without a record: a
    :data:`~fleet_tune.runs.publishing.incumbents.RecordSupplier`. The tasks with the largest share of the work come
    first. An error becomes a notice, and the tasks stay as they are."""

    entries: Mapping[str, SearchTask]
    """The tasks by their ids. A task without sketches is described when a record for it is requested."""
    device: DeviceConfig
    """The device that measures."""
    records: Path
    """The record store, to which no other process writes meanwhile."""
    artifacts: Path
    """The folder of artifacts that were built before."""
    seed: int
    measuring: MeasureConfig = field(default_factory=MeasureConfig)
    budget_secs: float = BUDGET_SECS
    """Seconds after which no candidate is begun."""
    progress: CompileProgress = field(default_factory=CompileProgress)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """The run of the records."""

    def __call__(self, task_ids: Sequence[str]) -> None:
        entries = [self.entries[each] for each in task_ids if each in self.entries]  # the other tasks have no sketch
        entries.sort(key=lambda entry: -entry.task.weight * entry.task.workload.flop)
        if not entries:
            return
        try:
            entries = self._described(entries)
            deadline = time.monotonic() + self.budget_secs
            opening = opened(self.device, self.measuring.realtime)
            with closing(_Builders(self.artifacts, deadline)) as builders, opening as device:  # they start side by side
                for count in _CHOICES:
                    entries = self._round(entries, count, deadline, device, builders)
        except Exception as error:  # the device is lost, say, or the disk full: the network does without first choices
            tasks = "1 task" if len(entries) == 1 else f"{len(entries)} tasks"
            self.progress.warn(f"no first choices for {tasks}: {last_line(error)}")

    def _described(self, entries: Sequence[SearchTask]) -> list[SearchTask]:
        """Return the tasks with their sketches. Tasks without any sketch are left out."""
        bare = [entry for entry in entries if not entry.sketches]
        if not bare:
            return list(entries)
        self.progress.report_step(f"describing {len(bare)} tasks that need a kernel after all")
        with closing(ReadyTasks(bare)) as coming:
            described = {ready.entry.task.id: ready.entry for ready in coming}
        return [entry for entry in (described.get(each.task.id, each) for each in entries) if entry.sketches]

    def _round(
        self, entries: Sequence[SearchTask], count: int, deadline: float, device: Device, builders: _Builders
    ) -> list[SearchTask]:
        """Measure ``count`` candidates of each task. Return the tasks that still have no verified record."""
        left = list(entries)
        # Few tasks at a time: nothing may be built while the device, which may be this machine, measures.
        for start in range(0, len(entries), len(builders)):
            if time.monotonic() >= deadline:
                break
            together = entries[start : start + len(builders)]
            names = ", ".join(entry.task.workload.name for entry in together)
            what = f"first choices of {names} ({start + len(together)} of {len(entries)} without a record)"
            self.progress.report_step(f"building the {what}")
            batch = [(entry, self._contenders(entry, count)) for entry in together]
            built = builders.build([(entry.task, list(revisions)) for entry, revisions in batch])
            self.progress.report_step(f"measuring the {what}")
            records = [
                record
                for (_, revisions), results in zip(batch, built, strict=True)
                for record in self._measured(results, revisions, device, deadline)
            ]
            with RecordStore(self.records) as store:
                store.append(records)
            found = {record.task_id for record in records if record.measurement.verified}
            left = [entry for entry in left if entry.task.id not in found]
        return left

    def _contenders(self, entry: SearchTask, count: int) -> dict[Candidate, int]:
        """Return candidates, each with the revision number of its next record: the fastest ones that ran and were not
        verified, because a wrong candidate was faster. If there are none, the candidates with which the search would
        begin, or continue after failed ones."""
        task = entry.task
        index = {sketch.id: sketch.index for sketch in entry.sketches}
        with RecordReader(self.records) as reader:
            records = reader.records_of(task.id)
        last = {record.candidate.id: record for record in records}
        unchecked = [record for record in last.values() if record.measurement.run_secs]
        unchecked = [record for record in unchecked if not record.measurement.verified]
        unchecked.sort(key=lambda record: record.measurement.cost_secs)
        known = [record for record in unchecked if record.candidate.sketch_id in index][:count]
        if known:
            return {
                replace(record.candidate, sketch=index[record.candidate.sketch_id]): record.revision + 1
                for record in known
            }
        rng = np.random.default_rng([self.seed, *task.id.encode()])
        method = method_named("fleet")
        search = TaskSearch(entry.sketches, task.workload.flop, entry.abstraction, method, rng, pools_of(entry))
        search.observe(group_observations(records, {task.id: index}).get(task.id, []))
        proposed = search.propose(count)
        return {each.candidate(task.id, entry.sketches[each.sketch].id): 0 for each in proposed}

    def _measured(
        self, results: Sequence[BuildResult], revisions: Mapping[Candidate, int], device: Device, deadline: float
    ) -> Iterator[Record]:
        """Yield the records of one task's candidates. There are none if its oracle does not build: no output could be
        checked."""
        if not results:
            return  # no time was left to build the oracle
        oracle, *others = results
        if isinstance(oracle, Measurement):
            return
        device.add_oracle(oracle)
        rule = self.measuring.applied_to(StopRule())
        best_secs = math.inf
        with RecordReader(self.records) as reader:
            speed = reader.speeds.shown().get(split_task_id(oracle.task_id)[1], 1.0)
        # There are fewer results than candidates if the time ended.
        for (candidate, revision), built in zip(revisions.items(), others, strict=False):
            if time.monotonic() >= deadline:
                return
            if isinstance(built, Measurement):
                trace, measured = "", built
            else:
                request = MeasureRequest(built, best_secs, following(rule, best_secs))
                trace, measured = built.trace, device.measure(request)
            if measured.outcome is Outcome.DEVICE_LOST:
                task = self.entries[oracle.task_id].task.workload.name
                self.progress.warn(f"no first choice for {task}: {measured.detail}")
                return
            if not measured.outcome.blames_candidate:
                continue
            if measured.verified:
                best_secs = measured.raw_secs
            if measured.outcome is Outcome.OK:  # without a probe the device counts as being as fast as usual
                measured = replace(measured, speed=speed, speed_error=UNKNOWN_SPREAD)
            yield make_record(candidate, trace, measured, self.run_id, self.device.name, revision)


class _Builders:
    """Warm build processes, one for each core that this process may use, up to four. They build until ``deadline``."""

    def __init__(self, artifacts: Path, deadline: float) -> None:
        count = min(4, usable_cpus())
        start_secs = max(1.0, deadline - time.monotonic())
        self._workers = [BuildWorker(artifacts, count, start_timeout_secs=start_secs) for _ in range(count)]
        for worker in self._workers:
            worker.start()  # while candidates are chosen
        self._deadline = deadline

    def __len__(self) -> int:
        return len(self._workers)

    def build(self, batch: Sequence[tuple[Task, Sequence[Candidate]]]) -> list[list[BuildResult]]:
        """Build the oracle and the candidates of each task, as far as there is time. There may be at most as many tasks
        as builders. Raises the error of a builder."""
        built: list[list[BuildResult]] = [[] for _ in batch]
        errors: list[Exception] = []

        def work(at: int) -> None:
            task, candidates = batch[at]
            try:
                for each in (None, *candidates):
                    left = self._deadline - time.monotonic()
                    if left <= 0:
                        return
                    result = self._workers[at].build(BuildRequest(task, each, min(_BUILD_SECS, left)))
                    if left < _BUILD_SECS and _timed_out(result):
                        return  # the common time ended: no fault of this candidate
                    built[at].append(result)
            except Exception as error:
                errors.append(error)

        # Daemon threads: an interrupted run does not wait for them.
        threads = [threading.Thread(target=work, args=(at,), daemon=True) for at in range(len(batch))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return built

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


def _timed_out(result: BuildResult) -> bool:
    return isinstance(result, Measurement) and result.outcome is Outcome.BUILD_TIMEOUT
