"""Admission of records to networks of which only is known with which records they are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.runs.publishing.record_admission import ATTEMPTS, UnscheduledWrongError, admit, bisect
from tests.helpers.properties import examples
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task

WRONG = Measurement(Outcome.WRONG_OUTPUT, detail="relative error 1")


@dataclass
class World:
    """``records``: of each task, the best first. ``wrong``: numbers of the wrong ones of each task."""

    records: dict[str, list[Record]]
    wrong: Mapping[str, set[int]]
    unscheduled_is_wrong: bool = False
    supplied: dict[str, list[Record]] = field(default_factory=dict)
    asked_for: list[str] = field(default_factory=list)
    judged: int = 0

    def best(self, task_id: str) -> Record | None:
        return next(iter(self.records[task_id]), None)

    def blame(self, record: Record, fault: Measurement) -> None:
        assert fault is WRONG
        assert self.records[record.task_id].pop(0) is record, "blamed once, and only the best"

    def supply(self, task_ids: Sequence[str]) -> None:
        for each in task_ids:
            assert not self.records[each]
            self.asked_for.append(each)
            self.records[each] = self.supplied.get(each, [])

    def judge(self, records: Mapping[str, Record]) -> Measurement | None:
        self.judged += 1
        at_fault = any(self.is_wrong(record) for record in records.values())
        return WRONG if at_fault or self.unscheduled_is_wrong else None

    def is_wrong(self, record: Record) -> bool:
        return record.candidate.decisions[0] in self.wrong.get(record.task_id, ())


def world(counts: Sequence[int], wrong: Mapping[int, set[int]], **others: bool) -> World:
    """Tasks with so many records each; ``wrong``: by the task's number."""
    ids = [make_task(f"t{at}").id for at in range(len(counts))]
    records = {
        each: [make_record(make_candidate(each, number), ok(1e-3 * (number + 1))) for number in range(count)]
        for each, count in zip(ids, counts, strict=True)
    }
    return World(records, {ids[at]: numbers for at, numbers in wrong.items()}, **others)


def chosen(of: World) -> list[int | None]:
    """The number of the record of each task that its network is made of."""
    admitted = admit(of.records, of, of.judge)
    return [admitted.records[each].candidate.decisions[0] if each in admitted.records else None for each in of.records]


def test_a_network_that_is_right_is_judged_once() -> None:
    right = world([3] * 40, {})
    assert chosen(right) == [0] * 40
    assert right.judged == 1


def test_one_kernel_at_fault_is_found_by_halving_and_replaced_by_the_next_best() -> None:
    wrong = world([3] * 64, {41: {0}})
    assert chosen(wrong) == [0] * 41 + [1] + [0] * 22
    assert wrong.judged <= 2 + 1 + 2 * 6 + 1 + 1, "all, unscheduled, halves, the one, and all with the next best"
    assert len(wrong.records[make_task("t41").id]) == 2
    assert all(len(wrong.records[make_task(f"t{at}").id]) == 3 for at in range(64) if at != 41)


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 6), st.sets(st.integers(0, 5))), min_size=1, max_size=12))
def test_each_task_gets_its_best_right_record(tasks: list[tuple[int, set[int]]]) -> None:
    of = world([count for count, _ in tasks], {at: numbers for at, (_, numbers) in enumerate(tasks)})
    for (count, numbers), got in zip(tasks, chosen(of), strict=True):
        right = [number for number in range(min(count, ATTEMPTS)) if number not in numbers]
        assert got == (right[0] if right else None)


def test_a_task_without_records_is_supplied_once() -> None:
    of = world([0, 1, 0], {1: {0}, 2: {0}})
    first, second, third = of.records
    of.supplied = {first: [make_record(make_candidate(first, 5), ok(1e-3))]}
    assert chosen(of) == [5, None, None]
    assert sorted(of.asked_for) == [first, second, third]


def test_nothing_is_blamed_where_the_network_is_wrong_without_schedules() -> None:
    of = world([2, 2], {}, unscheduled_is_wrong=True)
    with pytest.raises(UnscheduledWrongError, match="relative error 1"):
        chosen(of)
    assert [len(records) for records in of.records.values()] == [2, 2]
    with pytest.raises(UnscheduledWrongError):
        chosen(world([0], {}, unscheduled_is_wrong=True))


def test_records_that_are_wrong_only_together_are_told_apart() -> None:
    """Two errors that add up to more than the tolerance: one of the two kernels goes."""
    of = world([1] * 4, {})
    first, *_, last = of.records
    both = dict.fromkeys((first, last))

    def judge(records: Mapping[str, Record]) -> Measurement | None:
        return WRONG if both.keys() <= records.keys() else None

    best = {each: records[0] for each, records in of.records.items()}
    right, faults = bisect({}, best, WRONG, judge)
    assert len(faults) == 1
    assert faults.keys() <= both.keys()
    assert judge({each: best[each] for each in right}) is None


@pytest.mark.parametrize("once", range(1, 18))
@pytest.mark.parametrize("at_fault", [(), (0,), (7,), (3, 4)])
def test_a_fault_that_happens_once_is_blamed_on_no_kernel(once: int, at_fault: tuple[int, ...]) -> None:
    """A machine without memory for a moment, at any of the judgements."""
    of = world([2] * 8, {at: {0} for at in at_fault})
    calls = 0

    def judge(records: Mapping[str, Record]) -> Measurement | None:
        nonlocal calls
        calls += 1
        return of.judge(records) or (WRONG if calls == once else None)

    admitted = admit(of.records, of, judge)
    got = {each: record.candidate.decisions[0] for each, record in admitted.records.items()}
    assert got == {each: int(at in at_fault) for at, each in enumerate(of.records)}


def test_the_last_of_many_is_judged_by_itself_before_it_is_blamed() -> None:
    of = world([1] * 8, {})
    right, faults = bisect({}, {each: records[0] for each, records in of.records.items()}, WRONG, of.judge)
    assert (right, faults) == (list(of.records), {})
