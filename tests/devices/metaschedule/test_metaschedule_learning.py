"""MetaSchedule's own databases, written by TVM, as candidates of ours."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tvm.s_tir import meta_schedule as ms

from devices.metaschedule.files import RECORDS
from devices.metaschedule.learning import assumed, read_database
from devices.networks.tasks.extraction import workload_hash
from devices.sketches.spaces import DesignSpace, parse_module
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass, Task
from fleet_tune.base.errors import TransferError
from policies.space.sampling import sample
from tests.helpers.workloads import TARGETS, task

TARGET = resolve_target(TARGETS["avx512"], 2)


@pytest.fixture(scope="module")
def space() -> tuple[Task, DesignSpace]:
    made = task("avx512", "matmul")
    known = dataclasses.replace(made.workload, hash=workload_hash(parse_module(made.workload.module)["main"]))
    of = Task(known, DeviceClass("here", TARGET))
    return of, DesignSpace(of)


def commit(folder: Path, of: Task, entries: list[tuple[str, list[float]]]) -> None:
    database = ms.database.JSONDatabase(work_dir=str(folder))
    workload = database.commit_workload(parse_module(of.workload.module))
    for trace, run_secs in entries:
        body = [json.loads(trace), run_secs, parse_target(TARGET).export(), None]
        database.commit_tuning_record(ms.database.TuningRecord.from_json(body, workload))


def test_what_tvm_wrote_comes_back_as_the_same_candidates(space: tuple[Task, DesignSpace], tmp_path: Path) -> None:
    of, designs = space
    written: dict[str, float] = {}
    entries = []
    for sketch in designs.sketches:
        for at, row in enumerate(sample(sketch, 2, np.random.default_rng(sketch.index))):
            candidate = Candidate(of.id, sketch.index, sketch.id, tuple(map(int, row)))
            secs = 1e-4 * (1 + sketch.index + 0.1 * at)
            written[candidate.id] = secs
            entries.append((designs.schedule(candidate).trace, [secs, secs]))
    commit(tmp_path, of, entries)
    imported = read_database(tmp_path, {})
    (data,) = imported.tasks
    assert imported.unmatched == 0
    assert data.task.workload.hash == of.workload.hash
    assert len(data) == len(written)
    assert sorted(data.cost_secs) == pytest.approx(sorted(written.values()), rel=1e-5)
    for at in range(len(data)):  # the decisions are those that were scheduled: each has the time it was given
        found = data.candidate(at)
        same = Candidate(of.id, found.sketch, found.sketch_id, found.decisions)
        assert data.cost_secs[at] == pytest.approx(written[same.id], rel=1e-5)


def test_failures_and_what_fits_no_sketch_are_told_apart(space: tuple[Task, DesignSpace], tmp_path: Path) -> None:
    of, designs = space
    sketch = designs.sketches[0]
    (row,) = sample(sketch, 1, np.random.default_rng(0))
    trace = designs.schedule(Candidate(of.id, 0, sketch.id, tuple(map(int, row)))).trace
    other = json.dumps([[["GetSBlock", [], ["c", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]], []])
    commit(tmp_path, of, [(trace, [1e10]), (other, [1e-3])])
    imported = read_database(tmp_path, {})
    (data,) = imported.tasks
    assert len(data) == 1
    assert not data.ok.any()
    assert imported.unmatched == 1


def test_the_numbers_of_a_known_device_are_taken(space: tuple[Task, DesignSpace], tmp_path: Path) -> None:
    of, designs = space
    sketch = designs.sketches[0]
    (row,) = sample(sketch, 1, np.random.default_rng(0))
    commit(tmp_path, of, [(designs.schedule(Candidate(of.id, 0, sketch.id, tuple(map(int, row)))).trace, [1e-3])])
    (alone,) = read_database(tmp_path, {}).tasks
    assert (alone.abstraction.kind, alone.abstraction.lanes, alone.abstraction.cores) == ("cpu", 16, 2)
    known = assumed(TARGET)
    (data,) = read_database(tmp_path, {alone.task.device_class.target: known}).tasks
    assert data.abstraction is known


def test_a_torn_line_is_told_with_its_number_and_skipped(space: tuple[Task, DesignSpace], tmp_path: Path) -> None:
    of, designs = space
    sketch = designs.sketches[0]
    (row,) = sample(sketch, 1, np.random.default_rng(0))
    commit(tmp_path, of, [(designs.schedule(Candidate(of.id, 0, sketch.id, tuple(map(int, row)))).trace, [1e-3])])
    with (tmp_path / RECORDS).open("a") as file:
        file.write('[0, [[["GetS')
    imported = read_database(tmp_path, {})
    assert imported.skipped == (f"{RECORDS} line 2: it is cut off, or not JSON",)
    assert sum(map(len, imported.tasks)) == 1
    (tmp_path / RECORDS).unlink()
    with pytest.raises(TransferError, match="cannot be read"):
        read_database(tmp_path, {})
