"""Which sketches a batch comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.sketch import Sketch
from policies.search.allocation import Arms, JointSketches, SketchAllocation, UcbSketches, UniformSketches
from policies.search.task_records import Observation, TaskRecords
from policies.space.sampling import sample, unique_rows

ALL = pytest.mark.parametrize(
    "sketches",
    [JointSketches(), UniformSketches(), UcbSketches()],
    ids=str,
)


@pytest.fixture
def arms(tiled: Sketch, blocked: Sketch) -> Arms:
    """Eight records of each of two sketches; the second is a little faster."""
    records = TaskRecords((tiled, blocked))
    for at, sketch in enumerate(records.sketches):
        rows = sample(sketch, 40, np.random.default_rng(0))
        rows = rows[unique_rows(rows)][:8]
        records.add(Observation(at, tuple(map(int, row)), 1.1 - 0.1 * at) for row in rows)
    return Arms(records, np.array([1000.0, 1000.0]), None, None)


@ALL
@pytest.mark.parametrize("round_trials", [None, 16])
def test_shares_keep_to_what_is_left(sketches: SketchAllocation, round_trials: int | None, arms: Arms) -> None:
    for left in ([3.0, 1000.0], [0.0, 5.0], [1000.0, 0.0]):
        shares = sketches.shares(
            replace(arms, left=np.array(left), round_trials=round_trials), 16, np.random.default_rng(0)
        )
        assert shares.shape == (2,)
        assert (shares <= np.minimum(left, 16)).all()
        assert shares.sum() >= 1
        assert shares.sum() <= 16 or sketches.joint


@ALL
def test_the_same_seed_gives_the_same_shares(sketches: SketchAllocation, arms: Arms) -> None:
    first, second = (sketches.shares(arms, 16, np.random.default_rng(3)) for _ in range(2))
    assert first.tolist() == second.tolist()


def test_joint_sketches_may_each_take_the_batch(arms: Arms) -> None:
    assert JointSketches().joint
    assert JointSketches().shares(arms, 16, np.random.default_rng(0)).tolist() == [16, 16]


@pytest.mark.parametrize("sketches", [UniformSketches(), UcbSketches()], ids=str)
def test_a_round_is_of_one_sketch(sketches: SketchAllocation, arms: Arms) -> None:
    shares = sketches.shares(replace(arms, round_trials=16), 16, np.random.default_rng(0))
    assert sorted(shares.tolist()) == [0, 16]


@pytest.mark.parametrize("sketches", [UniformSketches(), UcbSketches()], ids=str)
def test_a_round_that_a_sketch_cannot_fill_goes_on_with_another(sketches: SketchAllocation, arms: Arms) -> None:
    few = replace(arms, round_trials=16, left=np.array([5.0, 7.0]))
    assert sketches.shares(few, 16, np.random.default_rng(0)).tolist() == [5, 7]
    for seed in range(4):
        shares = sketches.shares(replace(few, left=np.array([5.0, 30.0])), 16, np.random.default_rng(seed))
        assert shares.tolist() in ([5, 11], [0, 16])


def test_untried_sketches_come_first_in_an_order_that_is_drawn(tiled: Sketch, blocked: Sketch) -> None:
    untried = Arms(TaskRecords((tiled, blocked)), np.array([1000.0, 1000.0]), 16, None)
    firsts = [UcbSketches().shares(untried, 16, np.random.default_rng(seed)).tolist() for seed in range(12)]
    assert {tuple(shares) for shares in firsts} == {(16, 0), (0, 16)}


def test_the_bound_prefers_the_better(arms: Arms) -> None:
    rng = np.random.default_rng(0)
    plain = UcbSketches().shares(arms, 60, rng)
    assert plain[1] > plain[0]
    assert UcbSketches(exploration_constant=0.0).shares(arms, 60, rng).tolist() == [0, 60]


def test_what_the_analyzer_expects_stands_for_what_was_measured(arms: Arms) -> None:
    told = replace(arms, expected=lambda: (np.array([1.0, 100.0]), np.zeros(2)))
    shares = UcbSketches(exploration_constant=0.0).shares(told, 16, np.random.default_rng(0))
    assert shares.tolist() == [16, 0]


def test_what_the_analyzer_expects_counts_as_a_visit(tiled: Sketch, blocked: Sketch) -> None:
    told = Arms(TaskRecords((tiled, blocked)), np.full(2, 1000.0), None, lambda: (np.array([1.0, 100.0]), np.zeros(2)))
    rng = np.random.default_rng(0)
    assert UcbSketches().shares(told, 8, rng).tolist() == [7, 1]  # one for having none
    # Rewards 1 and 0.01; of nine visits: 1 + 0.3 sqrt(2 ln 9 / 8) = 1.22 against 0.01 + 0.3 sqrt(2 ln 9) = 0.64.
    assert UcbSketches(prior_visits=1.0).shares(told, 8, rng).tolist() == [8, 0]
    close = replace(told, expected=lambda: (np.array([1.0, 2.0]), np.zeros(2)))
    # 1 + 0.3 sqrt(2 ln 3 / 2) = 1.31 against 0.5 + 0.3 sqrt(2 ln 3) = 0.94 at first; at 25 visits 1.16 and 1.26.
    assert UcbSketches(prior_visits=1.0).shares(close, 40, rng)[1] > 0
    unknown = replace(told, expected=None)
    assert UcbSketches(prior_visits=1.0).shares(unknown, 8, rng).min() >= 1


def test_only_the_bound_of_each_trial_asks_what_is_expected(arms: Arms) -> None:
    def refused() -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("not to be worked out")

    for sketches in (JointSketches(), UniformSketches()):
        sketches.shares(replace(arms, expected=refused), 16, np.random.default_rng(0))
    UcbSketches().shares(replace(arms, expected=refused, round_trials=16), 16, np.random.default_rng(0))
