"""The course of a run, read from its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.report.run_history import HistoryReader, read_history
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task

ONCE, TWICE = make_task("a"), make_task("b", weight=2)


def record(task: object, number: int, at: float, measured: Measurement, revision: int = 0, run: str = "run") -> Record:
    made = make_record(make_candidate(task, number), measured, revision=revision)  # type: ignore[arg-type]
    return replace(made, unix_secs=at, run_id=run)


def database(folder: Path, *records: Record) -> Path:
    path = folder / "records.db"
    with RecordStore(path) as store:
        for task in (ONCE, TWICE):
            store.put_task(task)
        store.append(records)
    return path


def test_a_point_for_each_record_that_made_the_estimate_smaller(tmp_path: Path) -> None:
    path = database(
        tmp_path,
        record(ONCE, 1, 100.0, ok(3.0)),
        record(TWICE, 1, 101.0, ok(1.0)),
        record(TWICE, 2, 103.0, ok(2.0)),
        record(ONCE, 2, 104.0, failed(Outcome.BUILD_ERROR, "no such thing")),
        record(TWICE, 3, 110.0, ok(0.5)),
        record(ONCE, 3, 112.0, ok(0.1, verified=False)),
    )
    history = read_history(path.parent)
    ranks = [ok(secs).rank_secs for secs in (3.0, 1.0, 0.5)]
    found = [(point.secs, point.trials, point.network_secs) for point in history.curves["board"]]
    last = pytest.approx(ranks[0] + 2 * ranks[2])
    assert found == [(1.0, 2, pytest.approx(ranks[0] + 2 * ranks[1])), (10.0, 5, last), (12.0, 6, last)]
    once, twice = history.tasks
    assert (once.trials, once.outcomes, once.failures) == (
        3,
        {"ok": 2, "build_error": 1},
        {"build_error": "no such thing"},
    )
    assert (history.trials, twice.trials) == (6, 3)
    assert history.gain("board", 0.5) == pytest.approx(1 - found[1][2] / found[0][2])
    assert history.gain("board", 0.99) is None


def test_the_curve_ends_at_the_best_of_the_store(tmp_path: Path) -> None:
    """A candidate that a later record says is slower counts as that says from its first record on."""
    path = database(
        tmp_path,
        record(ONCE, 1, 0.0, ok(1.0)),
        record(TWICE, 1, 1.0, ok(1.0)),
        record(TWICE, 2, 2.0, ok(0.2)),
        record(TWICE, 2, 3.0, ok(0.7), revision=1),
    )
    history = read_history(path.parent)
    with RecordReader(path) as reader:
        best = [reader.best(task.id) for task in (ONCE, TWICE)]
        expected = sum(
            reader.shown_secs(each) * task.weight for each, task in zip(best, (ONCE, TWICE), strict=True) if each
        )
    points = [point.network_secs for point in history.curves["board"]]
    assert points[-1] == pytest.approx(expected)
    assert points == sorted(points, reverse=True)
    assert history.trials == 3


def test_the_time_between_two_commands_does_not_count(tmp_path: Path) -> None:
    path = database(
        tmp_path,
        record(ONCE, 1, 0.0, ok(1.0)),
        record(TWICE, 1, 5.0, ok(1.0)),
        record(TWICE, 2, 9_000.0, ok(0.5), run="second"),
        record(TWICE, 3, 9_004.0, ok(0.2), run="second"),
    )
    assert read_history(path.parent).secs == 9.0


def test_no_curve_before_each_task_has_a_result(tmp_path: Path) -> None:
    path = database(tmp_path, record(ONCE, 1, 0.0, ok(1.0)), record(TWICE, 1, 1.0, failed()))
    history = read_history(path.parent)
    assert history.curves == {"board": ()}
    assert [each.best is None for each in history.tasks] == [False, True]


def test_a_history_that_is_read_again_and_again_is_the_one_that_is_read_at_once(tmp_path: Path) -> None:
    """Also where a candidate that was the best turns out slower, and where a task comes later."""
    reader = HistoryReader(tmp_path)
    steps = [
        [record(ONCE, 1, 100.0, ok(3.0)), record(TWICE, 1, 101.0, ok(1.0))],
        [record(ONCE, 2, 102.0, ok(2.0)), record(TWICE, 2, 103.0, failed(Outcome.BUILD_ERROR, "no such thing"))],
        [],
        [record(ONCE, 2, 104.0, ok(2.5), revision=1)],
        [record(ONCE, 3, 105.0, ok(1.0), run="another")],
    ]
    before = None
    for records in steps:
        path = database(tmp_path, *records)
        history = reader.read()
        assert history == read_history(tmp_path)
        assert history.trials == sum(not each.revision for each in steps_until(steps, records))
        assert before is None or before.trials <= history.trials  # what was read before stays as it was
        before = history
    assert [list(times) for times in history.measured_unix_secs.values()] == [
        [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]
    ]
    with RecordStore(path) as store:
        store.put_task(make_task("c"))
    assert len(reader.read().tasks) == 3


def test_another_run_in_the_same_folder_is_read_from_its_beginning(tmp_path: Path) -> None:
    reader = HistoryReader(tmp_path)
    path = database(tmp_path, *(record(ONCE, number, 100.0 + number, ok(1.0)) for number in range(5)))
    assert reader.read().trials == 5
    path.unlink()
    database(tmp_path, record(ONCE, 1, 200.0, ok(2.0)), record(TWICE, 1, 201.0, ok(1.0)))
    assert reader.read() == read_history(tmp_path)
    assert reader.read().trials == 2


def steps_until(steps: list[list[Record]], last: list[Record]) -> list[Record]:
    return [record for records in steps[: steps.index(last) + 1] for record in records]


def test_a_small_task_that_comes_late_counts_from_the_beginning(tmp_path: Path) -> None:
    large, small = make_task("large", flop=99.0), make_task("small", flop=1.0)
    with RecordStore(tmp_path / "records.db") as store:
        for task in (large, small):
            store.put_task(task)
        store.append(
            [
                record(large, 1, 100.0, ok(3.0)),
                record(large, 2, 101.0, ok(2.0)),
                record(small, 1, 102.0, ok(0.5)),
                record(small, 2, 103.0, ok(0.25)),
            ]
        )
    points = read_history(tmp_path).curves["board"]
    ranks = {secs: ok(secs).rank_secs for secs in (3.0, 2.0, 0.5, 0.25)}
    expected = [ranks[3.0] + ranks[0.5], *[ranks[2.0] + ranks[0.5]] * 2, *[ranks[2.0] + ranks[0.25]] * 2]
    assert [point.network_secs for point in points] == pytest.approx(expected)


def test_more_tuning_is_expected_to_buy_what_the_last_doublings_did(tmp_path: Path) -> None:
    """By hand: both doublings halve the latency, so the slope is (0.03 + 1 + 1/2) / (1 + 1 + 1/2) = 0.612, and another
    1000 s are another doubling."""
    path = database(
        tmp_path,
        record(TWICE, 1, 0.0, ok(1.0)),
        record(ONCE, 1, 0.0, ok(2.0)),
        record(TWICE, 2, 400.0, ok(0.5)),
        record(ONCE, 2, 400.0, ok(1.0)),
        record(TWICE, 3, 900.0, ok(0.25)),
        record(ONCE, 3, 900.0, ok(0.5)),
        record(ONCE, 4, 1000.0, ok(5.0)),
    )
    history = read_history(path.parent)
    assert history.expected_gain("board", 1000.0) == pytest.approx(1 - 2**-0.612)
    flat = replace(history, curves={"board": history.curves["board"][:1]})
    assert flat.expected_gain("board", 1000.0) == pytest.approx(1 - 2 ** -(0.03 / 2.5))
    assert replace(history, curves={"board": ()}).expected_gain("board", 1000.0) is None
