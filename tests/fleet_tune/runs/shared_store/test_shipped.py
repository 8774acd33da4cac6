"""The records that come with fleet-tune: what a run takes of them, and how such a set is made."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.domain import DeviceClass, Limits, Record, Task
from fleet_tune.base.records.sharing.records_file import RecordsFile
from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, shared_store
from fleet_tune.base.records.stores.origin import Effort, Origin
from fleet_tune.base.results import FromStore
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch, Tile
from fleet_tune.cli import main as cli
from fleet_tune.runs.shared_store.lookup import StoreLookup, look_up
from fleet_tune.runs.shared_store.shipped import SHIPPED_PATH, ShippedRecords, shipped
from fleet_tune.runs.shared_store.upkeep import export
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task

STEPS = [
    ["GetSBlock", [], ["conv", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1"]],
    ["SamplePerfectTile", ["l1"], [2, 64], ["v2", "v3"]],
]
TRACE = json.dumps([[*STEPS, ["EnterPostproc", [], [], []]], [[2, [4, 8]]]])
ZEN = Origin('{"kind":"llvm","mcpu":"znver5","num-cores":2}', "an EPYC", 2, {"kernels": "then"})
XEON = Origin('{"kind":"llvm","mcpu":"sapphirerapids","num-cores":2}', "a Xeon", 2, {"kernels": "then"})
CARD = Origin('{"kind":"cuda","arch":"sm_90"}', "a Xeon", 2, {"kernels": "then"})
NOW = {"kernels": "now"}
CONV, CONV_2, DENSE = make_task("conv", "znver5-2"), make_task("conv2", "znver5-2", flop=2e6), make_task("dense")
LIMITS = Limits(time_budget_secs=30.0)


def on(task: Task, name: str) -> Task:
    return dataclasses.replace(task, device_class=DeviceClass(name, task.device_class.target))


def measured(task: Task, decisions: tuple[int, ...], cost_secs: float | None, run_id: str) -> Record:
    found = failed() if cost_secs is None else ok(cost_secs)
    made = make_record(make_candidate(task, *decisions), found, f"{run_id}-{task.id}-{decisions}", trace=TRACE)
    return dataclasses.replace(made, run_id=run_id)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """What three machines have found: of one convolution, and of a second one."""
    path = tmp_path / "team.db"
    with shared_store(path) as opened:
        for run_id, name, origin in (("z", "znver5-2", ZEN), ("x", "xeon", XEON), ("c", "card", CARD)):
            opened.put_run(run_id, {name: origin})
            for task in (CONV, CONV_2):
                opened.put_task(on(task, name))
            opened.put_efforts([Effort(on(CONV, name).id, run_id, secs, 9.0) for secs in (10.0, 30.0)])
        opened.add([measured(CONV, (at, 32 // at), 1e-3 * at, "z") for at in (1, 2, 4, 8)])
        opened.add([measured(CONV, (16, 2), None, "z"), measured(CONV_2, (8, 4), 2e-3, "z")])
        opened.add([measured(on(CONV, "xeon"), (2, 16), 5e-4, "x"), measured(on(CONV, "card"), (32, 1), 1e-5, "c")])
    return path


@pytest.fixture
def made(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The set that is made of these, in use."""
    path = tmp_path / "shipped.jsonl.gz"
    assert cli.main(["records", "export", str(path), "--keep-best", "3", "--store", str(store)]) == 0
    monkeypatch.setenv(SHIPPED_VARIABLE, str(path))
    return path


def begun(
    tmp_path: Path, task: Task, origin: Origin, limits: Limits = LIMITS, known: ShippedRecords | None = None
) -> StoreLookup:
    origins = {task.device_class.name: origin}
    return look_up(tmp_path / "own.db", [task], origins, limits, tmp_path / "none.db", known or shipped())


def seeds(found: StoreLookup, task: Task, extent: int = 32) -> tuple[list[tuple[int, ...]], int]:
    """What a search begins with, and how many of them are enough where one is right."""
    entry = seeded(found, task, extent)
    return [decisions for _, decisions in entry.seeds], entry.confirmation_trials


def seeded(found: StoreLookup, task: Task, extent: int) -> SearchTask:
    sketch = Sketch(0, "tiles", json.dumps(STEPS), (Tile(extent, 2, 64),), ())
    return found.seeded(SearchTask(task, (sketch,), SIMULATED_CPU))


