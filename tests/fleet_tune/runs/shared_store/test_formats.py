"""A store of two device classes in TVM's own format, and back: what a run makes of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tvm.s_tir import meta_schedule as ms

from devices.networks.tasks.extraction import workload_hash
from devices.sketches.spaces import DesignSpace, apply_trace, parse_module
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass, Limits, Task
from fleet_tune.base.records.datasets.sources import METASCHEDULE_FILES
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.search_task import SearchTask
from fleet_tune.cli import main as cli
from fleet_tune.runs.shared_store.lookup import look_up
from fleet_tune.runs.shared_store.upkeep import versions_now
from fleet_tune.runs.transfer.transfer_prior import read_source
from policies.space.sampling import sample
from tests.helpers.devices import CPU
from tests.helpers.records import make_record, ok
from tests.helpers.workloads import TARGETS, task

CLASSES = [
    DeviceClass("here", resolve_target(TARGETS["avx512"], 2)),
    DeviceClass("there", resolve_target(TARGETS["avx2"], 4)),
]


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    made = task("avx512", "matmul").workload
    known = dataclasses.replace(made, hash=workload_hash(parse_module(made.module)["main"]))
    return [Task(known, each) for each in CLASSES]


def test_what_a_store_has_goes_to_tvm_and_comes_back(
    tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, folder, other = tmp_path / "store.db", tmp_path / "tvm", tmp_path / "other.db"
    best: dict[str, str] = {}
    spaces = {of.id: DesignSpace(of) for of in tasks}
    with RecordStore(store) as opened:
        for of in tasks:
            opened.put_task(of)
            name = of.device_class.name
            opened.put_run(f"run {name}", {name: Origin(of.device_class.target, "a processor", 2, versions_now())})
            sketch = spaces[of.id].undescribed[-1]
            for at, row in enumerate(sample(sketch, 3, np.random.default_rng(len(best)))):
                candidate = Candidate(of.id, sketch.index, sketch.id, tuple(map(int, row)))
                trace = spaces[of.id].schedule(candidate).trace
                best[of.id] = trace
                record = make_record(candidate, ok(1e-3 / (1 + at)), trace=trace)
                opened.append([dataclasses.replace(record, run_id=f"run {name}")])
    assert cli.main(["records", "export", str(folder), "--format", "metaschedule", "--store", str(store)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"3 records of {name} written: {folder / name}" for name in ("here", "there")
    ]
    for of in tasks:
        module, target = parse_module(of.workload.module), parse_target(of.device_class.target)
        database = ms.database.JSONDatabase(work_dir=str(folder / of.device_class.name))
        found = database.query_ir_module(module, target, "main")
        assert found.script() == apply_trace(module, best[of.id]).script()
    with (folder / "there" / METASCHEDULE_FILES[1]).open("a") as file:
        file.write("[0, [[")
    assert cli.main(["records", "import", str(folder), "--store", str(other)]) == 0
    told = capsys.readouterr()
    assert told.out == "6 records new\n"
    assert told.err == f"skipped: there/{METASCHEDULE_FILES[1]} line 5: it is cut off, or not JSON\n"
    assert (
        cli.main(["records", "import", str(folder / "here"), "--class", "here", "--store", str(other), "--json"]) == 0
    )
    again = json.loads(capsys.readouterr().out)
    assert (again["records"], again["skipped"], again["own_sketches"]) == (0, 0, 0)
    learned = read_source(store)
    assert [len(data) for data in learned.tasks] == [3, 3], "of both classes, whose devices nothing is known of"
    assert [data.abstraction.cores for data in learned.tasks] == [2, 4]
    (here, _) = tasks
    origins = {"here": Origin(here.device_class.target, "another processor", 2, versions_now())}
    begun = look_up(other, [here], origins, Limits(task_trials=2), tmp_path / "none.db")
    assert begun.settled == frozenset()
    assert begun.confirmed == {here.id}, "as many trials as this run would make: the best are tried, and that is all"
    entry = begun.seeded(SearchTask(here, spaces[here.id].undescribed, CPU))
    assert len(entry.seeds) == 3
    sketch, decisions = entry.seeds[0]
    first = Candidate(here.id, sketch, entry.sketches[sketch].id, tuple(decisions))
    assert spaces[here.id].schedule(first).trace == best[here.id]
