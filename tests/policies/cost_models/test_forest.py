"""The random forest: AdaTune's settings, and its own evaluation of the trees."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from policies.cost_models.forest import Forest, RandomForestModel
from policies.features.table import FeatureTable


def test_predicts_what_scikit_learn_does() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((200, 15)).astype(np.float32)
    matrix[rng.random(matrix.shape) < 0.2] = np.nan
    logs = np.nan_to_num(matrix[:, 0]) + np.nan_to_num(matrix[:, 1]) ** 2
    model = RandomForestModel(seed=3)
    model.fit(FeatureTable({"knobs": matrix}), logs, np.zeros(200, dtype=np.int64))
    peer = RandomForestRegressor(n_estimators=10, max_features=10, random_state=3)
    peer.fit(matrix, logs, sample_weight=np.ones(len(logs)))
    fresh = rng.standard_normal((300, 15)).astype(np.float32)
    fresh[rng.random(fresh.shape) < 0.2] = np.nan
    mean, deviation = model.predict(FeatureTable({"knobs": fresh}))
    each = np.array([tree.predict(fresh) for tree in peer.estimators_])
    assert mean == pytest.approx(peer.predict(fresh), abs=1e-12)
    assert deviation == pytest.approx(each.std(axis=0), abs=1e-12)


def test_evaluates_trees_made_by_hand() -> None:
    # Tree one: x0 <= 1 ? (x1 <= 0 ? 10 : 20) : 30, missing x0 goes right, missing x1 left. Tree two: always 40.
    forest = Forest(
        roots=np.array([0, 5], dtype=np.int32),
        left=np.array([1, 3, 2, 3, 4, 5], dtype=np.int32),
        right=np.array([2, 4, 2, 3, 4, 5], dtype=np.int32),
        feature=np.array([0, 1, 0, 0, 0, 0], dtype=np.int32),
        missing_left=np.array([0, 1, 0, 0, 0, 0], dtype=np.int32),
        threshold=np.array([1.0, 0.0, -2.0, -2.0, -2.0, -2.0]),
        value=np.array([0.0, 0.0, 30.0, 10.0, 20.0, 40.0]),
        depth=2,
    )
    nan = np.nan
    rows = np.array([[1, 0], [1, 0.5], [1.5, 0], [nan, 0], [0, nan]], dtype=np.float32)
    assert forest.evaluate(rows).tolist() == [[10.0, 20.0, 30.0, 30.0, 10.0], [40.0] * 5]
    assert forest.evaluate(rows[:0]).shape == (2, 0)


def test_fewer_columns_than_max_features() -> None:
    model = RandomForestModel(0)
    features = FeatureTable({"knobs": np.arange(20, dtype=np.float32)[:, None]})
    model.fit(features, np.arange(20.0), np.zeros(20, dtype=np.int64))
    assert np.corrcoef(model.predict(features)[0], np.arange(20))[0, 1] > 0.95


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RandomForestModel(trees=0)
