"""Our records in TVM's own hands, and the schedules of its databases in ours."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from devices.metaschedule.files import RECORDS, WORKLOADS
from devices.metaschedule.schedules import DatabaseSchedules
from devices.metaschedule.writing import write_database
from devices.networks.frontend import load_network
from devices.networks.tasks.extraction import normal_form
from devices.networks.tasks.lowering import LoweredNetwork, import_network
from devices.protocol import decode_task, encode_task
from devices.sketches.programs import is_rewritten
from devices.sketches.spaces import DesignSpace, apply_trace, parse_module
from devices.sketches.traces import full_text
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate, DeviceClass, Outcome, Record, Task
from fleet_tune.base.errors import RecordFileError
from fleet_tune.base.sketch import IMPORTED
from policies.space.sampling import sample
from tests.helpers.records import failed, make_record, ok
from tests.helpers.workloads import TARGETS

CLASS = DeviceClass("here", resolve_target(TARGETS["avx512"], 2))


@pytest.fixture(scope="module")
def lowered() -> LoweredNetwork:
    """A product that is fused with what follows, and a pooling that is not."""
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.MaxPool1d(4))
    found = import_network(load_network((network, (torch.zeros(4, 64),))), CLASS)
    kernels = [found.module[name] for name in found.workloads]
    assert {"op_pattern" in each.attrs for each in kernels} == {False, True}
    return found


@pytest.fixture(scope="module")
def spaces(lowered: LoweredNetwork) -> list[tuple[Task, DesignSpace]]:
    return [(task, DesignSpace(task)) for task in lowered.tasks]


def records_of(task: Task, space: DesignSpace) -> list[Record]:
    """Two candidates of each sketch, the last ones the fastest."""
    made = []
    for sketch in space.undescribed:
        for row in sample(sketch, 2, np.random.default_rng(sketch.index)):
            candidate = Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row)))
            trace = space.schedule(candidate).trace
            made.append(make_record(candidate, ok(1e-3 / (1 + len(made))), trace=trace))
    return sorted(made, key=lambda each: each.measurement.rank_secs)


def applied(lowered: LoweredNetwork, folder: Path) -> dict[str, tvm.tirx.PrimFunc]:
    """What TVM makes of the network's kernels with a database, by the hash of their workloads."""
    with parse_target(CLASS.target), tvm.transform.PassContext(opt_level=3):
        module = relax.transform.MetaScheduleApplyDatabase(str(folder))(lowered.module)
    return {digest: module[name] for name, digest in lowered.workloads.items()}


def test_rewritten_convolutions_are_left_out(tmp_path: Path) -> None:
    found = import_network(load_network((torch.nn.Conv2d(32, 32, 3), (torch.zeros(1, 32, 18, 18),))), CLASS)
    task = next(task for task in found.tasks if task.workload.name.startswith("conv2d"))
    records = records_of(task, DesignSpace(task))
    plain = [record for record in records if not is_rewritten(record.trace)]
    assert 0 < len(plain) < len(records)
    assert write_database(tmp_path, "here", [(task, records)]) == len(plain)


def test_tvm_applies_the_same_best_schedules(
    lowered: LoweredNetwork, spaces: Sequence[tuple[Task, DesignSpace]], tmp_path: Path
) -> None:
    known = [(task, records_of(task, space)) for task, space in spaces]
    untrusted = dataclasses.replace(known[0][1][-1], measurement=ok(1e-9, verified=False))
    broken = dataclasses.replace(known[0][1][-2], measurement=failed(Outcome.RUN_ERROR))
    written = [(known[0][0], [*known[0][1][:-2], untrusted, broken]), *known[1:]]
    count = write_database(tmp_path, "here", written)
    assert count == sum(len(records) for _, records in known) - 1, "all but what nobody has compared and is the fastest"
    functions = applied(lowered, tmp_path)
    for task, records in written:
        ours = apply_trace(parse_module(task.workload.module), records[0].trace)["main"]
        theirs = functions[task.workload.hash]
        assert theirs.attrs["tirx.is_scheduled"]
        tvm.ir.assert_structural_equal(theirs.body, ours.body, map_free_vars=True)
    with pytest.raises(RecordFileError, match="has a MetaSchedule database already"):
        write_database(tmp_path, "here", written)


def test_what_we_wrote_comes_back(spaces: Sequence[tuple[Task, DesignSpace]], tmp_path: Path) -> None:
    (task, space), *_ = spaces
    records = records_of(task, space)
    write_database(tmp_path, "here", [(task, records)])
    with (tmp_path / RECORDS).open("a") as file:
        file.write('{"foreign": 1}\n[7, [[], [1.0], {}, []]]\n[0, [["GetS')
    with (tmp_path / WORKLOADS).open("a") as file:
        file.write("[1, 2]\n")
    source = DatabaseSchedules(tmp_path)
    (found,) = source.tasks()
    assert (found.id, found.device_class, found.workload.flop) == (task.id, task.device_class, task.workload.flop)
    (page,) = source.pages()
    assert [each.candidate for each in page] == [each.candidate for each in records]
    assert [each.measurement.raw_secs for each in page] == [each.measurement.rank_secs for each in records]
    assert not any(each.measurement.verified for each in page)
    for record in page:
        apply_trace(parse_module(task.workload.module), record.trace)
    numbers = [line.partition(": ")[0] for line in source.skipped]
    last = len(records) + 1  # the best is there twice: as TVM has a kernel that it did not fuse
    assert numbers == [f"{WORKLOADS} line 3", *(f"{RECORDS} line {last + at}" for at in (1, 2, 3))]


def test_a_schedule_of_no_sketch_becomes_a_sketch_of_its_own(
    spaces: Sequence[tuple[Task, DesignSpace]], tmp_path: Path
) -> None:
    task, _ = next(each for each in spaces if "matmul" in each[0].workload.name)
    schedule = Schedule(parse_module(task.workload.module), debug_mask="none")
    loops = schedule.get_loops(schedule.get_sblock("matmul"))
    factors = schedule.sample_perfect_tile(loops[-1], n=2, max_innermost_factor=16)
    schedule.split(loops[-1], factors)
    schedule.parallel(loops[0])
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    database.commit_workload(parse_module(task.workload.module))
    trace, other = full_text(schedule.trace), json.dumps([[["GetSBlock", [], ["other", "main"], ["b0"]]], []])
    with (tmp_path / RECORDS).open("a") as file:
        for text, secs in ((trace, 1e-3), (other, 2e-3)):
            file.write(json.dumps([0, [json.loads(text), [secs], json.loads(CLASS.target), None]]) + "\n")
    source = DatabaseSchedules(tmp_path, "here")
    assert source.own_sketches == 1
    assert [line.partition(": ")[0] for line in source.skipped] == [f"{RECORDS} line 2"]
    ((record,),) = source.pages()
    assert record.candidate.sketch_id.startswith(f"{IMPORTED}-")
    with_it = dataclasses.replace(task, imported=(record.trace,))
    assert decode_task(encode_task(with_it)) == with_it, "as children get it, who describe and build"
    space = DesignSpace(with_it)
    assert len(space.undescribed) == len(DesignSpace(task).undescribed) + 1
    built = space.schedule(record.candidate)
    ours = apply_trace(parse_module(task.workload.module), trace)["main"]
    assert normal_form(built.module["main"]).script() == normal_form(ours).script()
    for row in sample(space.sketches[-1], 3, np.random.default_rng(0)):
        other = Candidate(task.id, record.candidate.sketch, record.candidate.sketch_id, tuple(map(int, row)))
        assert "T.parallel" in space.schedule(other).module.script(), "the others of the sketch are schedules, too"
