"""Gradient-boosted trees: objectives, tasks, and the deviation's parts."""

from __future__ import annotations

import numpy as np
import pytest

from policies.cost_models.boosted import AUTOTVM_TREES, BoostedSettings, GradientBoostedModel, InvariantTreesModel
from policies.cost_models.out_of_bag import UNKNOWN_DEVIATION
from policies.cost_models.rank_quality import rank_correlation
from policies.features.table import FeatureTable


def data(count: int, seed: int) -> tuple[FeatureTable, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, 6)).astype(np.float32)
    return FeatureTable({"symbolic": features}), features[:, 3] - 7.0 + features[:, 0] ** 2


def one_task(logs: np.ndarray) -> np.ndarray:
    return np.zeros(len(logs), dtype=np.int64)


def test_prior_prediction_helps_with_few_records() -> None:
    features, logs = data(24, 2)
    fresh, truth = data(200, 3)

    def error(offset: int | None) -> float:
        model = GradientBoostedModel(seed=0, offset_column=offset)
        model.fit(features, logs, one_task(logs))
        return float(np.mean((model.predict(fresh)[0] - truth) ** 2))

    assert error(3) < error(None)


def test_what_has_no_prior_prediction_starts_from_the_median_of_such_records() -> None:
    """A third of the records is of a sketch that the analyzer does not know, a hundred times slower than the others."""
    features, logs = data(90, 2)
    unknown = np.arange(90) % 3 == 0
    matrix = features.view("symbolic").copy()
    logs = np.where(unknown, 5.0, logs)
    matrix[unknown, 3] = np.nan
    table = FeatureTable({"symbolic": matrix})
    model = GradientBoostedModel(0, BoostedSettings(rounds=1), offset_column=3)
    model.fit(table, logs, one_task(logs))
    mean, deviation = model.predict(table)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()
    assert np.abs(mean[unknown] - 5.0).max() < 0.5, "one round of trees alone does not come there"
    again = GradientBoostedModel.load(model.save())
    assert np.array_equal(again.predict(table)[0], mean)


def test_invariant_features_of_what_is_not_described_are_no_prediction_of_a_second() -> None:
    """There all of the invariant view is 0, and the second column says so."""
    rng = np.random.default_rng(0)
    invariant = rng.standard_normal((80, 4)).astype(np.float32)
    invariant[:, 0] -= 9.0
    invariant[:, 1] = 1.0
    invariant[::4] = 0.0
    logs = np.where(np.arange(80) % 4 == 0, -11.0, invariant[:, 0] + 1.0)
    relation = np.zeros((80, 1), dtype=np.float32)
    table = FeatureTable({"invariant": invariant, "relation": relation})
    model = InvariantTreesModel(0, BoostedSettings(rounds=1), from_analyzer=True)
    model.fit(table, logs, one_task(logs))
    mean, _ = model.predict(table)
    assert np.abs(mean - logs).max() < 1.0, "one round of trees alone does not come there"


def test_ranking_happens_within_a_task() -> None:
    features, logs = data(300, 4)
    tasks = np.arange(300) % 3
    level = np.array([0.0, 4.0, -4.0])[tasks]  # one task is e^4 times slower, whatever its features
    settings = BoostedSettings(objective="pairwise", rounds=60)
    model = GradientBoostedModel(0, settings)
    model.fit(features, logs + level, tasks)
    fresh, truth = data(200, 5)
    mean, _ = model.predict(fresh)
    assert rank_correlation(mean, truth) > 0.75
    # The order of the rows does not matter, only their tasks: XGBoost itself wants them sorted.
    order = np.argsort(tasks, kind="stable")
    again = GradientBoostedModel(0, settings)
    again.fit(features.take(order), (logs + level)[order], tasks[order])
    assert np.array_equal(again.predict(fresh)[0], mean)


