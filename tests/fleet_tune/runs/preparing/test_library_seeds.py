"""The candidates of a library that searches begin with."""

from __future__ import annotations

import dataclasses

from devices.describing.cache import TaskDescription
from devices.sketches.rules.library import LIBRARY
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Choice, Sketch
from fleet_tune.runs.preparing.library_check import with_library_seeds
from fleet_tune.runs.preparing.ready_tasks import missing_of
from tests.helpers.devices import CPU
from tests.helpers.tasks import make_task


def _entry(rows: tuple[int, ...], columns: tuple[int, ...]) -> SearchTask:
    other = Sketch(0, "loops", "[]", (), ())
    calls = Sketch(1, "onednn", f'["{LIBRARY}"]', (Choice("rows", rows), Choice("columns", columns)), ())
    return SearchTask(make_task(), (other, calls), CPU)


def test_a_search_begins_with_a_part_for_each_core() -> None:
    entry = with_library_seeds(_entry((14, 7, 4, 2), (256, 128, 64)))
    assert entry.seeds == ((1, (1, 0)),)
    assert entry.confirmation_trials == 0


def test_a_single_row_is_divided_by_its_columns() -> None:
    assert with_library_seeds(_entry((1,), (256, 128, 64))).seeds == ((1, (0, 1)),)
    assert with_library_seeds(_entry((1,), (16,))).seeds == ((1, (0, 0)),)


def test_they_come_behind_those_of_the_store_and_are_measured_too() -> None:
    seeded = dataclasses.replace(_entry((14, 7), (256,)), seeds=((0, ()),), confirmation_trials=1)
    entry = with_library_seeds(seeded)
    assert entry.seeds == ((0, ()), (1, (1, 0)))
    assert entry.confirmation_trials == 2


def test_other_tasks_stay_as_they_are() -> None:
    entry = dataclasses.replace(_entry((4,), (16,)), sketches=_entry((4,), (16,)).sketches[:1])
    assert with_library_seeds(entry) == entry


def test_that_nothing_is_known_of_its_calls_is_no_fault() -> None:
    entry = _entry((4,), (16,))
    sketches = tuple(dataclasses.replace(each, undescribed="a reason") for each in entry.sketches)
    [told] = missing_of(entry.task, TaskDescription(sketches, ()))
    assert (told.what, told.rule) == ("description", "loops")
