"""What every cost model does, and how saved ones are refused."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from policies.cost_models import model_bytes
from policies.cost_models.boosted import GradientBoostedModel
from policies.cost_models.gaussian import GaussianProcessModel
from policies.cost_models.neural import NeuralModel
from policies.cost_models.protocol import CostModel
from policies.cost_models.rank_quality import rank_correlation
from policies.cost_models.registry import COST_MODELS, load_model
from policies.cost_models.statement_trees import StatementTreesModel
from policies.features.table import FeatureTable
from policies.features.views import VIEW_SHAPES

pytestmark = pytest.mark.timeout(300)  # so that it begins early: others wait for what begins last


def data(count: int, seed: int) -> tuple[FeatureTable, np.ndarray, np.ndarray]:
    """Features with missing values, log seconds near those of a prior in column 3, and one task."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, 12)).astype(np.float32)
    features[rng.random(features.shape) < 0.1] = np.nan
    prior = rng.standard_normal(count)
    features[:, 3] = prior
    logs = prior - 7.0 + np.nan_to_num(features[:, 0]) ** 2 + 0.5 * np.nan_to_num(features[:, 1])
    views = {
        "symbolic": features,
        "knobs": features,
        "standard": np.nan_to_num(features) / np.float32(np.sqrt(features.shape[1])),
        "other": features[:, :1],
        **fixed_views(np.nan_to_num(features), prior),
    }
    return FeatureTable(views), logs, np.zeros(count, dtype=np.int64)


def fixed_views(features: np.ndarray, prior: np.ndarray) -> dict[str, np.ndarray]:
    """The same features in the views of fixed shapes: in the first row of those with rows, after a column of ones."""
    views = {name: np.zeros((len(features), *shape), dtype=np.float32) for name, shape in VIEW_SHAPES.items()}
    for values in views.values():
        first = values if values.ndim == 2 else values[:, 0]
        first[:, 2:14] = features
        first[:, 1] = 1.0
    views["invariant"][:, 0] = prior
    return views


def same(one: CostModel, other: CostModel, features: FeatureTable) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.predict(features), other.predict(features), strict=True))


def bias(model: CostModel, usual: float) -> float:
    """How far predictions may be off on the whole: one that doubts what is slow expects too little of all together."""
    return 0.6 if isinstance(model, GaussianProcessModel) else usual


def cases() -> list[tuple[str, int | None]]:
    """Every model, also from the analyzer's prediction."""
    return [(name, offset) for name in COST_MODELS for offset in (None, 3)]


def made(case: tuple[str, int | None], **training: Any) -> CostModel:
    """A model of this case; a network is trained as ``training`` says."""
    name, offset = case
    model = COST_MODELS[name].make(1, offset)
    if isinstance(model, NeuralModel):
        model.settings = dataclasses.replace(model.settings, **training)
    return model


def good(case: tuple[str, int | None]) -> CostModel:
    """Networks are trained less, so that the tests are fast, and enough to be good."""
    few = {"epochs": 12, "update_epochs": 12, "least_steps": 40, "least_update_steps": 40}
    return made(case, list_size=64, learning_rate=2e-3, **few)


@pytest.fixture(params=cases(), ids=str)
def model(request: pytest.FixtureRequest) -> CostModel:
    return good(request.param)


@pytest.fixture(scope="module", params=cases(), ids=str)
def trained(request: pytest.FixtureRequest) -> CostModel:
    """Fitted once, on 300 records: for tests that leave it as it is."""
    trained = good(request.param)
    trained.fit(*data(300, 0))
    return trained


@pytest.fixture(params=cases(), ids=str)
def hasty(request: pytest.FixtureRequest) -> CostModel:
    """For what holds however long a network is trained: a few steps in a few lists."""
    few = {"epochs": 2, "update_epochs": 2, "least_steps": 4, "least_update_steps": 4}
    return made(request.param, list_size=16, learning_rate=2e-3, **few)