def test_the_rank_objective_has_all_pairs_of_equation_2() -> None:
    """Two Newton steps of two leaves against the loss of AutoTVM's equation 2, summed pair by pair.

    A hundred records: XGBoost's default has no pairs but those with one of the best 32, and scales them. Its second
    derivative is twice the loss's, and 1 is added to it (lambda).
    """
    rng = np.random.default_rng(0)
    side = np.arange(100) % 2
    logs = rng.random(100) + 0.2 * side
    settings = BoostedSettings(
        objective="pairwise", members=1, rounds=2, depth=1, eta=1.0, min_child_weight=0.0, subsample=1.0,
        column_share=1.0, emphasis=0.0,
    )  # fmt: skip
    model = GradientBoostedModel(0, settings)
    table = FeatureTable({"symbolic": side[:, None].astype(np.float32)})
    model.fit(table, logs, one_task(logs))
    scores = np.zeros(100)  # larger for faster: minus the f of the paper
    for _ in range(2):
        slope, curve = np.zeros(100), np.zeros(100)
        for i in range(100):
            for j in range(100):
                if logs[i] < logs[j]:
                    sure = 1 / (1 + np.exp(scores[j] - scores[i]))  # log(1 + exp(-(s_i - s_j)))
                    slope[i] -= 1 - sure
                    slope[j] += 1 - sure
                    curve[[i, j]] += sure * (1 - sure)
        for leaf in (0, 1):
            rows = side == leaf
            scores[rows] -= slope[rows].sum() / (2 * curve[rows].sum() + 1)
    assert model._scores(np.array([[0.0], [1.0]], dtype=np.float32))[0] == pytest.approx(-scores[:2], rel=1e-3)


def test_deviation_grows_away_from_the_records() -> None:
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, size=(200, 1)).astype(np.float32)
    x[:190] = -np.abs(x[:190])  # nearly all records on one side
    logs = np.sin(3 * x[:, 0].astype(float)) + 0.01 * rng.standard_normal(200)
    model = GradientBoostedModel(0)
    model.fit(FeatureTable({"symbolic": x}), logs, one_task(logs))
    near = FeatureTable({"symbolic": np.linspace(-0.9, -0.1, 50, dtype=np.float32)[:, None]})
    far = FeatureTable({"symbolic": np.linspace(0.1, 0.9, 50, dtype=np.float32)[:, None]})
    assert model.predict(near)[1].mean() < model.predict(far)[1].mean()


def test_deviation_knows_the_noise_of_the_records() -> None:
    rng = np.random.default_rng(7)
    features = FeatureTable({"symbolic": rng.standard_normal((400, 3)).astype(np.float32)})
    noise = 0.3 * rng.standard_normal(400)
    model = GradientBoostedModel(0, BoostedSettings(emphasis=0.0, depth=2, rounds=20))
    model.fit(features, noise, one_task(noise))
    assert float(np.median(model.predict(features)[1])) == pytest.approx(0.3, abs=0.08)


def test_deviation_is_the_unknown_one_with_too_few_records() -> None:
    features, logs = data(4, 8)
    model = GradientBoostedModel(0)
    model.fit(features, logs, one_task(logs))
    assert (model.predict(features)[1] >= UNKNOWN_DEVIATION).all()


def test_single_member_has_its_training_error() -> None:
    features, logs = data(100, 9)
    model = GradientBoostedModel(0, BoostedSettings(members=1, rounds=5, emphasis=0.0))
    model.fit(features, logs, one_task(logs))
    mean, deviation = model.predict(features)
    weight = np.exp(logs.min() - logs)
    error = float(np.sqrt(np.average((mean - logs) ** 2, weights=weight)))
    assert deviation == pytest.approx(np.full(100, error), rel=1e-6)


def test_seeds_differ() -> None:
    features, logs = data(60, 10)
    means = []
    for seed in (1, 2):
        model = GradientBoostedModel(seed, AUTOTVM_TREES)
        model.fit(features, logs, one_task(logs))
        means.append(model.predict(features)[0].tolist())
    assert means[0] != means[1]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BoostedSettings(members=0)
    with pytest.raises(ValueError, match="unknown objective"):
        BoostedSettings(objective="guess")  # type: ignore[arg-type]
