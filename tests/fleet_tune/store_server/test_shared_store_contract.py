"""What every store is that runs share, on a server or in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_tune.base.domain import Record
from fleet_tune.base.records.sharing.shared import SharedReader, Target, copy_records, shared_store
from fleet_tune.base.records.stores.origin import Effort
from tests.helpers.team_server import CONV, DENSE, HERE, Served, emptied, held, of, write

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["file", "server"])
def store(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[tuple[Target, Any]]:
    """Where records are copied to, and what gives them back."""
    if request.param == "file":
        with shared_store(tmp_path / "shared.db") as target:
            yield target, lambda: SharedReader(tmp_path / "shared.db")
        return
    with emptied(served) as store:
        yield store, lambda: store.since(0)


def plain(records: list[Record]) -> list[Record]:
    return sorted((dataclasses.replace(each, seq=0) for each in records), key=lambda each: each.uid)


def test_records_of_runs_meet_once_each(store: tuple[Target, Any], tmp_path: Path) -> None:
    target, source = store
    records = [of("a", "1", 2e-3), of("a", "2", None, 2), of("a", "3", 1e-3, 3, DENSE)]
    own = write(tmp_path / "a.db", "a", *records)
    for expected in (3, 0):
        with SharedReader(own) as reader:
            copied = copy_records(reader, target)
        assert (copied.records, copied.cursor, copied.left_out) == (expected, 3, 0)
    found = source()
    assert plain(held(found)) == plain(records)
    assert [task.id for task in found.tasks()] == [CONV.id, DENSE.id]
    assert found.tasks()[0] == CONV
    assert found.run_origins() == {("a", "zen5"): HERE}
    assert found.efforts() == [(Effort(CONV.id, "a", 10.0, float("inf")), HERE)]
    assert [each.uid for each in held(found)] == ["1", "2", "3"], "in the order in which they came"


def test_seconds_are_counted_at_the_unit_that_was_given_first(store: tuple[Target, Any], tmp_path: Path) -> None:
    target, source = store
    with SharedReader(write(tmp_path / "a.db", "a", of("a", "1", 2e-3))) as reader:
        copy_records(reader, target)
    slow = write(tmp_path / "b.db", "b", of("b", "2", 2e-3, 2), probe_secs=0.002)
    with SharedReader(slow) as reader:
        copy_records(reader, target)
    assert target.unit("class zen5", 5.0) == 0.001
    assert source().unit_secs("dev", "zen5") == 0.001
    assert source().unit_secs("dev", "other") is None
    costs = {each.uid: each.measurement.cost_secs for each in held(source())}
    assert costs == pytest.approx({"1": 2e-3, "2": 1e-3})


def test_what_a_run_has_spent_is_replaced_and_a_made_up_name_gives_way(store: tuple[Target, Any]) -> None:
    target, source = store
    unnamed = dataclasses.replace(CONV.workload, name=f"workload {CONV.workload.hash[:8]}")
    target.put_task(dataclasses.replace(CONV, workload=unnamed))
    target.put_task(CONV)
    target.put_task(dataclasses.replace(CONV, workload=unnamed, weight=3))
    target.put_run("a", {"zen5": HERE})
    target.put_run("a", {"zen5": dataclasses.replace(HERE, threads=9)})
    for secs in (1.0, 7.0):
        target.put_efforts([Effort(CONV.id, "a", secs, 5.0)])
    assert target.add([of("a", "1", 1e-3), of("a", "1", 1e-3), of("a", "2", 2e-3, 2)]) == 2
    (task,) = source().tasks()
    assert (task.workload.name, task.weight) == (CONV.workload.name, 3)
    assert source().efforts() == [(Effort(CONV.id, "a", 7.0, 5.0), HERE)], "what a run depends on does not change"