def test_predicts_log_seconds_and_is_the_same_after_loading(trained: CostModel) -> None:
    fresh, truth, _ = data(200, 1)
    assert set(trained.views) <= fresh.views.keys()
    mean, deviation = trained.predict(fresh)
    assert mean.shape == deviation.shape == (200,)
    assert mean.dtype == deviation.dtype == np.float64
    # What Ansor's loss weighs by its throughput orders the fast ones better than all.
    assert rank_correlation(mean, truth) > (0.5 if isinstance(trained, StatementTreesModel) else 0.6)
    assert abs(float(np.mean(mean - truth))) < bias(trained, 0.3)  # in log seconds, also those of a rank model
    assert np.isfinite(deviation).all()
    assert (deviation >= 0).all()
    assert same(load_model(trained.save()), trained, fresh)


def test_deviation_is_of_the_size_of_the_errors(trained: CostModel) -> None:
    fresh, truth, _ = data(400, 3)
    mean, deviation = trained.predict(fresh)
    within = np.abs(mean - truth) <= 2 * deviation
    assert float(within.mean()) >= (0.65 if isinstance(trained, GaussianProcessModel) else 0.7)
    # Not by being vague: narrower than the targets themselves are spread.
    assert float(np.median(deviation)) < float(truth.std())


def test_is_deterministic_and_fit_forgets(hasty: CostModel) -> None:
    features, logs, tasks = data(64, 4)
    other = twin_of(hasty)
    other.fit(*data(40, 5))
    hasty.fit(features, logs, tasks)
    other.fit(features, logs, tasks)
    assert same(hasty, other, features)


def test_an_update_learns_from_all_its_records(hasty: CostModel) -> None:
    features, logs, tasks = data(96, 6)
    whole, first = twin_of(hasty), twin_of(hasty)
    whole.fit(features, logs, tasks)
    hasty.fit(features.take(slice(0, 60)), logs[:60], tasks[:60])
    before = hasty.predict(features)[0]
    hasty.update(features, logs, tasks)
    assert not np.array_equal(hasty.predict(features)[0], before)
    if not isinstance(hasty, NeuralModel):  # which goes on from where it stands
        assert same(hasty, whole, features)
    # From nothing, an update is a first fit.
    first.update(features, logs, tasks)
    assert same(first, whole, features)


def test_what_weighs_little_teaches_little(model: CostModel) -> None:
    features, logs, tasks = data(200, 10)
    fresh, truth, _ = data(200, 11)
    wrong = np.arange(200) % 2 == 0
    told = np.where(wrong, logs[::-1], logs)
    other = twin_of(model)
    other.fit(features, told, tasks)
    model.fit(features, told, tasks, np.where(wrong, 1e-3, 1.0))
    assert rank_correlation(model.predict(fresh)[0], truth) > rank_correlation(other.predict(fresh)[0], truth)


def test_loaded_model_can_be_updated(model: CostModel) -> None:
    features, logs, tasks = data(200, 7)
    model.fit(features, logs, tasks)
    loaded = load_model(model.save())
    fresh, truth, fresh_tasks = data(64, 8)
    loaded.update(fresh, truth + 1.0, fresh_tasks)  # the new device is slower
    test, expected, _ = data(200, 9)
    mean, _ = loaded.predict(test)
    assert rank_correlation(mean, expected) > 0.6
    assert abs(float(np.mean(mean - expected)) - 1.0) < bias(model, 0.4)
    assert same(load_model(loaded.save()), loaded, test)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_or_equal_records_are_borne(hasty: CostModel, count: int) -> None:
    features, _, tasks = data(count, 10)
    logs = np.full(count, -5.0)
    hasty.fit(features, logs, tasks)
    mean, deviation = hasty.predict(features)
    assert mean == pytest.approx(logs, abs=1e-3 if count == 1 else 2.0)
    assert np.isfinite(deviation).all()
    all_failed = np.zeros(count)
    hasty.fit(features, all_failed, tasks)
    assert np.isfinite(hasty.predict(features)[0]).all()


