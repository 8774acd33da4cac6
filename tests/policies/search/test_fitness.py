"""The quick fitness of the calibrated analyzer against the plain one, and the calibration's formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import CHUNK, analyse
from policies.features.table import joint_layout, symbolic_features
from policies.search.calibration import PRIOR_DEVIATION, RIDGES, Calibration, calibrate, uncalibrated
from policies.search.draft import DraftSettings, draft, evaluate, scores
from policies.search.fitness import CalibratedFitness, calibration_columns
from policies.space.sampling import sample


def task_calibration(
    sketches: tuple[Sketch, ...], device: DeviceAbstraction, count: int = 64
) -> tuple[Calibration, tuple[np.ndarray, ...]]:
    """A calibration on random candidates of all sketches whose ratio depends on the vector length and the sketch."""
    layout = joint_layout(sketches, device)
    matrices = tuple(sample(sketch, count // len(sketches), np.random.default_rng(5)) for sketch in sketches)
    features = np.concatenate(
        [
            layout.place(at, symbolic_features(s, m, device))
            for at, (s, m) in enumerate(zip(sketches, matrices, strict=True))
        ]
    )
    column = layout.names.index("vector")
    ratio = 0.3 * np.nan_to_num(features[:, column], nan=2.0) + features[:, -1]
    columns = calibration_columns(layout, sketches, device.kind)
    return calibrate(features, ratio.astype(float), columns), matrices


@pytest.mark.parametrize("described", [True, False])
def test_quick_scores_are_the_plain_ones(
    described: bool, tiled: Sketch, blocked: Sketch, undescribed: Sketch, cpu: DeviceAbstraction
) -> None:
    sketches = (tiled, blocked) if described else (tiled, blocked, undescribed)
    layout = joint_layout(sketches, cpu)
    calibration, _ = task_calibration(sketches, cpu)
    assert not calibration.constant
    for at, sketch in enumerate(sketches):
        rows = sample(sketch, CHUNK + 50, np.random.default_rng(1))
        fitness = CalibratedFitness(calibration, layout, at, prior_secs=1e-3)
        quick = scores(sketch, rows, cpu, fitness)
        plain = evaluate(sketch, rows, cpu, fitness)
        assert np.isfinite(quick).tolist() == np.isfinite(plain.log_secs).tolist()
        good = np.isfinite(quick)
        assert quick[good] == pytest.approx(plain.log_secs[good], abs=2e-3)
        correction, _ = calibration.correct(layout.place(at, plain.features))
        base = np.where(np.isnan(plain.analytic_log_secs), np.log(1e-3), plain.analytic_log_secs)
        assert plain.log_secs[good] == pytest.approx((base + correction)[good], abs=2e-3)
        assert len(scores(sketch, rows[:0], cpu, fitness)) == 0
        assert scores(sketch, rows[:1], cpu, fitness) == pytest.approx(quick[:1], abs=1e-4)


def test_draft_on_the_calibrated_fitness(blocked: Sketch, tiled: Sketch, cpu: DeviceAbstraction) -> None:
    sketches = (tiled, blocked)
    calibration, _ = task_calibration(sketches, cpu)
    fitness = CalibratedFitness(calibration, joint_layout(sketches, cpu), 1, prior_secs=1e-3)
    settings = DraftSettings(size=64, population=256)
    found = draft(blocked, cpu, np.random.default_rng(0), settings, fitness)
    assert (np.diff(found.log_secs) >= 0).all()
    assert found.log_secs == pytest.approx(evaluate(blocked, found.matrix, cpu, fitness).log_secs, abs=2e-3)
    again = draft(blocked, cpu, np.random.default_rng(0), settings, fitness)
    assert found.matrix.tolist() == again.matrix.tolist()


def test_scores_without_a_fitness_are_the_analyzers(tiled: Sketch, undescribed: Sketch, cpu: DeviceAbstraction) -> None:
    rows = sample(tiled, 300, np.random.default_rng(0))
    known = analyse(tiled, rows, cpu)
    quick = scores(tiled, rows, cpu)
    assert quick == pytest.approx(np.where(known.feasible, np.log(known.latency_secs), np.inf))
    assert (scores(undescribed, sample(undescribed, 9, np.random.default_rng(0)), cpu) == 0).all()


def test_a_fitness_that_is_no_number_is_never_drafted(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    def odd(_: np.ndarray, __: np.ndarray, analytic: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(analytic)) % 3 == 0, np.nan, analytic)

    found = draft(tiled, cpu, np.random.default_rng(0), DraftSettings(size=32, population=128, generations=2), odd)
    assert np.isfinite(found.log_secs).all()
    assert (np.diff(found.log_secs) >= 0).all()


def test_columns_are_the_core_and_what_is_known_of_undescribed_sketches(
    tiled: Sketch, undescribed: Sketch, cpu: DeviceAbstraction
) -> None:
    layout = joint_layout((tiled, undescribed), cpu)
    names = [layout.names[at] for at in calibration_columns(layout, (tiled, undescribed), "cpu")]
    assert {"log_predicted", "cycles", "sketch.0", "sketch.1", "location.pad"} <= set(names)
    assert not any(name.startswith("tile.i.") for name in names)


def test_kernel_ridge_by_hand() -> None:
    # Eight records of one feature, half at -1, half at +1 (standardised: scale 1, length 1), targets -1 and +1.
    features = np.array([[-1.0], [1.0]] * 4, dtype=np.float32)
    target = np.array([-1.0, 1.0] * 4)
    fitted = calibrate(features, target)
    assert fitted.shift == 0.0
    assert fitted.length == pytest.approx(1.0)
    # k is 1.5 within a group and e^-2 - 0.5 across; all weights are alike: 4 (1.5 - (e^-2 - 0.5)) w + a w = 1.
    across = np.exp(-2.0) - 0.5
    ridge = RIDGES[0]  # no noise: the least
    weight = 1.0 / (4 * (1.5 - across) + ridge)
    assert fitted.weights == pytest.approx(target * weight, rel=1e-5)
    mean, deviation = fitted.correct(np.array([[1.0], [-1.0], [np.nan]], dtype=np.float32))
    assert mean == pytest.approx([1 - ridge * weight, ridge * weight - 1, 0.0], abs=1e-5)
    assert fitted.mean(np.array([[1.0, -1.0, np.nan]], dtype=np.float32)) == pytest.approx(mean, abs=1e-5)
    # Nothing is known of a candidate between the groups: its deviation is larger.
    assert deviation[2] > deviation[0] >= fitted.noise


def test_noisy_records_are_smoothed() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((64, 6)).astype(np.float32) * 3
    noise = rng.standard_normal(64)
    smooth = calibrate(features, noise)
    clear = 0.1 * features[:, 0].astype(float)
    bent = calibrate(features, clear)
    assert smooth.correct(features)[0].std() / noise.std() < 0.7
    assert bent.correct(features)[0].std() / clear.std() > 0.8


def test_records_without_numbers_are_left_out() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((40, 3)).astype(np.float32)
    target = features[:, 0].astype(float)
    odd = np.concatenate([target, [np.nan, np.inf]])
    more = np.concatenate([features, np.zeros((2, 3), dtype=np.float32)])
    assert calibrate(more, odd).weights == pytest.approx(calibrate(features, target).weights)
    assert calibrate(more[40:], odd[40:]).constant
    broken = features.copy()
    broken[0, 1] = np.inf
    mean, deviation = calibrate(broken, target).correct(broken)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()


def test_no_and_few_records() -> None:
    features = np.zeros((3, 2), dtype=np.float32)
    assert uncalibrated().mean(features[:, :0].T).tolist() == [0, 0, 0]
    assert calibrate(features[:0], np.empty(0)) is not None
    few = calibrate(features, np.array([0.1, 0.4, 0.9]))
    assert few.constant
    assert few.correct(features)[0].tolist() == [0.4] * 3
    assert few.noise == PRIOR_DEVIATION
    assert dataclasses.replace(few, shift=0.0).mean(features[:, :0].T).tolist() == [0, 0, 0]


def test_one_catastrophe_bends_nothing() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((64, 4)).astype(np.float32) * 2
    target = 0.3 * features[:, 0].astype(float)
    spoilt = target.copy()
    spoilt[5] = 9.0
    before, after = calibrate(features, target), calibrate(features, spoilt)
    assert after.correct(features[5:6])[0] > before.correct(features[5:6])[0]
    others = np.delete(features, 5, axis=0)
    assert after.correct(others)[0] == pytest.approx(before.correct(others)[0], abs=0.4)
    assert np.corrcoef(after.correct(others)[0], np.delete(target, 5))[0, 1] > 0.9
