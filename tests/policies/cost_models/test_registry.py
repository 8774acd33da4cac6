"""Features, the calibration, and the targets of cost models."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import analyse
from policies.cost_models.protocol import targets
from policies.features.table import PREDICTED, FeatureTable, feature_names, joint_layout, symbolic_features
from policies.search.calibration import PRIOR_DEVIATION, calibrate, uncalibrated
from policies.space.sampling import sample


def test_features_are_finite_and_named(
    tiled: Sketch, blocked: Sketch, undescribed: Sketch, cpu: DeviceAbstraction, gpu: DeviceAbstraction
) -> None:
    for sketch in (tiled, blocked, undescribed):
        for device in (cpu, gpu):
            names = feature_names(sketch, device)
            features = symbolic_features(sketch, sample(sketch, 50, np.random.default_rng(1)), device)
            assert features.dtype == np.float32
            assert features.shape == (50, len(names))
            assert np.isfinite(features).all()
            assert len(set(names)) == len(names)
    assert PREDICTED not in feature_names(undescribed, cpu)
    rows = sample(tiled, 5, np.random.default_rng(0))
    column = feature_names(tiled, cpu).index(PREDICTED)
    known = analyse(tiled, rows, cpu)
    assert np.exp(symbolic_features(tiled, rows, cpu)[:, column]) == pytest.approx(known.latency_secs, rel=1e-5)


def test_joint_layout_shares_columns(
    tiled: Sketch, blocked: Sketch, undescribed: Sketch, cpu: DeviceAbstraction
) -> None:
    layout = joint_layout((tiled, blocked), cpu)
    assert len(set(layout.names)) == len(layout.names)
    first = layout.place(0, symbolic_features(tiled, sample(tiled, 3, np.random.default_rng(0)), cpu))
    second = layout.place(1, symbolic_features(blocked, sample(blocked, 3, np.random.default_rng(0)), cpu))
    shared = layout.names.index("accumulators")
    assert np.isfinite(first[:, shared]).all()
    assert np.isfinite(second[:, shared]).all()
    assert np.isnan(second[:, layout.names.index("choice.unroll")]).all()
    assert first[:, -2:].tolist() == [[1.0, 0.0]] * 3
    assert second[:, -2:].tolist() == [[0.0, 1.0]] * 3
    assert layout.offset_column == layout.names.index(PREDICTED)
    mixed = joint_layout((tiled, undescribed), cpu)
    assert mixed.offset_column == mixed.names.index(PREDICTED)
    unknown = mixed.place(1, symbolic_features(undescribed, sample(undescribed, 3, np.random.default_rng(0)), cpu))
    assert np.isnan(unknown[:, mixed.names.index(PREDICTED)]).all()
    assert joint_layout((undescribed,), cpu).offset_column is None


def test_calibration_learns_from_sixteen_records(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    rng = np.random.default_rng(5)
    rows = sample(blocked, 316, rng)
    features = symbolic_features(blocked, rows, cpu)
    names = feature_names(blocked, cpu)
    # The device is 1.6 times slower than thought, more so for wide vectors.
    truth = math.log(1.6) + 0.3 * (features[:, names.index("vector")].astype(float) - 3.0)
    fitted = calibrate(features[:16], truth[:16] + 0.02 * rng.standard_normal(16))
    mean, deviation = fitted.correct(features[16:])
    error = float(np.sqrt(np.mean((mean - truth[16:]) ** 2)))
    assert error < 0.6 * float(np.sqrt(np.mean(truth[16:] ** 2)))
    assert (deviation > 0).all()
    more = calibrate(features[:200], truth[:200])
    better, _ = more.correct(features[200:])
    assert float(np.sqrt(np.mean((better - truth[200:]) ** 2))) < error
    # Where it has been, it is surer.
    near, _ = more.correct(features[:200])
    assert np.abs(near - truth[:200]).max() < 0.5
    assert more.correct(features[:100])[1].mean() <= more.correct(features[200:])[1].mean()


def test_calibration_of_few_or_no_records() -> None:
    features = np.ones((3, 4), dtype=np.float32)
    mean, deviation = uncalibrated().correct(features)
    assert mean.tolist() == [0.0] * 3
    assert deviation.tolist() == [PRIOR_DEVIATION] * 3
    mean, _ = calibrate(features, np.array([0.1, 0.5, 0.7])).correct(features)
    assert mean.tolist() == [0.5] * 3


def test_calibration_bears_missing_and_constant_columns() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((40, 6)).astype(np.float32)
    features[:20, 2] = np.nan
    features[:, 4] = np.nan
    features[:, 5] = 3.0
    mean, deviation = calibrate(features, features[:, 0].astype(float)).correct(features)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()
    assert np.corrcoef(mean, features[:, 0])[0, 1] > 0.9


def test_targets() -> None:
    values = targets(np.array([1.0, math.e, math.inf, math.nan]))
    assert values == pytest.approx([0.0, 1.0, 1.0 + math.log(2), 1.0 + math.log(2)])
    assert targets(np.array([math.inf, math.inf])).tolist() == [0.0, 0.0]
    assert targets(np.empty(0)).shape == (0,)


def test_feature_table() -> None:
    symbolic = np.arange(6, dtype=np.float32).reshape(3, 2)
    flow = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    table = FeatureTable({"symbolic": symbolic, "dataflow": flow})
    assert len(table) == 3
    assert table.take(np.array([2, 0])).view("symbolic").tolist() == [[4.0, 5.0], [0.0, 1.0]]
    both = FeatureTable.concatenate([table, table.take(slice(0, 0)), table.take(np.array([True, False, False]))])
    assert both.view("dataflow")[3].tolist() == flow[0].tolist()
    with pytest.raises(ValueError, match="lack the view 'context'"):
        table.view("context")
    with pytest.raises(ValueError, match="one length"):
        FeatureTable({"a": symbolic, "b": flow[:1]})
    with pytest.raises(ValueError, match="one length"):
        FeatureTable({})
    with pytest.raises(ValueError, match="no feature table"):
        FeatureTable.concatenate([])
    with pytest.raises(ValueError, match="different views"):
        FeatureTable.concatenate([table, FeatureTable({"symbolic": symbolic})])