def test_refuses_nonsense(hasty: CostModel) -> None:
    features, logs, tasks = data(20, 11)
    with pytest.raises(ValueError, match="not been trained"):
        hasty.predict(features)
    with pytest.raises(ValueError, match="not been trained"):
        hasty.save()
    none = slice(0, 0)
    for method in (hasty.fit, hasty.update):
        with pytest.raises(ValueError, match="cannot train"):
            method(features.take(none), logs[none], tasks[none])
        with pytest.raises(ValueError, match="cannot train"):
            method(features, logs, tasks[:5])
        with pytest.raises(ValueError, match="finite"):
            method(features, np.where(np.arange(20) == 3, np.inf, logs), tasks)
        with pytest.raises(ValueError, match="lack the view"):
            method(FeatureTable({"other": features.view("other")}), logs, tasks)
    hasty.fit(features, logs, tasks)
    assert hasty.predict(features.take(none))[0].shape == (0,)
    narrow = FeatureTable({name: features.view(name)[..., :-1] for name in hasty.views})
    with pytest.raises(ValueError, match=r"reads \d+ columns|has the shape"):
        hasty.predict(narrow)
    if isinstance(hasty, NeuralModel | GradientBoostedModel):  # the others are trained anew
        with pytest.raises(ValueError, match=r"reads \d+ columns|has the shape"):
            load_model(hasty.save()).update(narrow, logs, tasks)
    # A refused update leaves the model as it was.
    assert np.isfinite(hasty.predict(features)[0]).all()


def twin_of(model: CostModel) -> CostModel:
    """A model of the same kind and settings; call it before the model is trained."""
    return copy.deepcopy(model)


def test_damaged_or_foreign_bytes_are_refused(hasty: CostModel) -> None:
    features, logs, tasks = data(20, 13)
    hasty.fit(features, logs, tasks)
    whole = hasty.save()
    for broken in (b"", b"other", whole[:-3], whole[:7], whole[:30], whole[:40] + b"x" + whole[41:], whole + b"y"):
        with pytest.raises(ValueError, match=r"not a cost model|cut off or damaged"):
            load_model(broken)
    unknown = model_bytes.pack(model_bytes.SavedState("oracle", {}, {}))
    with pytest.raises(ValueError, match="unknown kind 'oracle'"):
        load_model(unknown)
    with pytest.raises(ValueError, match="lacks what this version reads"):
        load_model(model_bytes.pack(model_bytes.SavedState(type(hasty).KIND, {"seed": 1}, {})))  # type: ignore[attr-defined]


def test_a_model_of_another_feature_version_is_refused(hasty: CostModel) -> None:
    features, logs, tasks = data(20, 14)
    hasty.fit(features, logs, tasks)
    saved = model_bytes.unpack(hasty.save())
    old = model_bytes.pack(dataclasses.replace(saved, header={**saved.header, "version": 0}))
    with pytest.raises(ValueError, match=r"reads version 0 of the features.*train it anew"):
        load_model(old)


def test_entries_say_what_their_models_are() -> None:
    for name, entry in COST_MODELS.items():
        model = entry.make(0, None)
        assert (entry.name, entry.kind, entry.views) == (name, model.KIND, model.views)
        assert type(model) is entry.model
        assert (model.network is not None) == entry.learns_on


def test_importing_the_models_loads_no_heavy_library() -> None:
    code = "import sys, policies.cost_models.registry; "
    code += "print([name for name in ('xgboost', 'sklearn', 'torch') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_what_records_teach_loads_nothing_that_reads_files() -> None:
    code = "import sys, policies.cost_models.knowledge; "
    code += "names = ['fleet_tune.base.records.' + each for each in ('dataset', 'reader', 'store')]; "
    code += "print([name for name in names if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
