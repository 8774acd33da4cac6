"""The queue of built candidates: its order, requeued trials, and trials that wait for an oracle."""

from __future__ import annotations

from policies.runs.planned_task import PlannedTask
from policies.runs.stages.built_queue import BuiltQueue
from policies.runs.tasks import OracleState, TaskTrials, Trial
from tests.helpers.tasks import make_candidate, make_task

TASK = make_task()
BOARD = TASK.device_class.name


def queue_of(count: int) -> tuple[BuiltQueue, TaskTrials, list[Trial]]:
    """A queue with so many trials of one task."""
    task = TaskTrials(PlannedTask(TASK, ("rule",), 1e-9))
    task.oracle = OracleState.READY
    queue = BuiltQueue({TASK.id: task})
    queue.add_class(BOARD)
    trials = [Trial(TASK, make_candidate(TASK, number)) for number in range(count)]
    for trial in trials:
        task.candidates.under_way.add(trial.candidate.id)
        queue.add(trial)
    return queue, task, trials


def take(queue: BuiltQueue, most: int, least: int = 1, builders_idle: bool = False) -> list[Trial]:
    return queue.take_batch(BOARD, least, most, lambda _: True, builders_idle)


def test_a_batch_is_taken_in_order_and_a_small_one_only_once_no_build_is_awaited() -> None:
    queue, _, trials = queue_of(5)
    assert take(queue, 3) == trials[:3]
    assert take(queue, 3, least=3) == []
    assert queue.count(BOARD) == 2
    assert take(queue, 3, least=3, builders_idle=True) == trials[3:]


def test_requeued_trials_come_first_or_behind_all_others() -> None:
    queue, _, trials = queue_of(4)
    batch = take(queue, 2)
    queue.requeue(BOARD, batch[:1], behind=True)
    queue.requeue(BOARD, batch[1:])
    assert queue.of_class(BOARD) == (trials[1], trials[2], trials[3], trials[0])


def test_a_requeued_trial_whose_record_comes_late_is_dropped() -> None:
    queue, task, trials = queue_of(2)
    queue.requeue(BOARD, take(queue, 2))
    queue.drop_recorded(trials[0].candidate)
    assert queue.of_class(BOARD) == (trials[1],)
    task.candidates.under_way.clear()  # both have a record by now
    queue.requeue(BOARD, take(queue, 1))
    assert queue.waiting == 0


def test_a_trial_that_must_be_measured_alone_is_a_batch() -> None:
    queue, _, trials = queue_of(3)
    trials[1].alone = True
    assert take(queue, 3) == [trials[0], trials[2]]
    assert take(queue, 3, least=3) == [trials[1]]


def test_a_suspect_stays_for_a_device_that_may_try_it() -> None:
    queue, _, trials = queue_of(2)
    trials[0].losses.append("a")
    assert queue.has_suspects(BOARD)
    assert queue.take_batch(BOARD, 1, 2, lambda _: False, False) == [trials[1]]
    assert queue.of_class(BOARD) == (trials[0],)


def test_trials_wait_for_the_oracle_of_their_task() -> None:
    queue, task, _ = queue_of(0)
    task.oracle = OracleState.ON_ITS_WAY
    trial = Trial(TASK, make_candidate(TASK, 1))
    queue.add(trial)
    assert (queue.waiting, queue.count(BOARD)) == (1, 0)
    task.oracle = OracleState.READY
    queue.oracle_ready(TASK.id)
    assert queue.of_class(BOARD) == (trial,)
    assert queue.drop_task(TASK.id) == [trial]
    assert queue.waiting == 0
