"""The dataset as the benchmarks read it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.datasets import best_of_share, labels, observations, pick, split
from bench.result import BenchError
from fleet_tune.base.task_data import Dataset, TaskData
from tests.bench.made_up import made_up


def test_best_of_share_takes_the_lowest_scores() -> None:
    scores = np.array([3.0, 1.0, 2.0, 0.0])
    costs = np.array([1.0, 4.0, 2.0, 8.0])
    assert best_of_share(scores, costs, 4) == 8.0
    assert best_of_share(scores, costs, 2) == 4.0
    assert best_of_share(scores, costs, 1) == 1.0
    assert best_of_share(scores, costs, 100) == 8.0  # at least one
    assert best_of_share(np.array([math.inf, 1.0]), np.array([1.0, 2.0]), 2) == 2.0


def test_split_is_a_partition_that_a_seed_repeats(data: TaskData) -> None:
    known, explored = split(data, 3, 64)
    assert len(known) == 64
    assert sorted([*known, *explored]) == list(range(len(data)))
    assert np.array_equal(split(data, 3, 64)[0], known)
    assert not np.array_equal(split(data, 4, 64)[0], known)
    limited = np.concatenate(split(data, 3, 64, limit=100))
    assert sorted(limited) == list(range(100))
    with pytest.raises(BenchError, match="too few"):
        split(data, 0, len(data))


def test_labels_are_different_and_found_by_their_parts(data: TaskData) -> None:
    dataset = Dataset("m", (), (made_up("fused_conv2d"), data, made_up("fused_conv2d")))
    names = labels(dataset)
    assert names == ("conv2d.1", "matmul", "conv2d.2")
    assert pick(names, ()) == (0, 1, 2)
    assert pick(names, ("mat", "conv", "conv")) == (1, 0, 2)
    with pytest.raises(BenchError, match="softmax"):
        pick(names, ("softmax",))


def test_observations_are_what_was_recorded(data: TaskData) -> None:
    first = observations(data, [0])[0]
    assert (first.sketch, first.decisions) == (data.candidate(0).sketch, data.candidate(0).decisions)
    assert (first.cost_secs, first.trial_secs) == (data.cost_secs[0], 0.75)
    failure = int(np.flatnonzero(~data.ok)[0])
    assert observations(data, [failure])[0].cost_secs == math.inf
