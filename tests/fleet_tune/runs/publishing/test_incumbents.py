"""Records that are withdrawn from a store when a network is compiled."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction, Outcome, Record
from fleet_tune.base.records.sharing.shared import SharedReader
from fleet_tune.base.records.stores.choices import keep_choices, kept_choices
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import ChosenInNetwork
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch
from fleet_tune.runs.publishing.incumbents import Incumbents
from fleet_tune.runs.shared_store.exchange import StoreUploader
from policies.analysis.cpu import fewer_rows
from policies.analysis.cpu.fewer_rows import CONSIDERED, time_over_rows
from policies.arrays import Floats, Matrix
from policies.space.sampling import sample, unique_rows
from tests.helpers import devices
from tests.helpers.dynamic_rows import over_rows, product
from tests.helpers.records import failed, make_record, named_record, ok
from tests.helpers.tasks import make_candidate, make_task

HERE = Origin('{"kind":"llvm"}', "a processor", 2, {"apache-tvm": "0.27"})
TASK = make_task("w1", "zen5")


def test_what_a_compilation_without_a_run_withdraws_counts_for_the_runs_that_share_a_store(tmp_path: Path) -> None:
    own, shared = tmp_path / "out" / "records.db", tmp_path / "team.db"
    with RecordStore(own) as store:
        store.put_task(TASK)
        store.put_run("a", {"zen5": HERE})
        store.append([dataclasses.replace(named_record("1", 1e-3), run_id="a")])
    giving = StoreUploader(own, shared)
    assert giving.give() == 1
    told: list[str] = []
    incumbents = Incumbents(own, None, told.append)
    best = incumbents.best(TASK.id)
    assert best is not None
    incumbents.blame(best, failed(Outcome.WRONG_OUTPUT))
    assert (incumbents.best(TASK.id), told) == (None, [])
    assert giving.give() == 1
    with SharedReader(shared) as reader:
        (word,) = reader.last_words(TASK.id, reader.numbers_of(HERE), 9)
        assert (word.measurement.outcome, word.run_id) == (Outcome.WRONG_OUTPUT, "a")
        # A revision of that run itself would have the id that its number gives it: this one is none of those.
        assert word.uid != f"a-{best.candidate.id}-1"


def number_of(incumbents: Incumbents) -> int:
    best = incumbents.best(TASK.id)
    assert best is not None
    return best.candidate.decisions[0]


def test_what_was_chosen_in_the_network_holds_until_another_is_the_fastest_alone(tmp_path: Path) -> None:
    path, told = tmp_path / "records.db", list[str]()
    candidates = [make_candidate(TASK, number) for number in range(4)]
    with RecordStore(path) as store:
        store.put_task(TASK)
        for number in range(3):
            store.append([make_record(candidates[number], ok(1e-3 + number * 1e-5), f"u{number}")])
    chosen = ChosenInNetwork(TASK.id, candidates[1].id, (candidates[1].id, candidates[0].id), 0.9, 0.01, 6)
    made = Incumbents(path, None, told.append, network="net")
    assert number_of(made) == 0
    made.choose([chosen])
    assert number_of(made) == 1

    later = Incumbents(path, None, told.append, network="net")
    best = later.best(TASK.id)
    assert best is not None
    assert (best.candidate, later.chosen(best)) == (candidates[1], chosen)
    assert number_of(Incumbents(path, None, told.append, network="another")) == 0

    with RecordStore(path) as store:
        store.append([make_record(candidates[3], ok(0.9e-3), "u3")])
    assert number_of(later) == 3  # it did not meet the chosen one
    best = later.best(TASK.id)
    assert best is not None
    assert later.chosen(best) is None
    later.blame(best, failed(Outcome.WRONG_OUTPUT))
    assert number_of(Incumbents(path, None, told.append, network="net")) == 1  # those that met are the best again
    best = later.best(TASK.id)
    assert best is not None
    later.blame(best, failed(Outcome.WRONG_OUTPUT))
    assert number_of(Incumbents(path, None, told.append, network="net")) == 0
    assert told == []


def test_the_last_choice_of_a_task_is_kept_and_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    choices = [ChosenInNetwork(task, "b", ("b", "a"), ratio, 0.01, 6) for task in ("s", "t") for ratio in (0.9, 0.8)]
    with RecordStore(tmp_path / "records.db") as store:
        for each in choices:
            keep_choices(store, "net", [each])
        damaged = ["", "[]", "{}", "null", json.dumps({**dataclasses.asdict(choices[0]), "ratio": "fast"})]
        store.annotate({f"chosen in place: net {number}": text for number, text in enumerate(damaged)})
        store.annotate({"chosen in place: net another": json.dumps(dataclasses.asdict(choices[0]))})
    with RecordReader(tmp_path / "records.db") as reader:
        assert kept_choices(reader, "net") == {"s": choices[1], "t": choices[3]}
        assert kept_choices(reader, "ne") == {}


def test_of_dynamic_rows_the_best_record_for_all_numbers_of_rows_counts(tmp_path: Path) -> None:
    """The fastest for 64 rows has blocks of 32, and leaves a thread idle for 8: as much time as 1.33 of the other."""
    path, sketch = tmp_path / "records.db", over_rows(0.5)
    rows, columns = (
        make_candidate(TASK, *decisions, sketch_id=sketch.id) for decisions in ((2, 8, 4, 1, 32), (2, 8, 4, 2, 16))
    )
    with RecordStore(path) as store:
        store.put_task(TASK)
        store.append([make_record(each, ok(secs), f"u{secs}") for each, secs in ((rows, 0.9e-5), (columns, 1e-5))])
    entry = SearchTask(TASK, (sketch,), devices.CPU)
    incumbents = Incumbents(path, None, print, entries=[entry])
    best = incumbents.best(TASK.id)
    assert best is not None
    assert best.candidate == columns
    other = incumbents.next_best(TASK.id, [best])
    assert other is not None
    assert other.candidate == rows
    with RecordStore(path) as store:
        odd = [
            make_candidate(TASK, 1, 2, sketch_id=sketch.id),
            make_candidate(TASK, 2, 8, 4, 0, 16, sketch_id=sketch.id),
        ]
        others = [*odd, make_candidate(TASK, 2, 8, 4, 2, 16, sketch_id="another")]
        store.append([make_record(each, ok(2e-5), f"odd{at}") for at, each in enumerate(others)])
    assert incumbents.best(TASK.id) == best, "records of other sketches are ranked as they are"
    fixed = Incumbents(path, None, print, entries=[dataclasses.replace(entry, sketches=(product(64),))]).best(TASK.id)
    assert fixed is not None
    assert fixed.candidate == rows


def test_the_best_over_all_numbers_of_rows_takes_one_query_and_works_out_each_candidate_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sketch = tmp_path / "records.db", over_rows(0.5)
    rows = sample(sketch, 60, np.random.default_rng(0))
    rows = rows[unique_rows(rows)]
    slow = int(np.argmax(time_over_rows(sketch, rows, devices.CPU)))  # the first is not the best over all
    rows = np.concatenate([rows[slow:], rows[:slow]])
    candidates = [make_candidate(TASK, *row, sketch_id=sketch.id) for row in rows.tolist()]
    with RecordStore(path) as store:
        store.put_task(TASK)
        records = [make_record(each, ok(1e-5 * (1 + at / 99)), f"u{at}") for at, each in enumerate(candidates)]
        store.append(records)
    asked: list[int] = []

    def counted(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
        asked.append(len(matrix))
        return time_over_rows(sketch, matrix, device)

    monkeypatch.setattr(fewer_rows, "time_over_rows", counted)
    incumbents = Incumbents(path, None, print, entries=[SearchTask(TASK, (sketch,), devices.CPU)])
    queries: list[str] = []
    plain = RecordReader._record_rows

    def record_rows(reader: RecordReader, where: str, *values: str | int) -> list[Any]:
        queries.append(where)
        return plain(reader, where, *values)

    monkeypatch.setattr(RecordReader, "_record_rows", record_rows)
    found: list[Record] = []
    for _ in range(3):
        best = incumbents.next_best(TASK.id, found)
        assert best is not None
        found.append(best)
    assert len(queries) == 3
    assert asked == [CONSIDERED, 1, 1], "each call sees one record more"
    times = time_over_rows(sketch, rows, devices.CPU)
    secs = [each.measurement.rank_secs * time for each, time in zip(records, times.tolist(), strict=True)]
    by_secs = sorted(range(CONSIDERED), key=secs.__getitem__)
    assert found[0].candidate == candidates[by_secs[0]]
    assert by_secs[0] > 0
    for each in found:
        assert incumbents.rank_secs(each) == pytest.approx(secs[candidates.index(each.candidate)])
