"""The genetic algorithm without a model: nearest rows by hand, and a run on a small made-up dataset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench.datasets import observations
from bench.replay.replay_runs import RecordedTask, run_task
from bench.search.genetic import genetic_method, nearest
from fleet_tune.base.sketch import Choice, Sketch, Tile
from fleet_tune.base.task_data import TaskData
from policies.space.sampling import row_keys

SKETCH = Sketch(0, "tiling", "sketch 0", (Tile(16, 2, 16), Choice("unroll", (0, 16, 64))), (), "made up")


def test_the_nearest_rows_by_hand() -> None:
    there = np.array([[16, 1, 0], [8, 2, 0], [4, 4, 1], [2, 8, 2]])
    wanted = np.array([[4, 4, 0], [4, 4, 0], [2, 8, 2]])
    # One decision of [4, 4, 0] differs from the first three: [4, 4, 1] is 4.1 away, by log2 of 1 + 16, [8, 2, 0] 1.4.
    assert nearest(SKETCH, wanted, there).tolist() == [1, 0, 3]
    assert nearest(SKETCH, wanted, there[:2]).tolist() == [1, 0]
    assert len(nearest(SKETCH, wanted, there[:0])) == 0


def test_children_come_from_near_the_best(data: TaskData) -> None:
    task, method = RecordedTask(data), replace(genetic_method(), batch=16)
    search = task.search(method, 0)
    assert {each.reason for each in search.propose(16)} == {"random"}
    search.release_all()
    good = int(np.argmin(np.where(data.sketch_of == 1, data.cost_secs, np.inf)))
    candidate = data.candidate(good)
    (known,) = [each for each in task.pools if each.sketch.index == 1]
    best = known.row_of[row_keys(np.array([candidate.decisions]))[0]]
    search.observe(observations(data, [good]))
    proposals = search.propose(8)
    assert {each.sketch for each in proposals} == {1}
    assert all(each.reason != "random" for each in proposals)
    near = {tuple(known.matrix[row].tolist()) for row in known.neighbours[best]}
    assert near & {each.decisions for each in proposals}


def test_it_arrives(data: TaskData) -> None:
    assert 1 <= run_task(RecordedTask(data), genetic_method(), 0, 0).trials <= len(data)
