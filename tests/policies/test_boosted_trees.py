"""Gradient-boosted trees as a cost model."""

from __future__ import annotations

import numpy as np
import pytest

from policies.boosted_trees import GradientBoostedModel
from policies.features import FeatureTable
from policies.models import load_model


def data(count: int, seed: int) -> tuple[FeatureTable, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, 8)).astype(np.float32)
    features[rng.random(features.shape) < 0.1] = np.nan
    prior = rng.standard_normal(count)
    features[:, 3] = prior
    logs = prior - 7.0 + np.nan_to_num(features[:, 0]) ** 2 + 0.5 * np.nan_to_num(features[:, 1])
    return FeatureTable({"symbolic": features}), logs


def one_task(logs: np.ndarray) -> np.ndarray:
    return np.zeros(len(logs), dtype=np.int64)


@pytest.mark.parametrize("offset", [None, 3])
def test_model_ranks_and_survives_saving(offset: int | None) -> None:
    features, logs = data(400, 0)
    fresh, truth = data(200, 1)
    model = GradientBoostedModel(seed=1, offset_column=offset)
    model.fit(features, logs, one_task(logs))
    mean, deviation = model.predict(fresh)
    assert np.corrcoef(mean, truth)[0, 1] > 0.8
    assert (deviation > 0).all()
    again = load_model(model.save())
    assert isinstance(again, GradientBoostedModel)
    assert again.offset_column == offset
    for one, other in zip(again.predict(fresh), (mean, deviation), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_prior_prediction_helps_with_few_records() -> None:
    features, logs = data(24, 2)
    fresh, truth = data(200, 3)

    def error(offset: int | None) -> float:
        model = GradientBoostedModel(seed=0, offset_column=offset)
        model.fit(features, logs, one_task(logs))
        return float(np.mean((model.predict(fresh)[0] - truth) ** 2))

    assert error(3) < error(None)


def test_model_is_deterministic_and_refuses_nonsense() -> None:
    features, logs = data(64, 4)
    first, second = GradientBoostedModel(seed=3), GradientBoostedModel(seed=3)
    first.fit(features, logs, one_task(logs))
    second.fit(features, logs, one_task(logs))
    assert first.predict(features)[0].tolist() == second.predict(features)[0].tolist()
    assert first.predict(features.take(slice(0, 0)))[0].shape == (0,)
    with pytest.raises(ValueError, match="not been trained"):
        GradientBoostedModel().predict(features)
    with pytest.raises(ValueError, match="cannot train"):
        GradientBoostedModel().fit(features.take(slice(0, 0)), logs[:0], one_task(logs[:0]))
    with pytest.raises(ValueError, match="finite"):
        GradientBoostedModel().fit(features, np.full(64, np.inf), one_task(logs))
    with pytest.raises(ValueError, match="at least 1"):
        GradientBoostedModel(members=0)
    data_bytes = first.save()
    for broken in (b"", b"other", data_bytes[:-3], data_bytes[:7]):
        with pytest.raises(ValueError, match=r"not a cost model|cut off"):
            load_model(broken)