def test_a_set_has_the_best_of_each_task_and_machine_once_and_what_was_spent(made: Path) -> None:
    source = RecordsFile(made)
    (page,) = source.pages()
    assert not source.skipped
    assert {(record.task_id, record.candidate.decisions) for record in page} == {
        (on(CONV, "card").id, (32, 1)),
        (on(CONV, "xeon").id, (2, 16)),
        (CONV_2.id, (8, 4)),
        *((CONV.id, (at, 32 // at)) for at in (1, 2, 4)),
    }
    assert len(page) == 6
    assert {(effort.run_id, effort.secs) for effort, _ in source.efforts()} == {("z", 30.0), ("x", 30.0), ("c", 30.0)}


@pytest.mark.usefixtures("made")
def test_what_was_found_on_the_same_processor_is_confirmed_whatever_it_is_called(tmp_path: Path) -> None:
    mine = on(CONV, "build-server")
    found = begun(tmp_path, mine, dataclasses.replace(ZEN, versions=NOW))
    assert seeds(found, mine) == ([(1, 32), (2, 16), (4, 8)], 3)
    assert found.settled == frozenset(), "nothing counts that was not measured here"
    assert not any(found.records.values())
    assert found.summary == FromStore(str(tmp_path / "own.db"), 0, 0, 0, 0, 0, 1, 1)
    longer = begun(tmp_path, mine, ZEN, Limits(time_budget_secs=600.0))
    assert seeds(longer, mine) == ([(1, 32), (2, 16), (4, 8)], 0), "more is asked for than was spent"


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    "other", [{"threads": 1}, {"cpu_model": "another EPYC"}, {"target": '{"kind":"llvm","mcpu":"znver4"}'}], ids=str
)
def test_of_another_processor_it_is_a_beginning_and_never_confirmed(tmp_path: Path, other: dict[str, Any]) -> None:
    mine = on(CONV, "znver5-2")  # of the same name, even
    found = begun(tmp_path, mine, dataclasses.replace(ZEN, **other))
    decisions, enough = seeds(found, mine)
    assert (sorted(decisions), enough) == ([(1, 32), (2, 16)], 0), "of each machine in turn; what is there twice, once"
    assert (found.summary.shipped, found.summary.shipped_confirmed, found.summary.confirmed) == (1, 0, 0)
    card = dataclasses.replace(CARD, threads=9)
    assert seeds(begun(tmp_path, mine, card), mine)[0] == [(32, 1)], "no GPU begins with what a CPU has found"


@pytest.mark.usefixtures("made")
def test_similar_workloads_are_a_beginning_too(tmp_path: Path) -> None:
    larger = make_task("conv9", "znver5-2", flop=2.5e6)
    found = begun(tmp_path, larger, dataclasses.replace(ZEN, versions=NOW))
    entry = seeded(found, larger, extent=64)
    assert entry.adapted[0] == (0, (16, 4)), "the nearest one first"
    assert (len(entry.adapted), entry.seeds, entry.confirmation_trials) == (3, (), 0)
    assert found.summary.shipped == 1
    other = begun(tmp_path, DENSE, dataclasses.replace(ZEN, versions=NOW))
    assert (other.seeds, other.similar_seeds) == ({}, {})


@pytest.mark.usefixtures("made")
def test_what_the_store_has_comes_before_what_is_shipped(tmp_path: Path, store: Path) -> None:
    now = {"znver5-2": dataclasses.replace(ZEN, versions=NOW)}
    found = look_up(store, [CONV, CONV_2], now, LIMITS, tmp_path / "none.db", shipped())
    assert found.summary.shipped == 0
    assert found.confirmed == {CONV.id}
    assert look_up(store, [CONV], {"znver5-2": ZEN}, LIMITS, tmp_path / "none.db", shipped()).settled == {CONV.id}


@pytest.mark.parametrize(
    "content",
    [None, b"", b"no file of records", gzip.compress(b""), gzip.compress(b"{}\n")],
    # By name: what gzip writes has the second in which it is collected.
    ids=["missing", "empty", "no file of records", "compressed nothing", "not a record"],
)
def test_a_set_that_is_missing_empty_or_damaged_says_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    path = tmp_path / "set.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(SHIPPED_VARIABLE, str(path))
    with caplog.at_level(logging.INFO):
        found = begun(tmp_path, CONV, ZEN)
    assert (found.seeds, found.summary.shipped) == ({}, 0)
    assert not caplog.messages
    assert shipped().told(CONV) == []


def test_what_comes_with_this_version_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SHIPPED_VARIABLE)
    shipped()  # the one in the package, where there is one
    if SHIPPED_PATH.exists():
        source = RecordsFile(SHIPPED_PATH)
        records = [record for page in source.pages() for record in page]
        assert records
        assert not source.skipped
        assert all(record.measurement.verified and math.isfinite(record.measurement.rank_secs) for record in records)
        tasks = {task.id: task for task in source.tasks()}
        assert tasks.keys() >= {record.task_id for record in records}
        origins = source.run_origins()
        for record in records:  # they are confirmed where they were made, at whatever level LLVM optimizes by now
            origin = origins[record.run_id, tasks[record.task_id].device_class.name]
            target = json.dumps({**json.loads(origin.target), "opt-level": 3})
            assert ShippedRecords(source).here(tasks[record.task_id], dataclasses.replace(origin, target=target))
    monkeypatch.setenv(SHIPPED_VARIABLE, "")
    assert begun(tmp_path, CONV, ZEN).seeds == {}


@pytest.mark.usefixtures("made")
def test_why_says_what_is_shipped(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["records", "why", "conv", "--class", "znver5-2", "--store", str(store), "--json"]) == 0
    shown = capsys.readouterr()
    (task,) = [each for each in json.loads(shown.out.splitlines()[-1])["tasks"] if each["name"] == "conv"]
    assert (
        "3 of an EPYC (znver5, 2 threads) come with fleet-tune: on such a processor they are tried first, on others the"
        " search begins with them"
    ) in task["shipped"]
    assert len(task["shipped"]) == 3
    assert "come with fleet-tune" in " ".join(shown.err.split())


def test_a_class_alone_can_be_exported(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(store, tmp_path / "xeon.jsonl", None, "xeon").copied.records == 1
    source = RecordsFile(tmp_path / "xeon.jsonl")
    assert [task.device_class.name for task in source.tasks()] == ["xeon"]
    assert [effort.run_id for effort, _ in source.efforts()] == ["x"]
    out = str(tmp_path / "table")
    assert cli.main(["records", "export", out, "--format", "parquet", "--keep-best", "1", "--store", str(store)]) == 2
    assert "--keep-best is for files of lines" in capsys.readouterr().err
