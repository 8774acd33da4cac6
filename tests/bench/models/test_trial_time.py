"""What a trial takes: the prior, what records teach, and what the stop rule makes of a run time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.models.laboratory.trial_time import (
    PerSecond,
    fit_build_time,
    measure_secs,
    per_second,
    trial_secs,
    untrained,
)
from fleet_tune.base.domain import DeviceAbstraction, StopRule
from fleet_tune.base.sketch import Sketch
from policies.features.table import joint_layout, symbolic_features
from policies.search.batch import Selection
from policies.search.draft import evaluate
from policies.search.methods import method_named
from policies.search.prediction import Predictor
from policies.search.search import Observation, TaskSearch
from policies.search.task_records import TIMED_OUT
from policies.search.training_table import TrainingTable
from policies.space.sampling import sample

NAMES = ("log_predicted", "unrolled", "vector", "sketch.0", "sketch.1")


def rows(*values: tuple[float, ...]) -> np.ndarray:
    return np.array(values, dtype=np.float32).reshape(-1, len(NAMES))


def test_prior_by_hand() -> None:
    # 2^10 operations and none known: 0.25 + 0.0008 * 1024, and 0.25 + 0.0008.
    found = untrained(NAMES).secs(rows((0, 10, 3, 1, 0), (0, math.nan, math.nan, 0, 1)))
    assert found == pytest.approx([1.0692, 0.2508])
    assert untrained(("tile.i",)).secs(np.zeros((2, 1), dtype=np.float32)) == pytest.approx([0.2508] * 2)


def test_one_record_by_hand() -> None:
    # One build twice as long as the prior: r = ln 2, shift = ln 2 / (1 + 2); nothing varies, so no weights.
    one = rows((0, 10, 3, 1, 0))
    fitted = fit_build_time(NAMES, one, np.array([2 * 1.0692]))
    assert fitted.secs(one) == pytest.approx([1.0692 * 2 ** (1 / 3)], rel=1e-5)


def test_ridge_by_hand() -> None:
    # Two records of one column: vector 2 and 4, centre 3, deviation 1, z = -1 and 1; r = ln 2 and ln 8 (prior 0.2508).
    # shift = ln 16 / 4 = ln 2; w = (z^T (r - shift)) / (2 + 16) = 2 ln 2 / 18.
    names = ("vector",)
    values = np.array([[2.0], [4.0]], dtype=np.float32)
    fitted = fit_build_time(names, values, 0.2508 * np.array([2.0, 8.0]))
    assert fitted.secs(values) == pytest.approx(0.2508 * 2 ** np.array([1 - 1 / 9, 1 + 1 / 9]), rel=1e-6)


def test_candidates_are_held_against_the_limit_that_the_user_has_set(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = sample(tiled, 20, np.random.default_rng(0))
    table = TrainingTable((tiled,), cpu, method_named("fleet").views_with(None))
    table.observe(Observation(0, tuple(row), 1e-3, build_secs=4.0) for row in matrix.tolist())

    def in_time(timeout_secs: float | None) -> np.ndarray:
        predictor = Predictor(table, 1e9, analyzer=True)
        drafted = evaluate(tiled, matrix, cpu)
        offered = predictor.predicted(0, drafted)
        return PerSecond(timeout_secs)(np.ones(len(matrix)), offered, predictor)

    certain = in_time(1e9)
    assert (in_time(0.5) < 0.5 * certain).all()
    assert (in_time(None) > 0.5 * certain).all()  # 40 s
    assert (in_time(600.0) >= in_time(None)).all()


@pytest.mark.parametrize("weighting", [None, PerSecond()])
def test_a_search_with_it_stays_in_the_space(
    weighting: PerSecond | None, tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction
) -> None:
    method = replace(method_named("fleet"), selection=Selection(alpha=0.1, radius=1.0, weighting=weighting))
    search = TaskSearch((tiled, blocked), 2.0 * 256**3, cpu, method, np.random.default_rng(0))
    for _ in range(3):
        proposals = search.propose(8)
        assert len({(each.sketch, each.decisions) for each in proposals}) == 8
        search.observe(Observation(each.sketch, each.decisions, each.predicted_secs, 0.5, 0.25) for each in proposals)
        search.use_model(search.train(0))


def test_per_second() -> None:
    assert per_second(np.array([1.0, 1.0, 1.0, 1.0]), np.array([2.0, 0.0, math.nan, math.inf])).tolist() == [
        0.5,
        1.0,
        1.0,
        1.0,
    ]


def test_learns_which_sketch_builds_slowly(tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction) -> None:
    layout = joint_layout((tiled, blocked), cpu)
    rng = np.random.default_rng(0)
    both = np.concatenate(
        [
            layout.place(at, symbolic_features(sketch, sample(sketch, 80, rng), cpu))
            for at, sketch in enumerate((tiled, blocked))
        ]
    )
    truth = untrained(layout.names).secs(both) * np.repeat([3.0, 0.5], 80)
    noisy = truth * np.exp(0.3 * rng.standard_normal(160))
    seen = rng.permutation(160)
    fitted = fit_build_time(layout.names, both[seen[:80]], noisy[seen[:80]])
    rest = seen[80:]

    def error(secs: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.log(secs / truth[rest]) ** 2)))

    assert error(fitted.secs(both[rest])) < 0.3 * error(untrained(layout.names).secs(both[rest]))
    again = fit_build_time(layout.names, both[seen[:80]], noisy[seen[:80]])
    assert again.secs(both).tolist() == fitted.secs(both).tolist()


def test_the_deviation_and_the_chance_to_end_in_time_by_hand() -> None:
    prior = untrained(NAMES)
    one = rows((0, 10, 3, 1, 0))
    # ln(1.0692 * e^0.5 / 1.0692) / 0.5 = 1: Phi(1); at the predicted seconds 1/2.
    assert prior.in_time(one, 1.0692 * math.exp(0.5)) == pytest.approx([0.8413447], rel=1e-4)
    assert prior.in_time(one, 1.0692) == pytest.approx([0.5], rel=1e-4)
    # r = ln 2, of which ln 2 / 3 is predicted: s^2 = ((2 ln 2 / 3)^2 + 2 * 0.25) / 3.
    fitted = fit_build_time(NAMES, one, np.array([2 * 1.0692]))
    assert fitted.deviation == pytest.approx(math.sqrt(((2 * math.log(2) / 3) ** 2 + 0.5) / 3), rel=1e-5)


def test_what_ran_into_its_limit_is_not_expected_to_end_in_time_again() -> None:
    # Unrolled bodies with a condition at every point never end within 5 s; all others take a tenth of a second.
    names = ("unrolled", "vector", "inlined")
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.choice([2, 9], 60), rng.choice([2, 3], 60), rng.choice([0, 1], 60)]).astype(
        np.float32
    )
    slow = (values[:, 0] == 9) & (values[:, 2] == 1)
    fitted = fit_build_time(names, values, np.where(slow, TIMED_OUT * 5.0, 0.1))
    chance = fitted.in_time(values, 5.0)
    assert chance[slow].max() < 0.5 < 0.95 < chance[~slow & (values[:, 0] == 2)].min()
    assert chance[slow].max() < chance[~slow].min()


def test_unknown_build_times_are_left_out() -> None:
    one = rows((0, 10, 3, 1, 0))
    bad = np.array([math.nan, math.inf, 0.0, -1.0])
    assert fit_build_time(NAMES, np.repeat(one, 4, axis=0), bad).secs(one) == pytest.approx([1.0692])
    assert fit_build_time(NAMES, one[:0], bad[:0]).secs(one) == pytest.approx([1.0692])
    mixed = fit_build_time(NAMES, np.repeat(one, 5, axis=0), np.append(bad, 2 * 1.0692))
    assert mixed.secs(one) == pytest.approx([1.0692 * 2 ** (1 / 3)], rel=1e-5)


@given(
    arrays(np.float32, (6, 5), elements=st.floats(-40, 40, width=32) | st.just(math.nan)),
    arrays(np.float64, 6, elements=st.floats(allow_nan=True, allow_infinity=True)),
)
@example(np.zeros((6, 5), dtype=np.float32), np.full(6, 4.5e307))
def test_build_seconds_are_always_positive_and_finite(features: np.ndarray, secs: np.ndarray) -> None:
    found = fit_build_time(NAMES, features, secs).secs(features)
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_measure_seconds_by_hand() -> None:
    rule = StopRule(micro_batch_secs=0.01, min_batches=3, max_batches=11, race_factor=2.0, timeout_secs=10.0)
    # 3 + a quarter of 8 = 5 micro-batches. 1 ms: of 10 ms; 0.1 s: of one run; each after 5 ms and a first run.
    logs = np.log([0.001, 0.1])
    assert measure_secs(logs, math.inf, rule) == pytest.approx([0.005 + 0.001 + 0.05, 0.005 + 0.1 + 0.5])
    # Raced against 40 ms: one micro-batch.
    assert measure_secs(logs, 0.04, rule) == pytest.approx([0.056, 0.005 + 0.1 + 0.1])
    assert measure_secs(np.array([math.inf, 800.0, -math.inf]), 1.0, rule) == pytest.approx([10.0, 10.0, 0.055])
    assert np.isnan(measure_secs(np.array([math.nan]), 1.0, rule)).all()
    assert measure_secs(np.empty(0), 1.0).shape == (0,)


def test_trial_seconds_add_both() -> None:
    one = rows((0, 10, 3, 1, 0))
    found = trial_secs(untrained(NAMES), one, np.log([0.001]), math.inf)
    assert found == pytest.approx(1.0692 + measure_secs(np.log([0.001]), math.inf))
